package lease

import (
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// Two clocks that are each 1 % off the true time differ by the factor slow/fast: while
// a slow clock counts 99 s, a fast one counts 101 s.
const (
	slow = 99
	fast = 101
)

// killTime is how long a kill may take after the stop time.
const killTime = time.Second

// Over returns how long a grantor waits from its last grant until nothing that the
// lease binds can be left: the holder's clock may be slow and the grantor's fast, each
// by 1 %. length is the greatest lease that may be outstanding, stop the longest time
// between the stop signal and the kill.
func Over(length, stop time.Duration) time.Duration {
	if plant.Is(plant.NoDrift) {
		return length + stop
	}
	return scale(length+stop, fast, slow) + killTime
}

// Sure returns for how long a holder may rely on a lease whose grantor adds no margin
// of its own, such as etcd: the holder's clock may be slow and the grantor's fast.
func Sure(length time.Duration) time.Duration {
	if plant.Is(plant.NoDrift) {
		return length
	}
	return length / fast * slow
}

// scale returns d × up/down, rounded up.
func scale(d time.Duration, up, down int64) time.Duration {
	whole, rest := int64(d)/down, int64(d)%down
	return time.Duration(whole*up + (rest*up+down-1)/down)
}
