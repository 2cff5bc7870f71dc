package wan

import (
	"syscall"
	"time"
)

// nap blocks the thread in the kernel, whose timers are accurate to some tens of
// microseconds. A signal may end the nap early, so callers check the clock.
func nap(d time.Duration) {
	ts := syscall.NsecToTimespec(max(int64(d), 0))
	_ = syscall.Nanosleep(&ts, nil)
}
