package probe

import (
	"net"
	"time"
)

// maxWaited is the longest plausible time that a datagram waits to be read. A longer time
// shows that the wall clock was set.
const maxWaited = time.Minute

// receive reads a datagram. waited is how long the datagram waited to be read; 0 if
// unknown.
type receive func(b []byte) (n int, from net.Addr, waited time.Duration, err error)

func plainReceiver(c net.PacketConn) receive {
	return func(b []byte) (int, net.Addr, time.Duration, error) {
		n, from, err := c.ReadFrom(b)
		return n, from, 0, err
	}
}
