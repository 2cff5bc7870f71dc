package boottime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now reads CLOCK_BOOTTIME, the time since the host's boot. The clock continues while the host is
// suspended, so leases end during a suspend, too.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("read CLOCK_BOOTTIME: " + err.Error()) // only kernels older than 2.6.39 lack it
	}
	return time.Duration(ts.Nano())
}
