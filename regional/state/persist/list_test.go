package persist

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestListMatchesSlices: copies of a list each append and forget entries. They have the
// same entries as slices.
func TestListMatchesSlices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type way struct {
			list List[int]
			has  []int // entries that are not stale
		}
		ways := []way{{}}
		for i := range rapid.IntRange(0, 300).Draw(t, "steps") {
			w := rapid.SampledFrom(ways).Draw(t, "way")
			keep := func(v int) bool { return slices.Contains(w.has, v) }
			if len(w.has) > 0 && rapid.IntRange(0, 2).Draw(t, "op") == 0 {
				at := rapid.IntRange(0, len(w.has)-1).Draw(t, "at")
				w.has = slices.Delete(slices.Clone(w.has), at, at+1)
				w.list = w.list.Without(keep)
			} else {
				w.has = append(slices.Clip(w.has), i)
				w.list = w.list.With(i, keep)
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
