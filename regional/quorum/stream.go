package quorum

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/internal/network"
)

// greeting is the first byte of every stream. After it come the length and the text of the
// id of the server for which the stream is meant.
const greeting = 1

// ErrOtherServer says that a stream was meant for another server, for example for a server
// that had this address before and lost its log. A response in place of that server would
// break its earlier votes and acknowledgements.
var ErrOtherServer = errors.New("raft stream is meant for another server")

// stream is Raft's StreamLayer over a network.Net. At the beginning of each stream it sends
// or checks the id of the server for which the stream is meant. It tracks every open
// connection, because the Raft library does not close accepted connections.
type stream struct {
	net.Listener
	net  network.Net
	id   string
	addr address

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// address is the advertised address. It may differ from the address of the listener.
type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

func newStream(n network.Net, ln net.Listener, id, advertise string) *stream {
	return &stream{Listener: ln, net: n, id: id, addr: address(advertise), conns: map[net.Conn]struct{}{}}
}

// target returns an address that includes the id of its server.
func target(id, addr string) raft.ServerAddress { return raft.ServerAddress(id + "@" + addr) }

func (s *stream) Addr() net.Addr { return s.addr }

func (s *stream) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return s.track(c, false)
}

// Dial opens a stream to an address that target returned.
func (s *stream) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, addr, found := strings.Cut(string(to), "@")
	if !found || len(id) > 255 {
		return nil, fmt.Errorf("raft address %q does not name a server", to)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := s.net.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(append([]byte{greeting, byte(len(id))}, id...)); err != nil {
		_ = c.Close()
		return nil, err
	}
	return s.track(c, true)
}

func (s *stream) track(c net.Conn, greeted bool) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	t := &tracked{Conn: c, in: s, greeted: greeted}
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
	// greeted is true once the greeting was read. Only the reader uses this field, and the
	// library reads in one goroutine.
	greeted bool
}

// Read checks the greeting before it returns the first byte. It does that in the goroutine
// of the connection, so that a silent connection does not delay others.
func (t *tracked) Read(p []byte) (int, error) {
	if !t.greeted {
		var head [2]byte
		if _, err := io.ReadFull(t.Conn, head[:]); err != nil {
			return 0, err
		}
		id := make([]byte, head[1])
		if _, err := io.ReadFull(t.Conn, id); err != nil {
			return 0, err
		}
		if head[0] != greeting || string(id) != t.in.id {
			return 0, fmt.Errorf("%w: %q, this is %q", ErrOtherServer, id, t.in.id)
		}
		t.greeted = true
	}
	return t.Conn.Read(p)
}

func (t *tracked) Close() error {
	t.in.mu.Lock()
	delete(t.in.conns, t)
	t.in.mu.Unlock()
	return t.Conn.Close()
}
