package progress

import "time"

// maxGap bounds the time between two attempts of an instance in which a region reports neither a start nor a
// back-off: after a failure, until the region has planned again, and after a back-off, until a node has begun.
const maxGap = 5 * time.Second

// Clock is the clock of healthy_deadline: since when instances of a version are being started. An instance in
// its back-off is being started, too. An instance without a node is not: it may have been drained, and only
// progress_deadline counts for it. The zero Clock has not begun.
type Clock struct {
	since, gap   time.Duration
	going, inGap bool
}

// Note notes at the time now whether an instance is being started. Call it whenever that may have changed.
func (c *Clock) Note(starting bool, now time.Duration) {
	if c.inGap && now-c.gap > maxGap {
		*c = Clock{}
	}
	switch {
	case starting && c.going:
		c.inGap = false
	case starting:
		*c = Clock{since: now, going: true}
	case c.going && !c.inGap:
		c.gap, c.inGap = now, true
	}
}

// Busy returns how long instances have been started at the time now, and not before the time from; 0: none is.
func (c *Clock) Busy(from, now time.Duration) time.Duration {
	if !c.going {
		return 0
	}
	return now - max(from, c.since)
}
