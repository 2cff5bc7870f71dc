package probe

import (
	"encoding/binary"
	"net"
	"syscall"
	"time"
)

// receiver returns a function that reads from a socket. For sockets of the host the kernel
// reports when each datagram arrived (SO_TIMESTAMPNS). Then stamped is true, and the
// function knows the delay that a busy machine adds before the read.
func receiver(c net.PacketConn) (read receive, stamped bool) {
	udp, ok := c.(*net.UDPConn)
	if !ok || !askForStamps(udp) {
		return plainReceiver(c), false
	}
	oob := make([]byte, 128)
	return func(b []byte) (int, net.Addr, time.Duration, error) {
		n, noob, _, from, err := udp.ReadMsgUDPAddrPort(b, oob)
		if err != nil {
			return 0, nil, 0, err
		}
		return n, net.UDPAddrFromAddrPort(from), waited(oob[:noob], time.Now()), nil
	}, true
}

func askForStamps(c *net.UDPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var refused error
	err = raw.Control(func(fd uintptr) {
		refused = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_TIMESTAMPNS, 1)
	})
	return err == nil && refused == nil
}

// waited returns the time from the kernel's time stamp until now. It is 0 without a time
// stamp, and if the wall clock was set meanwhile.
func waited(oob []byte, now time.Time) time.Duration {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		if m.Header.Level != syscall.SOL_SOCKET || m.Header.Type != syscall.SCM_TIMESTAMPNS {
			continue
		}
		var came time.Time
		switch order := binary.NativeEndian; len(m.Data) { // a struct timespec
		case 16:
			came = time.Unix(int64(order.Uint64(m.Data)), int64(order.Uint64(m.Data[8:])))
		case 8:
			came = time.Unix(int64(order.Uint32(m.Data)), int64(order.Uint32(m.Data[4:])))
		default:
			continue
		}
		if late := now.Round(0).Sub(came); late > 0 && late < maxWaited {
			return late
		}
	}
	return 0
}
