package tunnel

import (
	"bytes"
	"errors"
	"io"
	"net"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
)

// frameBytes bounds the data of one frame. gRPC writes as much at once, and the protocol
// allows twice as much.
const frameBytes = 32 << 10

// A tunnel is a stream of frames with a net.Pipe at each end. A pipe has no buffer, so a
// slow reader blocks copyFromStream. Then the flow control window of the stream fills up,
// which blocks Send and the writer at the other end.

// copyToStream copies the bytes of conn to the stream until one of the two ends. It
// returns nil if conn was closed.
func copyToStream(conn net.Conn, send func(*nusav1.TunnelFrame) error) error {
	buf := make([]byte, frameBytes)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			// The frame gets a copy, because an interceptor of the stream may retain the
			// message.
			if err := send(&nusav1.TunnelFrame{Data: bytes.Clone(buf[:n])}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// copyFromStream copies the bytes of the stream to conn until one of the two ends.
func copyFromStream(conn net.Conn, recv func() (*nusav1.TunnelFrame, error)) {
	for {
		frame, err := recv()
		if err != nil {
			return
		}
		if len(frame.GetData()) == 0 {
			continue
		}
		if _, err := conn.Write(frame.GetData()); err != nil {
			return
		}
	}
}

// namedConn is a connection that returns the peer's name as its addresses.
type namedConn struct {
	net.Conn
	peer string
}

func (c namedConn) LocalAddr() net.Addr  { return addr("tunnel") }
func (c namedConn) RemoteAddr() net.Addr { return addr(c.peer) }

// carriedConn is a tunnel whose outer connection has a peer that may have proved its identity.
type carriedConn struct {
	namedConn
	id    identity.ID
	known bool
}

// Carrier implements trust.Carried.
func (c carriedConn) Carrier() (identity.ID, bool) { return c.id, c.known }

type addr string

func (a addr) Network() string { return "tunnel" }
func (a addr) String() string  { return string(a) }
