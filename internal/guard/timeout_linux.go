package guard

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout bounds the time in which the peer acknowledges what was sent. gRPC does so for
// the connections of package net only.
func setUserTimeout(c net.Conn, limit time.Duration) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit/time.Millisecond))
	})
}
