package rank

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestOrderIsThatOfASort: after any changes the order equals that of a sort of all spots.
func TestOrderIsThatOfASort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(rapid.IntRange(1, 20), rapid.IntRange(100, 200)).Draw(t, "regions") // a few changes of many are made one by one
		c := NewColumn(n)
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			many := rapid.IntRange(1, 4).Draw(t, "changes")
			for range many {
				c.Set(Spot{
					Score:  rapid.SampledFrom([]int32{Refused, 0, 5, 7}).Draw(t, "score"),
					Region: int32(rapid.IntRange(0, n-1).Draw(t, "region")),
					Fits:   rapid.IntRange(0, 3).Draw(t, "fits"),
				})
			}
			var want []Spot
			for _, s := range c.Spots {
				if s.Score != Refused {
					want = append(want, s)
				}
			}
			slices.SortFunc(want, Compare)
			if got := c.Order(); !slices.Equal(got, want) {
				t.Fatalf("order %v, want %v", got, want)
			}
			k := rapid.IntRange(0, n).Draw(t, "best")
			if got := Best(c.Order(), k); !slices.Equal(got, want[:min(k, len(want))]) {
				t.Fatalf("best %d %v, want %v", k, got, want)
			}
			slices.Reverse(want)
			if got := Best(want, k); !slices.IsSortedFunc(got, Compare) || len(got) != min(k, len(want)) {
				t.Fatalf("best %d of %v: %v", k, want, got)
			}
		}
	})
}

func TestCacheKeepsWhatWasUsedLast(t *testing.T) {
	c := NewCache[int, string](4)
	for i := range 100 {
		c.Put(i, "x")
		if _, ok := c.Get(0); !ok {
			t.Fatalf("the value that is used most was dropped after %d", i)
		}
		if len(c.entries) > 4 {
			t.Fatalf("%d values, at most 4", len(c.entries))
		}
	}
}

func TestLogSaysWhatChangedSince(t *testing.T) {
	var l Log
	if changed, ok := l.Since(-1); ok || changed != nil {
		t.Error("an empty log knows what changed before it")
	}
	for i := range 5 * logged {
		at := l.End()
		l.Add(i % 7)
		if changed, ok := l.Since(at); !ok || !slices.Equal(changed, []int32{int32(i % 7)}) {
			t.Fatalf("after %d: %v %v", i, changed, ok)
		}
	}
	if _, ok := l.Since(0); ok {
		t.Error("the log keeps everything")
	}
	if changed, ok := l.Since(l.End() - logged); !ok || len(changed) != logged {
		t.Errorf("%d changes, %v", len(changed), ok)
	}
}
