package regionlease

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/lease"
	"github.com/nusa-scheduler/nusa/regional/state"
)

func TestLimits(t *testing.T) {
	const kill = 5 * s
	over := lease.Over(60*s, kill)
	shorter := state.Cluster{FeatureLevel: 1, NodeLeaseMax: 15 * s, RegionLeaseMax: 60 * s, LeadershipNonce: "n"}
	for _, c := range []struct {
		name  string
		in    Limits
		want  state.SetLimits // zero: no command
		again time.Duration
	}{
		{"a server of an earlier version", Limits{NodeLease: 15 * s}, state.SetLimits{}, 0},
		{"every server is new", Limits{Level: 1, NodeLease: 15 * s}, state.SetLimits{FeatureLevel: 1, NodeLease: 15 * s}, 0},
		{"a server of an earlier version returns", Limits{Cluster: state.Cluster{FeatureLevel: 1, NodeLeaseMax: 15 * s}, NodeLease: 15 * s}, state.SetLimits{}, 0},
		{"a longer lease is configured", Limits{Cluster: state.Cluster{FeatureLevel: 1, NodeLeaseMax: 15 * s}, Level: 1, NodeLease: 60 * s},
			state.SetLimits{FeatureLevel: 1, NodeLease: 60 * s}, 0},
		{"a shorter one, and longer ones may be outstanding", Limits{Cluster: state.Cluster{FeatureLevel: 1, NodeLeaseMax: 60 * s}, Level: 1, NodeLease: 15 * s, Led: 10 * s},
			state.SetLimits{}, over - 10*s},
		{"a shorter one, and longer ones are over", Limits{Cluster: state.Cluster{FeatureLevel: 1, NodeLeaseMax: 60 * s}, Level: 1, NodeLease: 15 * s, Led: over},
			state.SetLimits{FeatureLevel: 1, NodeLease: 15 * s}, 0},
		{"recovered a moment ago", Limits{Cluster: state.Cluster{FeatureLevel: 1, NodeLeaseMax: 15 * s, RegionLeaseMax: 60 * s, Recovered: true}, Level: 1, NodeLease: 15 * s, Led: s},
			state.SetLimits{}, over - s},
		{"recovered long ago", Limits{Cluster: state.Cluster{FeatureLevel: 1, NodeLeaseMax: 15 * s, RegionLeaseMax: 60 * s, Recovered: true}, Level: 1, NodeLease: 15 * s, Led: over},
			state.SetLimits{FeatureLevel: 1, LeasesOver: true}, 0},
		{"another length of the region's lease, and longer ones may be outstanding", Limits{Cluster: shorter, Level: 1, NodeLease: 15 * s, Led: over, RegionLease: 20 * s, RegionLeaseFor: 10 * s},
			state.SetLimits{}, over - 10*s},
		{"another length of the region's lease, and longer ones are over", Limits{Cluster: shorter, Level: 1, NodeLease: 15 * s, Led: over, RegionLease: 20 * s, RegionLeaseFor: over},
			state.SetLimits{FeatureLevel: 1, RegionLease: 20 * s, LeadershipNonce: "n"}, 0},
		{"no session yet", Limits{Cluster: shorter, Level: 1, NodeLease: 15 * s, Led: over, RegionLeaseFor: over}, state.SetLimits{}, 0},
	} {
		c.in.StopTime = func() time.Duration { return kill }
		cmd, again := c.in.Due()
		if cmd == nil {
			cmd = &state.SetLimits{}
		}
		if *cmd != c.want || again != c.again {
			t.Errorf("%s: %+v, again after %s; want %+v, %s", c.name, *cmd, again, c.want, c.again)
		}
	}
}

func TestNodeLeaseIsNeverLongerThanTheLogSays(t *testing.T) {
	old := state.Cluster{}
	limited := state.Cluster{FeatureLevel: 1, NodeLeaseMax: 10 * s}
	if NodeLease(old, 15*s) != 15*s || NodeLease(limited, 15*s) != 10*s || NodeLease(limited, 5*s) != 5*s {
		t.Error("another length is granted")
	}
	// An order in a restored log could start an instance that another node still runs under
	// a lease of the log's earlier incarnation.
	limited.Recovered = true
	if got := NodeLease(limited, 15*s); got != 0 {
		t.Errorf("%s is granted while earlier leases are not over", got)
	}
}
