package tunnel

import (
	"bytes"
	"errors"
	"io"
	"net"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// frameBytes is the most data of one frame: what gRPC writes at once, and half
// of what the wire allows.
const frameBytes = 32 << 10

// A tunnel is a stream of frames with a net.Pipe at each end. The pipe has no
// buffer, so a slow reader stops inward, then Recv, then the stream's flow
// control window, then Send and the writer at the other end.

// copyToStream copies conn to the stream until either ends: nil when conn was
// closed.
func copyToStream(conn net.Conn, send func(*nusav1.TunnelFrame) error) error {
	buf := make([]byte, frameBytes)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			// A copy: whoever observes the stream may keep the message.
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

// namedConn is a connection whose addresses are the peer's name.
type namedConn struct {
	net.Conn
	peer string
}

func (c namedConn) LocalAddr() net.Addr  { return addr("tunnel") }
func (c namedConn) RemoteAddr() net.Addr { return addr(c.peer) }

type addr string

func (a addr) Network() string { return "tunnel" }
func (a addr) String() string  { return string(a) }
