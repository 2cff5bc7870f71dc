package lease

import (
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// In 100 s a clock that is 1 % slow counts slow seconds, and a clock that is 1 % fast
// counts fast seconds. No clock is assumed to be worse.
const (
	slow = 99
	fast = 101
)

// killTime bounds how long a kill takes, after the time between stop signal and kill has
// passed.
const killTime = time.Second

// Over returns how long after its last grant a grantor waits until no process that the
// lease binds can still run. The holder's clock may be 1 % slow and the grantor's 1 %
// fast. length is the longest lease that may be outstanding. stop is the longest time
// between the stop signal and the kill.
func Over(length, stop time.Duration) time.Duration {
	if plant.Is(plant.NoDrift) {
		return length + stop
	}
	return scale(length+stop, fast, slow) + killTime
}

// Sure returns for how long a holder may rely on a lease whose grantor adds no margin for
// clocks, as etcd does not. The holder's clock may be 1 % slow and the grantor's 1 % fast.
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
