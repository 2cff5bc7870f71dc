package counts

import nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"

// Live returns the number of instances in all states except stopped, stopping, unknown and held.
func Live(c *nusav1.InstanceCounts) int32 {
	return c.GetPending() + c.GetStarting() + c.GetRunning() + c.GetComplete() + c.GetFailed() + c.GetLost()
}

// MoveSurplusToStopping moves the instances beyond the wanted number to Stopping. Regions
// do not count unwanted instances separately. Running instances are moved first, because
// an unwanted instance has usually run for long.
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

// OfVersion returns how many instances in a region run the version that is rolled out, at least, and how many others start
// with it, at most. Outdated instances run or start, so an instance of an earlier version that starts again and again may
// count as a starting one only in a region that has the version.
func OfVersion(c *nusav1.InstanceCounts) (running, starting int32) {
	running = max(0, c.GetRunning()-c.GetOutdated())
	return running, max(0, c.GetRunning()+c.GetStarting()-c.GetOutdated()-running)
}

// Add adds c to sum.
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
	sum.Unknown += c.GetUnknown()
	sum.Held += c.GetHeld()
}
