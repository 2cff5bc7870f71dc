package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
)

// TestPlanCoversChangedAllocations: after a change of one allocation only this allocation
// is planned. After a change that may concern other allocations, all are planned.
func TestPlanCoversChangedAllocations(t *testing.T) {
	const some, all = "[bbbb]", "[aaaa bbbb cccc]"
	type world struct {
		allocs  map[string]*alloc
		planner planner
		leases  lease.Holder
		host    reconcile.Host
		clock   time.Duration
	}
	for name, c := range map[string]struct {
		happens func(w *world)
		want    string
	}{
		"nothing":                 {func(*world) {}, "[]"},
		"a task":                  {func(w *world) { w.allocs["bbbb"].setTask("main", reconcile.TaskActual{}) }, some},
		"a new one":               {func(w *world) { w.allocs["bbbb"].act, w.allocs["bbbb"].dirty = reconcile.Actual{}, true }, all},
		"time":                    {func(w *world) { w.clock += time.Second }, "[]"},
		"its time":                {func(w *world) { w.clock += 2 * time.Second }, all},
		"the region's lease ends": {func(w *world) { w.planner.wake, w.clock = time.Time{}, w.clock+40*time.Second }, all},
		"the lease ends":          {func(w *world) { w.planner.wake, w.clock = time.Time{}, w.clock+time.Minute }, all},
		"a longer lease": {func(w *world) {
			w.leases.Granted(lease.Grant{ID: w.leases.Request(w.clock), Node: time.Hour, Region: 0}, 0)
		}, "[]"},
		"it leaves": {func(w *world) { w.host.Leaving = true }, all},
		"it pauses": {func(w *world) { w.host.Pausing = true }, all},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{clock: time.Hour, allocs: map[string]*alloc{}}
			now := func() time.Time { return time.Unix(0, 0).Add(w.clock) }
			input := func() (reconcile.Input, bool) {
				return w.planner.input(view{now: now(), leases: w.leases.At(w.clock), host: w.host, allocs: w.allocs,
					diskProblem: func() string { return "" }, portsInUse: func([]int) map[int]bool { return nil }})
			}
			w.leases.Granted(lease.Grant{ID: w.leases.Request(w.clock), Node: time.Minute, Region: 30 * time.Second}, 0)
			for _, id := range []string{"aaaa", "bbbb", "cccc"} {
				o := &order{spec: reconcile.Alloc{ID: id, Binding: lease.Both}}
				w.allocs[id] = &alloc{order: o, act: reconcile.Actual{Accepted: true}}
			}
			if _, whole := input(); !whole {
				t.Fatal("the first plan is of a part")
			}
			w.planner.wake = now().Add(2 * time.Second)
			c.happens(w)
			in, whole := input()
			got := []string{}
			for _, a := range in.Allocs {
				got = append(got, a.ID)
			}
			if fmt.Sprint(got) != c.want || whole != (c.want == all) || len(in.Actual) != len(got) {
				t.Errorf("plans %v, whole %t, want %s", got, whole, c.want)
			}
		})
	}
}
