//go:build !linux

package wan

import "time"

// nap waits for a timer of the Go runtime. On these systems such timers are not rounded to
// milliseconds, so they are accurate enough.
func nap(d time.Duration) {
	<-time.After(d)
}
