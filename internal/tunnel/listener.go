package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// defaultListen bounds the open tunnels of a lower tier. Usually one tunnel is open, and a
// second one for a short time when the session moves to another server.
const defaultListen = 16

// drainTimeout is how long the lower end waits until the upper end has read the last
// bytes.
const drainTimeout = 5 * time.Second

// Listener is the lower end of tunnels: a net.Listener for grpc.Server.Serve whose
// connections are tunnels. A Listener is safe for concurrent use.
type Listener struct {
	max    int
	queue  chan net.Conn
	closed chan struct{}

	mu   sync.Mutex
	open map[net.Conn]struct{}
}

// NewListener returns a listener for at most maxTunnels open tunnels; 0 means 16.
func NewListener(maxTunnels int) *Listener {
	if maxTunnels <= 0 {
		maxTunnels = defaultListen
	}
	return &Listener{max: maxTunnels, queue: make(chan net.Conn, maxTunnels), closed: make(chan struct{}), open: map[net.Conn]struct{}{}}
}

// Accept waits for the next tunnel. The error is net.ErrClosed.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	case c := <-l.queue:
		return c, nil
	}
}

// Close ends Accept and closes all open tunnels.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closed:
		return nil
	default:
	}
	close(l.closed)
	for near := range l.open {
		near.Close()
	}
	return nil
}

// Addr returns a name instead of an address.
func (l *Listener) Addr() net.Addr { return addr("tunnel") }

// enqueue queues a new connection for Accept and returns its near end. ctx is the context
// of the stream that carries the tunnel.
func (l *Listener) enqueue(ctx context.Context) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closed:
		return nil, ErrClosed
	default:
	}
	if len(l.open) >= l.max {
		return nil, fmt.Errorf("%w: %d are open", ErrTooMany, l.max)
	}
	near, far := net.Pipe()
	id, known := trust.PeerOf(ctx)
	select {
	case l.queue <- carriedConn{namedConn{far, "tunnel"}, id, known}:
		l.open[near] = struct{}{}
		return near, nil
	default:
		return nil, fmt.Errorf("%w: %d are not accepted yet", ErrTooMany, l.max)
	}
}

func (l *Listener) remove(near net.Conn) {
	near.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, near)
}

// Answer handles a TunnelRequest. It opens a Tunnel stream by open, sends the id and
// passes the connection to lis. Answer blocks until the tunnel or ctx ends, so call it in
// a goroutine of the session. It returns nil if one end closed the tunnel.
func Answer(ctx context.Context, open func(context.Context) (ClientStream, error), id string, lis *Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := open(ctx)
	if err != nil {
		return fmt.Errorf("open tunnel: %w", err)
	}
	if err := stream.Send(&nusav1.TunnelFrame{Id: id}); err != nil {
		return fmt.Errorf("open tunnel: %w", err)
	}
	near, err := lis.enqueue(stream.Context())
	if err != nil {
		return err
	}
	defer lis.remove(near)

	var broken error // read after inwardEnded
	inwardEnded := make(chan struct{})
	go func() {
		defer close(inwardEnded)
		defer near.Close()
		copyFromStream(near, func() (*nusav1.TunnelFrame, error) {
			frame, err := stream.Recv()
			if err != nil && !errors.Is(err, io.EOF) {
				broken = err
			}
			return frame, err
		})
	}()
	// The error of Send is only io.EOF. The error of Recv has the status.
	_ = copyToStream(near, stream.Send)
	near.Close()
	_ = stream.CloseSend()
	late := time.NewTimer(drainTimeout)
	defer late.Stop()
	select {
	case <-inwardEnded:
		if broken != nil {
			return fmt.Errorf("tunnel broke: %w", broken)
		}
		return nil
	case <-late.C:
	}
	cancel()
	<-inwardEnded
	return nil
}
