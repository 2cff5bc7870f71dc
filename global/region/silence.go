package region

import "time"

// CutOffAfter is the silence after which a region without a session counts as cut
// off. A reconnect takes less, also through an election of the global tier.
const CutOffAfter = 5 * time.Second

// CutOff returns for how long a region has been silent, and whether it counts as cut
// off: what its instances do is unknown then. A region with a session counts as cut off
// after two thirds of its lease, because it sends something in each third.
func CutOff(c Config, s State, now time.Duration) (silent time.Duration, cut bool) {
	if s.ClusterID == "" {
		return 0, false // no cluster has ever connected under the name
	}
	silent = s.SilentFor(now)
	if s.Connected() {
		return silent, silent > c.Lease*2/3
	}
	return silent, silent > CutOffAfter
}

// Gone returns how long to wait until a region without a session is certainly not about to
// reconnect; 0 = it is gone now. A server that was elected just now knows no region. A region
// that is well says hello to the new server before its lease is over.
func Gone(c Config, s State, now time.Duration) time.Duration {
	within := CutOffAfter
	if !s.Met {
		within = max(within, c.Lease)
	}
	return max(0, within-s.SilentFor(now))
}
