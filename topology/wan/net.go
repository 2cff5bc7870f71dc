package wan

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// regionNet opens the sockets of one region.
type regionNet struct {
	wan    *WAN
	region string
}

func (r regionNet) listen(ctx context.Context, addr string) (net.Listener, error) {
	inner, err := r.wan.inner.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	port := portOf(inner.Addr().String())
	return &listener{
		Listener: inner,
		release:  r.wan.register(r.wan.streams, port, r.region),
	}, nil
}

func (r regionNet) listenPacket(ctx context.Context, addr string) (net.PacketConn, error) {
	inner, err := r.wan.inner.ListenPacket(ctx, addr)
	if err != nil {
		return nil, err
	}
	port := portOf(inner.LocalAddr().String())
	release := r.wan.register(r.wan.packets, port, r.region)
	return newPacketConn(r.wan, r.region, port, inner, release), nil
}

// register assigns a port to a region. release ends the assignment.
func (w *WAN) register(ports map[uint16]string, port uint16, region string) (release func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ports[port] = region
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(ports, port)
	})
}

// dial returns a delayed stream after one round trip. A refused connect also takes a round
// trip.
func (r regionNet) dial(ctx context.Context, addr string) (net.Conn, error) {
	w := r.wan
	w.mu.Lock()
	to, known := w.streams[portOf(addr)]
	w.mu.Unlock()
	if !known || to == r.region {
		return w.inner.Dial(ctx, addr)
	}
	path := pair{r.region, to}
	rtt, err := w.RTT(path.from, path.to)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	if err := r.cross(ctx, path, rtt/2); err != nil {
		return nil, fmt.Errorf("dial %s: %s to %s: %w", addr, path.from, path.to, err)
	}
	conn, dialErr := w.inner.Dial(ctx, addr)
	if err := r.cross(ctx, path, rtt-rtt/2); err != nil {
		if dialErr == nil {
			conn.Close()
		}
		return nil, fmt.Errorf("dial %s: %s to %s: %w", addr, path.from, path.to, err)
	}
	if dialErr != nil {
		return nil, dialErr
	}
	return w.wrap(path, conn)
}

// cross waits until a packet that is sent now has crossed the path in one direction.
func (r regionNet) cross(ctx context.Context, path pair, delay time.Duration) error {
	due := time.Now().Add(delay)
	if r.wan.awaitPath(path, ctx.Done()) && r.wan.ticks.sleep(due, ctx.Done(), r.wan.done) {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return ErrClosed
}

// listener releases its port when it is closed.
type listener struct {
	net.Listener
	release func()
}

func (l *listener) Close() error {
	l.release()
	return l.Listener.Close()
}
