package place

import (
	"fmt"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
)

// TestNearResultsMatchTheFilter: each clause has the distance that decides and the reason. A
// required clause has the verdict of the placement's filter.
func TestNearResultsMatchTheFilter(t *testing.T) {
	ms := time.Millisecond
	edge := func(from, to string, rtt time.Duration, state topology.State) topology.Edge {
		return topology.Edge{From: from, To: to, P50: rtt, P90: rtt, P99: 2 * rtt, State: state, Source: topology.Measured, Age: time.Minute, Method: "udp"}
	}
	here := &topology.Location{Latitude: -6.2, Longitude: 106.8, Name: "Jakarta"}
	view := topology.NewView([]topology.Region{{Name: "a", Location: here}, {Name: "b"}, {Name: "c"}, {Name: "d"}, {Name: "e", Location: &topology.Location{Latitude: 1.3, Longitude: 103.8}}},
		[]topology.Edge{
			edge("a", "b", 20*ms, topology.OK), edge("b", "a", 30*ms, topology.OK),
			edge("c", "b", 10*ms, topology.Stale), edge("b", "c", 10*ms, topology.Stale),
			edge("d", "b", 0, topology.Unreachable),
		})
	tracker := NewBoundTracker(Snapshot{Topology: view, Regions: []*Region{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}, {Name: "e"}}})
	toB := Near{Selector: Selector{Name: "b"}, MaxRTT: 40 * ms, Percentile: 50, Required: true, Unknown: UnknownRefuse}
	with := func(change func(n *Near)) Near { n := toB; change(&n); return n }
	for _, c := range []struct {
		region string
		near   Near
		want   string
	}{
		{"a", toB, "kept 30ms udp"},
		{"a", with(func(n *Near) { n.Percentile = 99 }), "broken 60ms udp"},
		{"b", toB, "kept 0s "},
		{"c", toB, "unknown 10ms udp: only what was measured and is fresh counts, unless the clause says unknown: predicted"},
		{"c", with(func(n *Near) { n.Unknown = UnknownPredicted }), "kept 10ms udp: since the clause says unknown: predicted"},
		{"d", toB, "unknown 0s udp: only what was measured and is fresh counts, unless the clause says unknown: predicted"},
		{"e", toB, "unknown 0s : nothing is known of it"},
		{"e", with(func(n *Near) { n.Unknown = UnknownAccept }), "kept 0s : since the clause says unknown: accept"},
		{"a", Near{Selector: Selector{Name: "b"}, Percentile: 50, Weight: 50}, "soft 30ms udp: counts 38 of 50 in the score"},
		{"e", Near{Location: here, MaxRTT: 40 * ms, Required: true}, "kept 14ms "},
		{"b", Near{Location: here, MaxRTT: 40 * ms, Required: true}, "unknown 0s : the region has no location"},
	} {
		g := Group{Regions: RegionsSpec{Near: []Near{c.near}}}
		results := tracker.NearResults(&g, c.region)
		if len(results) != 1 {
			t.Errorf("%s: %d results", c.region, len(results))
			continue
		}
		f := results[0]
		got := fmt.Sprint(f.Verdict, " ", f.RTT.Round(ms), " ", f.Method)
		if f.Why != "" {
			got += ": " + f.Why
		}
		if got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.region, &c.near, got, c.want)
		}
	}
	if f := tracker.NearResults(&Group{Regions: RegionsSpec{Near: []Near{toB}}}, "nowhere"); f != nil {
		t.Errorf("an unknown region: %v", f)
	}
}
