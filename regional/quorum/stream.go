package quorum

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/internal/network"
)

// stream is Raft's StreamLayer over a network.Net. It remembers every open
// connection, because the library leaves those it accepted to their peers.
type stream struct {
	net.Listener
	net  network.Net
	addr address

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// address is what others are told, which may differ from where it listens.
type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

func newStream(n network.Net, ln net.Listener, advertise string) *stream {
	return &stream{Listener: ln, net: n, addr: address(advertise), conns: map[net.Conn]struct{}{}}
}

func (s *stream) Addr() net.Addr { return s.addr }

func (s *stream) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return s.track(c)
}

func (s *stream) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := s.net.Dial(ctx, string(addr))
	if err != nil {
		return nil, err
	}
	return s.track(c)
}

func (s *stream) track(c net.Conn) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	t := &tracked{Conn: c, in: s}
	s.conns[t] = struct{}{}
	return t, nil
}

// Close closes the listener and every connection.
func (s *stream) Close() error {
	s.mu.Lock()
	s.closed = true
	conns := s.conns
	s.conns = map[net.Conn]struct{}{}
	s.mu.Unlock()
	for c := range conns {
		_ = c.Close()
	}
	return s.Listener.Close()
}

type tracked struct {
	net.Conn
	in *stream
}

func (t *tracked) Close() error {
	t.in.mu.Lock()
	delete(t.in.conns, t)
	t.in.mu.Unlock()
	return t.Conn.Close()
}
