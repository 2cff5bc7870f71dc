package gossip

import (
	"bytes"
	"container/list"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// maxInbound bounds the incoming streams whose message was not read yet.
	maxInbound = 64
	// inboundLimit bounds the time in which a stream sends its message.
	inboundLimit = 5 * time.Second
)

// inbound holds incoming streams while their message is read. When there are too many, the
// oldest is closed. So a silent stream keeps nobody out.
type inbound struct {
	mu    sync.Mutex
	conns list.List // of net.Conn, the oldest first
	done  bool
	wg    sync.WaitGroup
}

// enter adds a stream. The caller calls leave when the message was read. enter returns nil after
// close.
func (i *inbound) enter(c net.Conn) (leave func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.done {
		return nil
	}
	if i.conns.Len() >= maxInbound {
		oldest := i.conns.Front()
		i.conns.Remove(oldest)
		_ = oldest.Value.(net.Conn).Close()
	}
	at := i.conns.PushBack(c)
	i.wg.Add(1)
	return func() {
		i.mu.Lock()
		i.conns.Remove(at) // no effect if another stream has taken its place
		i.mu.Unlock()
		i.wg.Done()
	}
}

// close closes all streams, and waits until nobody reads them.
func (i *inbound) close() {
	i.mu.Lock()
	i.done = true
	for e := i.conns.Front(); e != nil; e = e.Next() {
		_ = e.Value.(net.Conn).Close()
	}
	i.mu.Unlock()
	i.wg.Wait()
}

// receiveStream reads the message of an incoming stream, and passes the stream to memberlist.
func (t *transport) receiveStream(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(inboundLimit))
	text, err := readMessage(conn, t.encrypted)
	if err != nil {
		if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) { // for example a check of an open port
			t.lines.warn("a gossip stream is refused", conn.RemoteAddr().String(), err)
		}
		_ = conn.Close()
		return
	}
	select {
	case t.streams <- &readStream{Conn: conn, text: bytes.NewReader(text)}:
	default:
		_ = conn.Close()
	}
}

// readStream is a stream whose message was read already.
type readStream struct {
	net.Conn
	text *bytes.Reader
}

// Read implements net.Conn.
func (r *readStream) Read(b []byte) (int, error) {
	if r.text.Len() > 0 {
		return r.text.Read(b)
	}
	return r.Conn.Read(b)
}
