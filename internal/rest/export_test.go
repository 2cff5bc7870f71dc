package rest

import "time"

// SetSlowest sets how long a write may take, and returns a function that undoes that.
func SetSlowest(d time.Duration) (undo func()) {
	slowest = d
	return func() { slowest = slowestUsual }
}
