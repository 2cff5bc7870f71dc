//go:build !linux

package guard

import (
	"net"
	"time"
)

// setUserTimeout does nothing on this system.
func setUserTimeout(net.Conn, time.Duration) {}
