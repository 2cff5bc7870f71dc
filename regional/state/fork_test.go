package state

import (
	"slices"
	"sync"
	"testing"
)

// TestForksAreIndependent: several goroutines change forks of one view. None of them sees
// the allocations of another.
func TestForksAreIndependent(t *testing.T) {
	l := newLog(t)
	l.ok(testNode("n1"))
	l.ok(testOrder(0, 100, 10, testJob(1, func(g *Group) { g.Ask.Resources = Resources{} }), nil))
	l.ok(testPlace("a0", 0, "n1", 1))
	view := l.Snapshot()
	var wg sync.WaitGroup
	for _, name := range []string{"b", "c", "d"} {
		wg.Go(func() {
			st := view.Fork()
			for i := int32(1); i < 60; i++ {
				st.Apply(uint64(100+i), testPlace(name+string(rune('0'+i)), i, "n1", 1))
				if i%7 == 0 {
					st = st.Snapshot().Fork()
				}
			}
			all := slices.Collect(st.NodeAllocs("n1"))
			for i, a := range all {
				if a.Index != int32(i) || i > 0 && a.ID[:1] != name {
					t.Errorf("%s: %s at %d", name, a.ID, i)
				}
			}
			if found := slices.Collect(st.AllocsByPrefix(name)); len(all) != 60 || len(found) != 59 {
				t.Errorf("%s: %d on the node, %d found", name, len(all), len(found))
			}
		})
		if n := len(slices.Collect(view.NodeAllocs("n1"))); n != 1 {
			t.Errorf("%d in the view", n)
		}
	}
	wg.Wait()
}
