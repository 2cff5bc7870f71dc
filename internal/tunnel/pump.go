package tunnel

import (
	"bytes"
	"errors"
	"io"
	"net"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// frameBytes is the most data in one frame: as much as gRPC writes at once, and half
// of the bound on the wire.
const frameBytes = 32 << 10

// A tunnel is a stream of frames with a net.Pipe at each end. The pipe has no buffer,
// so a slow reader stops copyFromStream, then Recv, then the flow control window of
// the stream, then Send and the writer at the other end.

// copyToStream copies conn to the stream until either ends. It returns nil when conn
// was closed.
func copyToStream(conn net.Conn, send func(*nusav1.TunnelFrame) error) error {
	buf := make([]byte, frameBytes)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			// A copy: an interceptor of the stream may keep the message.
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

// copyFromStream copies the stream to conn until either ends.
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

type addr string

func (a addr) Network() string { return "tunnel" }
func (a addr) String() string  { return string(a) }
