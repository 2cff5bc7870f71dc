package progress

import "time"

// maxGap bounds the time between two attempts of an instance in which a region reports neither a start nor a
// back-off: after a failure, until the region has planned again, and after a back-off, until a node has begun.
const maxGap = 5 * time.Second

// Clock is the clock of healthy_deadline: since when instances of a version have been started and none has become
// healthy. An instance in its back-off is being started, too. An instance without a node is not: it may have been
// drained, and only progress_deadline counts for it. The zero Clock has not begun.
type Clock struct {
	since, gap   time.Duration
	healthy      int
	going, inGap bool
}

// Note notes at the time now how many instances are healthy, and whether one is being started. Call it whenever
// either may have changed. If more are healthy than before, one has become healthy, also if there were more at some
// earlier time: nodes may be drained one after the other.
func (c *Clock) Note(healthy int, starting bool, now time.Duration) {
	if c.inGap && now-c.gap > maxGap || healthy > c.healthy {
		*c = Clock{}
	}
	c.healthy = healthy
	switch {
	case starting && c.going:
		c.inGap = false
	case starting:
		c.since, c.going = now, true
	case c.going && !c.inGap:
		c.gap, c.inGap = now, true
	}
}

// Busy returns for how long instances have been started at the time now without one that became healthy, and not before
// the time from; 0: none is being started.
func (c *Clock) Busy(from, now time.Duration) time.Duration {
	if !c.going {
		return 0
	}
	return now - max(from, c.since)
}
