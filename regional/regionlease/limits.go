package regionlease

import (
	"time"

	"github.com/nusa-scheduler/nusa/internal/lease"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Limits holds what the limits in the log depend on.
type Limits struct {
	Cluster state.Cluster
	// Level is the least feature level of the region's servers.
	Level uint32
	// NodeLease is the length of the leases that this master is to grant.
	NodeLease time.Duration
	// Led is the time since this master's election. No earlier master grants anything
	// since then.
	Led time.Duration
	// RegionLease is the length of the region's lease in the present session with the global
	// tier, or in the last one; 0 = this master has had none. RegionLeaseFor is for how long
	// no session of this master has had another length.
	RegionLease, RegionLeaseFor time.Duration
	// StopTime returns the longest kill_timeout of what a lease binds: of the groups in the log,
	// and of what agents run that the log may not know after a restore.
	StopTime func() time.Duration
}

// Due returns the command that the log needs now, nil for none, and after how long to
// ask again; 0 = at the next change of Level.
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

// NodeLease returns the length of a node's lease that a master may grant: never longer
// than what the log has, so that a later master waits long enough. It returns 0 while leases
// of an earlier incarnation may last after a restore of the log: an order in the copy could
// start what another node still runs.
func NodeLease(c state.Cluster, configured time.Duration) time.Duration {
	if c.FeatureLevel == 0 {
		return configured // some server of the region cannot read the limit
	}
	if c.Recovered {
		return 0
	}
	return min(configured, c.NodeLeaseMax)
}
