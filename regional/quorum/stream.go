package quorum

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/internal/guard"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/wait"
)

const (
	// maxGreetings bounds the connections whose greeting was not read yet.
	maxGreetings = 256
	// maxStreams bounds the accepted connections, because the Raft library gives each a buffer of
	// 256 KiB. Another server opens about five.
	maxStreams = 128
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

func newStream(n network.Net, ln net.Listener, id, advertise string, log *slog.Logger) *stream {
	s := &stream{net: n, id: id, addr: address(advertise), conns: map[net.Conn]struct{}{}}
	lines := wait.NewPace(time.Second, 5)
	greeted := guard.Greeted(ln, maxGreetings, func(c net.Conn) (net.Conn, error) {
		err := s.receiveGreeting(c)
		if err == nil {
			return c, nil
		}
		if errors.Is(err, ErrOtherServer) {
			if _, allowed := lines.Take(time.Now()); allowed {
				log.Warn("a connection to Raft is refused", "from", c.RemoteAddr().String(), "error", err)
			}
		}
		_ = c.Close()
		return nil, err
	})
	s.Listener = guard.Open(greeted, maxStreams)
	return s
}

// target returns an address that includes the id of its server.
func target(id, addr string) raft.ServerAddress { return raft.ServerAddress(id + "@" + addr) }

func (s *stream) Addr() net.Addr { return s.addr }

func (s *stream) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return s.track(c)
}

// receiveGreeting reads the greeting of a connection. With an identity its first Read is the
// handshake.
func (s *stream) receiveGreeting(c net.Conn) error {
	var head [2]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	id := make([]byte, head[1])
	if _, err := io.ReadFull(c, id); err != nil {
		return err
	}
	if head[0] != greeting || string(id) != s.id {
		return fmt.Errorf("%w: %q, this is %q", ErrOtherServer, id, s.id)
	}
	return nil
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
