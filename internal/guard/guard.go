package guard

import (
	"container/list"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/mem"
)

// The usual bounds of connections that have made no request yet.
const (
	// Limit is the time in which a connection makes its first request.
	Limit = 10 * time.Second
	// Most bounds the number of such connections of one listener.
	Most = 1024
)

// Waiting holds the connections of one listener that have made no request yet. When there are
// too many, it closes the oldest. The zero value allows none.
type Waiting struct {
	// Most bounds the connections.
	Most int

	mu     sync.Mutex
	conns  list.List // of net.Conn, the oldest first
	closed bool
}

// Enter adds a connection. The caller calls leave once the connection has made a request or is
// closed.
func (w *Waiting) Enter(c net.Conn) (leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		_ = c.Close()
	}
	if w.conns.Len() >= w.Most && w.conns.Len() > 0 {
		oldest := w.conns.Front()
		w.conns.Remove(oldest)
		_ = oldest.Value.(net.Conn).Close()
	}
	at := w.conns.PushBack(c)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.conns.Remove(at) // no effect if another connection has taken its place
	}
}

// Requests returns a listener of HTTP without encryption, and so of gRPC. It closes a connection that has made no
// request after Limit, or when there are more than most of them. A peer that acknowledges nothing
// for the time silent is gone.
func Requests(lis net.Listener, most int, silent time.Duration) net.Listener {
	return &requests{Listener: lis, silent: silent, waiting: &Waiting{Most: most}}
}

type requests struct {
	net.Listener
	silent  time.Duration
	waiting *Waiting
}

// Accept implements net.Listener.
func (l *requests) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	setUserTimeout(raw, l.silent)
	return follow(raw, l.waiting), nil
}

// followed is a connection whose first request is looked for.
type followed struct {
	net.Conn
	// request is nil once the first request was seen. Only one goroutine reads.
	request *request
	// reader is nil for a connection without a socket.
	reader *reader

	once  sync.Once
	late  *time.Timer
	leave func()
}

// follow looks for the first request of a connection.
func follow(raw net.Conn, waiting *Waiting) *followed {
	c := &followed{Conn: raw, request: &request{}, reader: newReader(raw), leave: waiting.Enter(raw)}
	c.late = time.AfterFunc(Limit, func() { _ = raw.Close() })
	return c
}

// ended says that the connection waits no longer.
func (c *followed) ended() {
	c.once.Do(func() {
		c.late.Stop()
		c.leave()
	})
}

// Read implements net.Conn.
func (c *followed) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.sensible(b[:n]) {
		return 0, net.ErrClosed
	}
	return n, err
}

// ReadOnReady waits for bytes, and returns a buffer of the pool with the bytes that were read. gRPC
// calls this method instead of Read, so that a quiet connection has no buffer.
func (c *followed) ReadOnReady(size int, pool mem.BufferPool) (buffer *[]byte, n int, err error) {
	if c.reader != nil {
		buffer, n, err = c.reader.next(size, pool)
	} else {
		buffer = pool.Get(size)
		n, err = c.Conn.Read(*buffer)
	}
	if n > 0 && !c.sensible((*buffer)[:n]) {
		n, err = 0, net.ErrClosed
	}
	if n == 0 && buffer != nil {
		pool.Put(buffer)
		buffer = nil
	}
	return buffer, n, err
}

// sensible looks for the first request in bytes that were read. It closes the connection, and returns
// false, if they cannot belong to a request.
func (c *followed) sensible(read []byte) bool {
	if c.request == nil {
		return true
	}
	switch c.request.add(read) {
	case waiting:
	case requested:
		c.request = nil
		c.ended()
	case senseless:
		_ = c.Close()
		return false
	}
	return true
}

// Close implements net.Conn.
func (c *followed) Close() error {
	c.ended()
	return c.Conn.Close()
}

// closeAll closes the connections that wait, and each that enters later.
func (w *Waiting) closeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for e := w.conns.Front(); e != nil; e = e.Next() {
		_ = e.Value.(net.Conn).Close()
	}
}

// Open returns a listener that bounds its open connections, for servers that bound the time of
// each request. One more connection closes the oldest. A connection with a method Keep counts until
// that is called.
func Open(lis net.Listener, most int) net.Listener {
	return &open{Listener: lis, conns: Waiting{Most: most}}
}

type open struct {
	net.Listener
	conns Waiting
}

// Accept implements net.Listener.
func (l *open) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &counted{Conn: raw, leave: l.conns.Enter(raw)}, nil
}

// counted is a connection that is counted until it is closed.
type counted struct {
	net.Conn
	leave func()
}

// Keep ends the bound for the connection: the server bounds in another way what it is for.
func (c *counted) Keep() { c.leave() }

// Close implements net.Conn.
func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}
