// Package counts does the arithmetic of instance counts, the same at every
// tier.
package counts

import nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"

// Live is how many instances the counts speak of, those that somebody wanted
// stopped left out.
func Live(c *nusav1.InstanceCounts) int32 {
	return c.GetPending() + c.GetStarting() + c.GetRunning() + c.GetComplete() + c.GetFailed() + c.GetLost()
}

// MoveSurplusToStopping moves what there is beyond the wanted instances to those that are
// being stopped: a region counts both alike. What runs goes first, since what
// is no longer wanted has mostly been up for long.
func MoveSurplusToStopping(c *nusav1.InstanceCounts, wanted int32) {
	surplus := Live(c) - wanted
	for _, n := range []*int32{&c.Running, &c.Starting, &c.Lost} {
		k := max(0, min(surplus, *n))
		*n -= k
		c.Stopping += k
		surplus -= k
	}
	c.Outdated = min(c.Outdated, c.Starting+c.Running)
}

// Add adds c to a sum.
func Add(sum, c *nusav1.InstanceCounts) {
	sum.Pending += c.GetPending()
	sum.Starting += c.GetStarting()
	sum.Running += c.GetRunning()
	sum.Complete += c.GetComplete()
	sum.Failed += c.GetFailed()
	sum.Stopped += c.GetStopped()
	sum.Lost += c.GetLost()
	sum.Outdated += c.GetOutdated()
	sum.Stopping += c.GetStopping()
}
