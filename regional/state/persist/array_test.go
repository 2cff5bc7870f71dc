package persist

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestArrayMatchesMap: the array, and its difference from each of its snapshots, equal
// those of Go maps.
func TestArrayMatchesMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type frozen struct {
			array Array[int]
			model map[uint32]*int
		}
		var arr Array[int]
		model := map[uint32]*int{}
		own := &Owner{}
		var snaps []frozen
		span := rapid.Uint32Range(1, 1<<rapid.IntRange(1, 32).Draw(t, "bits")-1).Draw(t, "span")
		for i := range rapid.IntRange(0, 500).Draw(t, "steps") {
			k := rapid.Uint32Range(0, span).Draw(t, "key")
			switch rapid.IntRange(0, 9).Draw(t, "op") {
			case 0:
				if len(snaps) < 4 {
					snaps = append(snaps, frozen{arr, maps.Clone(model)})
					own = &Owner{}
				}
			case 1, 2:
				arr.Delete(own, k)
				delete(model, k)
			case 3: // delete everything from the index on
				for j := range maps.Clone(model) {
					if j >= k {
						arr.Delete(own, j)
						delete(model, j)
					}
				}
			default:
				arr.Set(own, k, &i)
				model[k] = &i
			}
		}
		checkArray(t, &arr, model)
		for _, s := range snaps {
			checkArray(t, &s.array, s.model)
			var want []uint32
			for k := range arr.All() {
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
			if got := slices.Collect(arr.Since(&s.array)); !slices.Equal(got, want) {
				t.Fatalf("since: %v, want %v", got, want)
			}
		}
	})
}

func checkArray(t *rapid.T, arr *Array[int], model map[uint32]*int) {
	if arr.Len() != len(model) || (arr.root == nil) != (len(model) == 0) {
		t.Fatalf("size %d, want %d", arr.Len(), len(model))
	}
	var got []uint32
	for k, v := range arr.All() {
		got = append(got, k)
		if have, ok := arr.Get(k); !ok || have != v || model[k] != v {
			t.Fatalf("%d: %v, get %v, want %v", k, v, have, model[k])
		}
	}
	if want := slices.Sorted(maps.Keys(model)); !slices.Equal(got, want) {
		t.Fatalf("all: %v, want %v", got, want)
	}
	if _, ok := arr.Get(1<<32 - 1); ok != (model[1<<32-1] != nil) {
		t.Fatal("there is something at the end")
	}
}
