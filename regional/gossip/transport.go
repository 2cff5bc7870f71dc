package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/internal/network"
)

const (
	// packetQueue and streamQueue bound the packets and streams that wait for memberlist.
	// When a queue is full, further packets are dropped, like in a network, and further
	// streams are closed.
	packetQueue = 256
	streamQueue = 16
	// maxPacket is the size of the receive buffer. No UDP payload is larger.
	maxPacket = 64 << 10
)

// transport is memberlist's Transport over a network.Net.
type transport struct {
	net   network.Net
	lines *lines
	ln    net.Listener
	pc    net.PacketConn
	// encrypted: memberlist has keys, and refuses what is not encrypted.
	encrypted bool
	packets   chan *memberlist.Packet
	streams   chan net.Conn
	inbound   inbound
	ip        net.IP
	port      int
	once      sync.Once
}

// listen opens both sockets on the same port. With port 0 the network chooses a port for
// streams. If that port is in use for packets, listen tries again with another one.
func listen(ctx context.Context, n network.Net, addr string, log *slog.Logger, encrypted bool) (*transport, error) {
	var err error
	for range 8 {
		var ln net.Listener
		ln, err = n.Listen(ctx, addr)
		if err != nil {
			return nil, err
		}
		var pc net.PacketConn
		pc, err = n.ListenPacket(ctx, ln.Addr().String())
		if err == nil {
			return &transport{
				net: n, lines: &lines{log: log}, ln: ln, pc: pc, encrypted: encrypted,
				packets: make(chan *memberlist.Packet, packetQueue),
				streams: make(chan net.Conn, streamQueue),
			}, nil
		}
		_ = ln.Close()
		if _, port, _ := net.SplitHostPort(addr); port != "0" {
			break
		}
	}
	return nil, err
}

// run receives packets and accepts streams until ctx ends.
func (t *transport) run(ctx context.Context) error {
	grp, ctx := errgroup.WithContext(ctx)
	grp.Go(func() error { return t.receive(ctx) })
	grp.Go(func() error { return t.accept(ctx) })
	grp.Go(func() error {
		<-ctx.Done()
		t.close()
		return nil
	})
	err := grp.Wait()
	t.inbound.close()
	for {
		select {
		case c := <-t.streams: // memberlist no longer reads the queued streams
			_ = c.Close()
		default:
			return err
		}
	}
}

func (t *transport) receive(ctx context.Context) error {
	buf := make([]byte, maxPacket)
	for {
		n, from, err := t.pc.ReadFrom(buf)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("gossip: receive: %w", err)
		}
		if !t.encrypted && !plainPacket(buf[:n]) {
			t.lines.warn("a gossip packet is refused", from.String(), errMessage)
			continue
		}
		p := &memberlist.Packet{Buf: append([]byte(nil), buf[:n]...), From: from, Timestamp: time.Now()}
		select {
		case t.packets <- p:
		default: // dropped, like in a network
		}
	}
}

func (t *transport) accept(ctx context.Context) error {
	for {
		conn, err := t.ln.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("gossip: accept: %w", err)
		}
		leave := t.inbound.enter(conn)
		if leave == nil {
			_ = conn.Close()
			return nil
		}
		go func() {
			defer leave()
			t.receiveStream(conn)
		}()
	}
}

func (t *transport) close() {
	t.once.Do(func() {
		_ = t.ln.Close()
		_ = t.pc.Close()
	})
}

// FinalAdvertiseAddr returns the address that create resolved.
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) { return t.ip, t.port, nil }

// WriteTo sends a packet.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		return time.Time{}, err
	}
	_, err = t.pc.WriteTo(b, to)
	return time.Now(), err
}

// DialTimeout opens a stream.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return t.net.Dial(ctx, addr)
}

// PacketCh delivers received packets.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh delivers accepted streams.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown closes the sockets.
func (t *transport) Shutdown() error {
	t.close()
	return nil
}
