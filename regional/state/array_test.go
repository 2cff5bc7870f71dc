package state

import (
	"maps"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// The array, and what differs from each of its snapshots, against Go maps.
func TestArrayMatchesMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type frozen struct {
			array array[int]
			model map[uint32]*int
		}
		var arr array[int]
		model := map[uint32]*int{}
		own := &owner{}
		var snaps []frozen
		span := rapid.Uint32Range(1, 1<<rapid.IntRange(1, 32).Draw(t, "bits")-1).Draw(t, "span")
		for i := range rapid.IntRange(0, 500).Draw(t, "steps") {
			k := rapid.Uint32Range(0, span).Draw(t, "key")
			switch rapid.IntRange(0, 9).Draw(t, "op") {
			case 0:
				if len(snaps) < 4 {
					snaps = append(snaps, frozen{arr, maps.Clone(model)})
					own = &owner{}
				}
			case 1, 2:
				arr.delete(own, k)
				delete(model, k)
			case 3: // all that is above
				for j := range maps.Clone(model) {
					if j >= k {
						arr.delete(own, j)
						delete(model, j)
					}
				}
			default:
				arr.set(own, k, &i)
				model[k] = &i
			}
		}
		checkArray(t, &arr, model)
		for _, s := range snaps {
			checkArray(t, &s.array, s.model)
			var want []uint32
			for k := range arr.all() {
				if s.model[k] != model[k] {
					want = append(want, k)
				}
			}
			for k := range s.model {
				if model[k] == nil {
					want = append(want, k)
				}
			}
			slices.Sort(want)
			if got := slices.Collect(arr.since(&s.array)); !slices.Equal(got, want) {
				t.Fatalf("since: %v, want %v", got, want)
			}
		}
	})
}

func checkArray(t *rapid.T, arr *array[int], model map[uint32]*int) {
	if arr.size != len(model) || (arr.root == nil) != (len(model) == 0) {
		t.Fatalf("size %d, want %d", arr.size, len(model))
	}
	var got []uint32
	for k, v := range arr.all() {
		got = append(got, k)
		if have, ok := arr.get(k); !ok || have != v || model[k] != v {
			t.Fatalf("%d: %v, get %v, want %v", k, v, have, model[k])
		}
	}
	if want := slices.Sorted(maps.Keys(model)); !slices.Equal(got, want) {
		t.Fatalf("all: %v, want %v", got, want)
	}
	if _, ok := arr.get(1<<32 - 1); ok != (model[1<<32-1] != nil) {
		t.Fatal("there is something at the end")
	}
}

// Copies of a list that go on from one another, each its own way, and forget some,
// against slices.
func TestListMatchesSlices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type way struct {
			list list[int]
			has  []int // that mean something
		}
		ways := []way{{}}
		for i := range rapid.IntRange(0, 300).Draw(t, "steps") {
			w := rapid.SampledFrom(ways).Draw(t, "way")
			keep := func(v int) bool { return slices.Contains(w.has, v) }
			if len(w.has) > 0 && rapid.IntRange(0, 2).Draw(t, "op") == 0 {
				at := rapid.IntRange(0, len(w.has)-1).Draw(t, "at")
				w.has = slices.Delete(slices.Clone(w.has), at, at+1)
				w.list = w.list.without(keep)
			} else {
				w.has = append(slices.Clip(w.has), i)
				w.list = w.list.with(i, keep)
			}
			ways = append(ways, w)
		}
		for _, w := range ways {
			if len(w.list.all)-w.list.stale != len(w.has) || w.list.stale > len(w.has)+1 {
				t.Fatalf("%d, stale %d, want %d", len(w.list.all), w.list.stale, len(w.has))
			}
			got := slices.DeleteFunc(slices.Clone(w.list.all), func(v int) bool { return !slices.Contains(w.has, v) })
			if !slices.Equal(got, w.has) {
				t.Fatalf("%v, want %v", w.list.all, w.has)
			}
		}
	})
}

// What runs ahead of the log and what is committed go on from the same view, and
// others read it: none sees what another has added.
func TestForksAtOnce(t *testing.T) {
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
