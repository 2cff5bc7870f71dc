package wan

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// maxInFlight bounds the bytes of one direction of a stream that are in flight or not
	// read yet. Further writes block. With 150 ms in one direction the bound still allows
	// 28 MB/s.
	maxInFlight = 4 << 20
	// readChunk bounds the bytes that one read of the inner connection returns.
	readChunk = 64 << 10
	// linger bounds the time in which a closed stream still writes to a peer that does not
	// read.
	linger = 5 * time.Second
)

// packet is a part of what is sent in one direction of a stream: bytes, or the end.
type packet struct {
	data []byte
	due  time.Time
	end  error // io.EOF: the direction ends; net.ErrClosed: the stream is closed; otherwise a read error
}

// line is one direction of a stream. Its fields are guarded by mu.
type line struct {
	mu       sync.Mutex
	changed  *sync.Cond
	queue    []packet // in flight
	ready    [][]byte // arrived and not read yet (incoming line only)
	held     int      // the number of bytes in queue and ready
	writeErr error    // set when writes have ended (outgoing line only)
	err      error    // set when no more packets arrive
	timer    *time.Timer
	timerID  int // identifies the present deadline
	expired  bool
}

func newLine() *line {
	l := &line{}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// push queues a packet. Packets never overtake one another: a packet that is due before
// its predecessor waits for the predecessor. l.mu is held.
func (l *line) push(p packet, delay time.Duration) {
	p.due = time.Now().Add(delay)
	l.held += len(p.data)
	l.queue = append(l.queue, p)
	l.changed.Broadcast()
}

// head waits for the next packet. It returns false if there are no more packets.
func (l *line) head() (packet, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) == 0 && l.err == nil {
		l.changed.Wait()
	}
	if l.err != nil {
		return packet{}, false
	}
	return l.queue[0], true
}

// pop removes the first packet. With keep, which is for the incoming line, the bytes of
// the packet become ready to be read.
func (l *line) pop(keep bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	p := l.queue[0]
	l.queue[0] = packet{}
	l.queue = l.queue[1:]
	switch {
	case !keep:
		l.held -= len(p.data)
	case len(p.data) > 0:
		l.ready = append(l.ready, p.data)
	}
	if keep {
		l.err = p.end
	}
	l.changed.Broadcast()
}

// fail ends the line with an error, and drops its contents.
func (l *line) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err, l.writeErr = err, err
	l.queue, l.ready, l.held = nil, nil, 0
	l.changed.Broadcast()
}

// setDeadline sets the deadline as net.Conn does. The zero time means no deadline. A
// deadline in the past expires at once.
func (l *line) setDeadline(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timerID++
	l.expired = false
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		l.expired = true
		l.changed.Broadcast()
		return
	}
	id := l.timerID
	l.timer = time.AfterFunc(left, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.timerID == id {
			l.expired = true
			l.changed.Broadcast()
		}
	})
}

// stream is a dialled connection whose bytes take half a round trip in each direction. Its
// three goroutines run send, receive and deliver. They end when the stream was closed and
// its written bytes have arrived, or when the WAN is closed.
type stream struct {
	net.Conn // inner
	wan      *WAN
	path     pair
	out, in  *line
	once     sync.Once
	closed   chan struct{} // closed by Close
}

// wrap makes a stream from a dialled connection and starts its goroutines.
func (w *WAN) wrap(path pair, inner net.Conn) (net.Conn, error) {
	s := &stream{Conn: inner, wan: w, path: path, out: newLine(), in: newLine(), closed: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closedLocked() {
		inner.Close()
		return nil, ErrClosed
	}
	w.open[s] = struct{}{}
	w.running.Go(s.send)
	w.running.Go(s.receive)
	w.running.Go(s.deliver)
	return s, nil
}

// half returns the present delay in one direction. It is 0 if there is no route; then
// arrive waits for a route.
func (s *stream) half() time.Duration {
	rtt, _ := s.wan.RTT(s.path.from, s.path.to)
	return rtt / 2
}

// arrive waits until the packet is due. It returns false if the WAN is closed before.
func (s *stream) arrive(p packet) bool {
	return s.wan.ticks.sleep(p.due, nil, s.wan.done) && s.wan.awaitPath(s.path, nil)
}

// Write queues bytes. It blocks while maxInFlight bytes are in flight.
func (s *stream) Write(b []byte) (int, error) {
	delay := s.half()
	l := s.out
	l.mu.Lock()
	defer l.mu.Unlock()
	written := 0
	for {
		for l.held >= maxInFlight && l.writeErr == nil && !l.expired {
			l.changed.Wait()
		}
		switch {
		case l.writeErr != nil:
			return written, l.writeErr
		case l.expired:
			return written, os.ErrDeadlineExceeded
		}
		n := min(len(b)-written, maxInFlight-l.held)
		if n > 0 {
			l.push(packet{data: append([]byte(nil), b[written:written+n]...)}, delay)
		}
		written += n
		if written == len(b) {
			return written, nil
		}
	}
}

// send writes due packets to the inner connection, and closes that connection at the end.
func (s *stream) send() {
	defer s.forget()
	for {
		p, ok := s.out.head()
		if !ok || !s.arrive(p) {
			break
		}
		if p.end == net.ErrClosed {
			return
		}
		if err := s.handOver(p); err != nil {
			s.out.fail(err)
			break
		}
		s.out.pop(false)
	}
	// Writing has failed, but there may be bytes that were not read yet.
	select {
	case <-s.closed:
	case <-s.wan.done:
	}
}

func (s *stream) handOver(p packet) error {
	if p.end == io.EOF {
		if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
			return half.CloseWrite()
		}
		return nil
	}
	select {
	case <-s.closed:
		s.Conn.SetWriteDeadline(time.Now().Add(linger))
	default:
	}
	_, err := s.Conn.Write(p.data)
	return err
}

func (s *stream) forget() {
	s.Conn.Close()
	s.wan.mu.Lock()
	defer s.wan.mu.Unlock()
	delete(s.wan.open, s)
}

// CloseWrite ends the outgoing direction. Bytes that were written before still arrive.
func (s *stream) CloseWrite() error {
	return s.endWrites(io.EOF)
}

// endWrites ends the outgoing direction by a packet with the mark as its end.
func (s *stream) endWrites(mark error) error {
	delay := s.half()
	l := s.out
	l.mu.Lock()
	defer l.mu.Unlock()
	if mark == io.EOF && l.writeErr != nil {
		return l.writeErr
	}
	l.writeErr = net.ErrClosed
	if l.err == nil {
		l.push(packet{end: mark}, delay)
	}
	return nil
}

// Close ends reading at once. Bytes that were written before still arrive. Then the inner
// connection is closed.
func (s *stream) Close() error {
	err := net.ErrClosed
	s.once.Do(func() {
		s.in.setDeadline(time.Time{})
		s.out.setDeadline(time.Time{})
		s.in.fail(net.ErrClosed)
		s.Conn.SetWriteDeadline(time.Now().Add(s.half() + linger))
		close(s.closed)
		err = s.endWrites(net.ErrClosed)
	})
	return err
}

// abort ends the stream at once.
func (s *stream) abort() {
	s.in.fail(ErrClosed)
	s.out.fail(ErrClosed)
	s.Conn.Close()
}

// receive reads from the inner connection and queues the bytes for delivery. After Close
// it continues to read but drops the bytes, because unread bytes would turn the close into
// a reset.
func (s *stream) receive() {
	l := s.in
	buf := make([]byte, readChunk)
	for {
		n, err := s.Conn.Read(buf)
		delay := s.half()
		l.mu.Lock()
		if n > 0 && l.err == nil {
			l.push(packet{data: append([]byte(nil), buf[:n]...)}, delay)
		}
		if err != nil && l.err == nil {
			l.push(packet{end: err}, delay)
		}
		for err == nil && l.held >= maxInFlight && l.err == nil {
			l.changed.Wait()
		}
		l.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// deliver makes packets readable when they are due.
func (s *stream) deliver() {
	for {
		p, ok := s.in.head()
		if !ok || !s.arrive(p) {
			return
		}
		s.in.pop(true)
	}
}

func (s *stream) Read(b []byte) (int, error) {
	l := s.in
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.expired:
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		case len(l.ready) > 0:
			n := copy(b, l.ready[0])
			l.ready[0] = l.ready[0][n:]
			if len(l.ready[0]) == 0 {
				l.ready[0] = nil
				l.ready = l.ready[1:]
			}
			l.held -= n
			l.changed.Broadcast()
			return n, nil
		case l.err != nil:
			return 0, l.err
		}
		l.changed.Wait()
	}
}

// SetDeadline sets both deadlines.
func (s *stream) SetDeadline(t time.Time) error {
	s.in.setDeadline(t)
	s.out.setDeadline(t)
	return nil
}

// SetReadDeadline sets the time at which a Read that waits for bytes returns.
func (s *stream) SetReadDeadline(t time.Time) error {
	s.in.setDeadline(t)
	return nil
}

// SetWriteDeadline sets the time at which a Write that waits for room returns.
func (s *stream) SetWriteDeadline(t time.Time) error {
	s.out.setDeadline(t)
	return nil
}
