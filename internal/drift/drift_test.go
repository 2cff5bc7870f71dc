package drift

import (
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"
)

// TestCompare: each kind of difference is found, and equal sets have none.
func TestCompare(t *testing.T) {
	want := map[string]uint64{"a": 1, "b": 2, "c": 3, "d": 4}
	have := map[string]uint64{"b": 2, "c": 2, "d": 5, "e": 6}
	text := fmt.Sprint(Compare(want, have))
	if text != "[it is missing, version 1 should be there version 2 is there, and should be 3 version 5 is there, and should be 4 version 6 is there, and should not be]" {
		t.Error(text)
	}
	if out := Compare(want, maps.Clone(want)); len(out) > 0 {
		t.Errorf("equal sets differ: %v", out)
	}
}

// TestLasting: only a difference that is the same in both looks is lasting.
func TestLasting(t *testing.T) {
	a, b, c := Difference{Lacks, "a", 1, 0}, Difference{Stray, "b", 0, 2}, Difference{Old, "c", 3, 2}
	later := Difference{Old, "c", 4, 2} // the order has changed since
	if out := Lasting([]Difference{a, b, c}, []Difference{b, later}); len(out) != 1 || out[0] != b {
		t.Errorf("%v", out)
	}
}

// TestRepairs: who adds what is missing or old and removes what is stray, has no difference any more,
// except versions that are newer than known.
func TestRepairs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sets := rapid.MapOf(rapid.SampledFrom([]string{"a", "b", "c", "d"}), rapid.Uint64Range(1, 3))
		want, have := sets.Draw(t, "want"), sets.Draw(t, "have")
		for _, d := range Compare(want, have) {
			switch d.Kind {
			case Lacks, Old:
				have[d.Key] = d.Want
			case Stray:
				delete(have, d.Key)
			}
		}
		for _, d := range Compare(want, have) {
			if d.Kind != Newer {
				t.Fatalf("%v is left", d)
			}
		}
	})
}
