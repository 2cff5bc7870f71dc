package accept

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestDisconnected: an instance is disconnected if no node takes it and a lost node may
// still run it. An instance is not disconnected if it runs on a connected node, has ended,
// is no longer wanted, or never had a node.
func TestDisconnected(t *testing.T) {
	unplaced := func(from, to int32) []sched.Unplaced {
		return []sched.Unplaced{{Key: key, JobVersion: 1, Generation: 5, Ranges: []sched.Range{{From: from, To: to}}}}
	}
	for _, c := range []struct {
		name     string
		unplaced []sched.Unplaced
		do       func(*region)
		want     string
	}{
		{"nothing was lost", unplaced(0, 6), nil, ""},
		{"lost", unplaced(0, 6), func(r *region) { r.lost(state.NodeLost) }, "1-3 n1"},
		{"a node fits the other", unplaced(0, 2), func(r *region) { r.lost(state.NodeLost) }, "1-2 n1"},
		{"all fit", nil, func(r *region) { r.lost(state.NodeLost) }, ""},
		{"back", unplaced(0, 6), func(r *region) { r.lost(state.NodeLost); r.lost(state.NodeReady) }, ""},
		{"left on purpose", unplaced(0, 6), func(r *region) { r.lost(state.NodeLeft) }, ""},
		{"another generation", unplaced(0, 6), func(r *region) {
			r.lost(state.NodeLost)
			r.order(0, 6, 9, state.Run, state.SlotOffered)
		}, ""},
		{"taken back", unplaced(0, 6), func(r *region) {
			r.lost(state.NodeLost)
			r.order(0, 6, 5, state.Revoke, state.SlotAccepted)
		}, ""},
		{"cut", unplaced(0, 6), func(r *region) {
			r.lost(state.NodeLost)
			r.order(0, 2, 5, state.Run, state.SlotAccepted)
		}, "1-2 n1"},
		{"ended", unplaced(0, 6), func(r *region) {
			r.report(1, state.Failed)
			r.lost(state.NodeLost)
		}, "2-3 n1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRegion(t, state.Service)
			r.order(0, 6, 5, state.Run, state.SlotAccepted)
			r.place(1)
			r.place(2)
			if c.do != nil {
				c.do(r)
			}
			var got []string
			for _, a := range Disconnected(r.Snapshot(), key, c.unplaced) {
				got = append(got, fmt.Sprintf("%d-%d %s", a.From, a.To, a.NodeName))
				if a.Generation != 5 || a.SinceUnixNano != r.now {
					t.Errorf("%+v", a)
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("disconnected %q, want %q", got, c.want)
			}
		})
	}
}
