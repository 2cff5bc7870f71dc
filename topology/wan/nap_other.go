//go:build !linux

package wan

import "time"

// nap waits on the runtime's timer, which is accurate enough where it is not
// rounded to milliseconds.
func nap(d time.Duration) {
	<-time.After(d)
}
