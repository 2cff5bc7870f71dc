package simnet

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// listener accepts streams.
type listener struct {
	n       *Network
	host    *host
	port    int
	cond    *sync.Cond
	closed  bool
	waiting []*end
}

func (n *Network) listen(h *host, addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	port, err := h.bind(addr, func(p int) bool { return h.streams[p] != nil })
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Err: err}
	}
	l := &listener{n: n, host: h, port: port, cond: sync.NewCond(&n.mu)}
	h.streams[port] = l
	return l, nil
}

// Accept waits for a stream.
func (l *listener) Accept() (net.Conn, error) {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	for !l.closed && len(l.waiting) == 0 {
		l.cond.Wait()
	}
	if l.closed {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
	}
	e := l.waiting[0]
	l.waiting = l.waiting[1:]
	return e, nil
}

// Close resets the streams that wait for Accept.
func (l *listener) Close() error {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	if l.host.streams[l.port] == l {
		delete(l.host.streams, l.port)
	}
	l.closed = true
	for _, e := range l.waiting {
		e.broken = true
		e.peer.cond.Broadcast()
		e.forget()
	}
	l.waiting = nil
	l.cond.Broadcast()
	return nil
}

func (l *listener) Addr() net.Addr { return l.host.tcp(l.port) }

func (n *Network) dial(ctx context.Context, h *host, addr string) (net.Conn, error) {
	ip, port, err := resolve(h, addr)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
	}
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.ParseIP(ip), Port: port}, Err: err}
	}
	if err := n.reach(ctx, h, ip); err != nil {
		return fail(err)
	}
	// A dial takes the time of SYN and SYN-ACK.
	trip := time.NewTimer(n.opts.Latency(h.name, ip) + n.opts.Latency(ip, h.name))
	defer trip.Stop()
	select {
	case <-ctx.Done():
		return fail(ctx.Err())
	case <-trip.C:
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	to := n.hosts[ip]
	switch {
	case h.dead:
		return fail(net.ErrClosed)
	case to == nil || to.streams[port] == nil || len(to.streams[port].waiting) >= backlog:
		return fail(os.NewSyscallError("connect", syscall.ECONNREFUSED))
	}
	l := to.streams[port]
	near := &end{n: n, host: h, local: h.tcp(h.next), cond: sync.NewCond(&n.mu)}
	h.next++
	far := &end{n: n, host: to, local: to.tcp(port), cond: sync.NewCond(&n.mu)}
	near.peer, far.peer = far, near
	n.ends[near], n.ends[far] = struct{}{}, struct{}{}
	l.waiting = append(l.waiting, far)
	l.cond.Broadcast()
	return near, nil
}

// reach waits until no cut is between h and ip.
func (n *Network) reach(ctx context.Context, h *host, ip string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, dialPatience, syscall.ETIMEDOUT)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.changed.Broadcast()
	})
	defer stop()
	n.mu.Lock()
	defer n.mu.Unlock()
	for !h.dead && ctx.Err() == nil && n.cuts[pair(h.name, ip)] {
		n.changed.Wait()
	}
	if h.dead {
		return net.ErrClosed
	}
	return context.Cause(ctx)
}

// end is one end of a stream, with the queue of the data that travels to this end.
type end struct {
	n     *Network
	host  *host
	local *net.TCPAddr
	peer  *end
	cond  *sync.Cond

	queue  []segment
	queued int
	// dropped counts the bytes that were written after the close of the peer and before its arrival.
	dropped int
	// lastDue is when the last segment arrives. It keeps segments in order when the latency
	// changes.
	lastDue time.Time
	// The owner sets closed, and the network sets broken. A broken end neither sends nor receives.
	closed, broken bool
	finDue         time.Time // when the close of the peer arrives; zero: the peer is open

	readDeadline, writeDeadline time.Time
}

type segment struct {
	due  time.Time
	data []byte
}

// Read waits for data.
func (e *end) Read(b []byte) (int, error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	for {
		now := time.Now()
		up := e.n.up(e.host, e.peer.host)
		switch {
		case e.closed:
			return 0, e.fail("read", net.ErrClosed)
		case e.broken:
			return 0, e.fail("read", os.NewSyscallError("read", syscall.ECONNRESET))
		case past(e.readDeadline, now):
			return 0, e.fail("read", os.ErrDeadlineExceeded)
		case len(b) == 0:
			return 0, nil
		case up && len(e.queue) > 0 && !now.Before(e.queue[0].due):
			return e.take(b), nil
		case up && e.peer.broken:
			return 0, e.fail("read", os.NewSyscallError("read", syscall.ECONNRESET))
		case up && len(e.queue) == 0 && past(e.finDue, now):
			return 0, io.EOF
		}
		wake := e.readDeadline
		switch {
		case !up:
		case len(e.queue) > 0:
			wake = earlier(wake, e.queue[0].due)
		default:
			wake = earlier(wake, e.finDue)
		}
		waitUntil(e.cond, wake)
	}
}

func (e *end) take(b []byte) int {
	s := &e.queue[0]
	k := copy(b, s.data)
	s.data = s.data[k:]
	if len(s.data) == 0 {
		e.queue = e.queue[1:]
	}
	e.queued -= k
	e.peer.cond.Broadcast() // the peer may wait for space in the window
	return k
}

// Write waits for space in the window.
func (e *end) Write(b []byte) (int, error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if e.n.tap != nil && !e.closed && !e.broken && !e.n.tap(Write{From: e.local.String(), To: e.peer.local.String(), Bytes: len(b)}) {
		e.broken, e.peer.broken = true, true
		e.cond.Broadcast()
		e.peer.cond.Broadcast()
	}
	written := 0
	for {
		now := time.Now()
		up := e.n.up(e.host, e.peer.host)
		switch {
		case e.closed:
			return written, e.fail("write", net.ErrClosed)
		case e.broken, up && e.peerIsGone(now):
			return written, e.fail("write", os.NewSyscallError("write", syscall.ECONNRESET))
		case past(e.writeDeadline, now):
			return written, e.fail("write", os.ErrDeadlineExceeded)
		case written == len(b):
			return written, nil
		}
		if up && e.peer.closed { // the peer drops the data, and its close has not arrived here
			k := min(window-e.dropped, len(b)-written)
			written, e.dropped = written+k, e.dropped+k
			if written < len(b) {
				waitUntil(e.cond, earlier(e.writeDeadline, e.finDue))
			}
			continue
		}
		if free := window - e.peer.queued; free > 0 {
			k := min(free, len(b)-written)
			e.send(now, b[written:written+k])
			written += k
			continue
		}
		waitUntil(e.cond, e.writeDeadline)
	}
}

// peerIsGone reports whether the close of the peer has arrived here. From then on a read returns data or an error, and
// never waits. A write must not fail earlier: gRPC ends its writer at a failed write, and uses the connection until
// its reader ends.
func (e *end) peerIsGone(now time.Time) bool {
	return e.peer.broken || e.peer.closed && past(e.finDue, now)
}

func (e *end) send(now time.Time, data []byte) {
	p := e.peer
	p.lastDue = later(p.lastDue, now.Add(e.n.opts.Latency(e.host.name, p.host.name)))
	p.queue = append(p.queue, segment{due: p.lastDue, data: append([]byte(nil), data...)})
	p.queued += len(data)
	p.cond.Broadcast()
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Close lets the peer read the written data and then the end of the stream.
func (e *end) Close() error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	e.queue, e.queued = nil, 0
	p := e.peer
	p.finDue = later(p.lastDue, time.Now().Add(e.n.opts.Latency(e.host.name, p.host.name)))
	e.cond.Broadcast()
	p.cond.Broadcast()
	e.forget()
	return nil
}

// forget removes a stream that is closed at both ends. The caller holds n.mu.
func (e *end) forget() {
	if (e.closed || e.broken) && (e.peer.closed || e.peer.broken) {
		delete(e.n.ends, e)
		delete(e.n.ends, e.peer)
	}
}

func (e *end) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: e.local, Addr: e.peer.local, Err: err}
}

func (e *end) LocalAddr() net.Addr  { return e.local }
func (e *end) RemoteAddr() net.Addr { return e.peer.local }

func (e *end) SetDeadline(t time.Time) error { return e.setDeadlines(&t, &t) }

func (e *end) SetReadDeadline(t time.Time) error { return e.setDeadlines(&t, nil) }

func (e *end) SetWriteDeadline(t time.Time) error { return e.setDeadlines(nil, &t) }

func (e *end) setDeadlines(read, write *time.Time) error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if read != nil {
		e.readDeadline = *read
	}
	if write != nil {
		e.writeDeadline = *write
	}
	e.cond.Broadcast()
	return nil
}
