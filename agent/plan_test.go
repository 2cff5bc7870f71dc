package agent

import (
	"fmt"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
)

// TestPartOfThePlan: what happens to one allocation has that one planned; what
// concerns others too has all of them.
func TestPartOfThePlan(t *testing.T) {
	const some, all = "[bbbb]", "[aaaa bbbb cccc]"
	for name, c := range map[string]struct {
		happens func(e *engine, clock *time.Duration)
		want    string
	}{
		"nothing": {func(*engine, *time.Duration) {}, "[]"},
		"a task":  {func(e *engine, _ *time.Duration) { e.allocs["bbbb"].setTask("main", reconcile.TaskActual{}) }, some},
		"a new one": {func(e *engine, _ *time.Duration) {
			e.allocs["bbbb"].act, e.allocs["bbbb"].dirty = reconcile.Actual{}, true
		}, all},
		"time":           {func(e *engine, clock *time.Duration) { *clock += time.Second }, "[]"},
		"its time":       {func(e *engine, clock *time.Duration) { *clock += 2 * time.Second }, all},
		"the lease ends": {func(e *engine, clock *time.Duration) { e.wake, *clock = time.Time{}, *clock+time.Minute }, all},
		"a longer lease": {func(e *engine, clock *time.Duration) { e.lease.Granted(e.lease.Request(*clock), time.Hour) }, "[]"},
		"it leaves":      {func(e *engine, _ *time.Duration) { e.host.Leaving = true }, all},
		"it pauses":      {func(e *engine, _ *time.Duration) { e.host.Pausing = true }, all},
	} {
		t.Run(name, func(t *testing.T) {
			clock := time.Hour
			e := &engine{clock: func() time.Duration { return clock }, allocs: map[string]*alloc{}, keeper: newKeeper(&store{}, discard())}
			e.line.clock = e.clock
			e.lease.Granted(e.lease.Request(clock), time.Minute)
			for _, id := range []string{"aaaa", "bbbb", "cccc"} {
				o := &order{alloc: reconcile.Alloc{ID: id, Lease: lease.Stop}}
				e.allocs[id] = &alloc{order: o, act: reconcile.Actual{Accepted: true}}
			}
			if _, whole := e.input(); !whole {
				t.Fatal("the first plan is of a part")
			}
			e.wake = e.line.now().Add(2 * time.Second)
			c.happens(e, &clock)
			in, whole := e.input()
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
