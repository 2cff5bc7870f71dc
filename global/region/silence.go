package region

import "time"

// CutOffAfter is the silence after which a region without a session counts as cut off. A reconnect
// takes less time, even during an election of the global tier.
const CutOffAfter = 5 * time.Second

// CutOff returns how long a region has been silent, and whether it counts as cut off. The state of
// the instances of such a region is unknown. A region with a session counts as cut off after two
// thirds of its lease, because it sends a message in each third.
func CutOff(c Config, s State, now time.Duration) (silent time.Duration, cut bool) {
	return cutOff(&c, &s, now)
}

func cutOff(c *Config, s *State, now time.Duration) (silent time.Duration, cut bool) {
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
// reconnect; 0: the wait is over. A server that was elected just now has met no region yet, so it
// waits for one lease: a healthy region says hello to the new server within that time.
func Gone(c Config, s State, now time.Duration) time.Duration {
	within := CutOffAfter
	if !s.Met {
		within = max(within, c.Lease)
	}
	return max(0, within-s.SilentFor(now))
}

// EndsIn returns the time after which the silence of a region with a session ends that session.
func EndsIn(c Config, s State, now time.Duration) time.Duration {
	return max(0, c.Lease-(now-max(s.LastSeen, s.welcomedAt)))
}
