package regionlease

import (
	"time"

	"github.com/nusa-scheduler/nusa/internal/lease"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Limits is the input for Due: everything that the limits in the log depend on.
type Limits struct {
	Cluster state.Cluster
	// Level is the least feature level of the region's servers.
	Level uint32
	// NodeLease is the configured length of a node's lease.
	NodeLease time.Duration
	// Led is the time since this master's election. Earlier masters have granted no lease
	// since the election.
	Led time.Duration
	// RegionLease is the length of the region's lease in the present or latest session with
	// the global tier. 0: this master has had no session. RegionLeaseFor is for how long
	// all sessions of this master have had that length.
	RegionLease, RegionLeaseFor time.Duration
	// StopTime returns the longest kill_timeout of the tasks that a lease binds. It
	// includes groups in the log, and tasks of agents that the log may not know after a
	// restore.
	StopTime func() time.Duration
}

// Due returns the command that the log needs now, nil for none. It also returns the time
// until the next call is due. 0: only a change of Level can make one due.
func (l Limits) Due() (*state.SetLimits, time.Duration) {
	c := l.Cluster
	cmd := state.SetLimits{FeatureLevel: max(c.FeatureLevel, l.Level)}
	if cmd.FeatureLevel == 0 {
		return nil, 0
	}
	again := time.Duration(0)
	wait := func(since, until time.Duration) bool {
		left := until - since
		if left > 0 && (again == 0 || left < again) {
			again = left
		}
		return left <= 0
	}
	switch {
	case l.NodeLease > c.NodeLeaseMax:
		cmd.NodeLease = l.NodeLease
	case l.NodeLease < c.NodeLeaseMax && wait(l.Led, lease.Over(c.NodeLeaseMax, l.StopTime())):
		cmd.NodeLease = l.NodeLease
	}
	if c.Recovered {
		longest := max(c.NodeLeaseMax, l.NodeLease, c.RegionLeaseMax)
		cmd.LeasesOver = wait(l.Led, lease.Over(longest, l.StopTime()))
	}
	if l.RegionLease > 0 && l.RegionLease < c.RegionLeaseMax && wait(l.RegionLeaseFor, lease.Over(c.RegionLeaseMax, l.StopTime())) {
		cmd.RegionLease, cmd.LeadershipNonce = l.RegionLease, c.LeadershipNonce
	}
	if cmd == (state.SetLimits{FeatureLevel: c.FeatureLevel}) {
		return nil, again
	}
	return &cmd, again
}

// NodeLease returns how long a node's lease may be. It is never longer than the limit in
// the log, so that a later master waits long enough for the end of the lease. It is 0 after
// a restore of the log, while leases of an earlier incarnation may last: an order in the
// copy could start an instance that another node still runs.
func NodeLease(c state.Cluster, configured time.Duration) time.Duration {
	if c.FeatureLevel == 0 {
		return configured // a server of the region cannot read the limit
	}
	if c.Recovered {
		return 0
	}
	return min(configured, c.NodeLeaseMax)
}
