package boottime

import (
	"sync/atomic"
	"time"
)

const (
	// trusted is for how long of the monotonic clock a Clock uses what it has read of CLOCK_BOOTTIME.
	trusted = time.Millisecond
	// jitter is the greatest difference that two readings of the wall clock and the monotonic clock, one after
	// the other, usually have. A greater one shows that the host was suspended, or that an operator has set the
	// wall clock.
	jitter = 50 * time.Microsecond
)

// Clock reads the same time as Now, mostly without a system call: it adds to the monotonic clock what
// CLOCK_BOOTTIME is ahead of it. Only a suspend of the host changes that distance. Time never goes back, and is never
// ahead of CLOCK_BOOTTIME. A Clock is safe for concurrent use.
//
// The server that grants leases depends on the following: if a reading began after a message has arrived, then
// the reading is not earlier than the message. So a grant never answers a request that was sent after the end of the
// server's candidacy. A suspend could break that: the server would add the old distance. But a suspend also moves the
// wall clock by its length, and each reading compares the wall clock with the monotonic one. So the first reading
// after a suspend reads CLOCK_BOOTTIME. If a process has set the wall clock back by the same length meanwhile, the
// distance is old for at most one millisecond. Without a suspend a reading is late by as much as the process was
// interrupted when it last read CLOCK_BOOTTIME. The second that lease.Over adds covers this.
type Clock struct {
	clocks func() (wall, monotonic time.Duration)
	boot   func() time.Duration
	latest atomic.Pointer[distance]
}

// distance is how far CLOCK_BOOTTIME and the wall clock are ahead of the monotonic clock. at is the time of the
// monotonic clock when the two were read.
type distance struct{ boot, wall, at time.Duration }

// NewClock returns a Clock.
func NewClock() *Clock {
	began := time.Now()
	return newClock(func() (wall, monotonic time.Duration) {
		now := time.Now()
		return time.Duration(now.UnixNano()), now.Sub(began)
	}, Now)
}

func newClock(clocks func() (wall, monotonic time.Duration), boot func() time.Duration) *Clock {
	c := &Clock{clocks: clocks, boot: boot}
	wall, monotonic := clocks()
	c.latest.Store(c.measure(wall, monotonic))
	return c
}

// Now returns the time since the host's boot.
func (c *Clock) Now() time.Duration {
	wall, monotonic := c.clocks()
	d := c.latest.Load()
	if monotonic-d.at < trusted && (wall-monotonic-d.wall).Abs() < jitter {
		return monotonic + d.boot
	}
	next := c.measure(wall, monotonic)
	for {
		// The greatest distance that was ever measured is the best: each measured one is at most the true one, and the
		// true one never decreases.
		next.boot = max(next.boot, d.boot)
		if c.latest.CompareAndSwap(d, next) {
			return monotonic + next.boot
		}
		d = c.latest.Load()
	}
}

// measure reads CLOCK_BOOTTIME after the two given clocks, and before the monotonic clock. So a suspend
// meanwhile makes the distance of the wall clock differ at the next reading, and the distance of CLOCK_BOOTTIME is not
// too great.
func (c *Clock) measure(wall, monotonic time.Duration) *distance {
	boot := c.boot()
	_, after := c.clocks()
	return &distance{boot: boot - after, wall: wall - monotonic, at: monotonic}
}
