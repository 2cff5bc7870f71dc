package topology

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// allPaths is the brute force: every loopless way over usable edges.
func allPaths(v *View, from, to string, p Percentile) []time.Duration {
	var found []time.Duration
	var walk func(at string, seen []string, sum time.Duration)
	walk = func(at string, seen []string, sum time.Duration) {
		if at == to {
			found = append(found, sum)
			return
		}
		for _, next := range v.Regions() {
			if e := v.Edge(at, next.Name); !slices.Contains(seen, next.Name) && e.Source != None && e.State != Unreachable {
				walk(next.Name, append(slices.Clone(seen), next.Name), sum+e.RTT(p))
			}
		}
	}
	walk(from, []string{from}, 0)
	slices.Sort(found)
	return found
}

func TestPathsAreTheKBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 6).Draw(t, "n")
		v := NewView(regionsOf(n), edgesGen(t, n))
		k := rapid.IntRange(1, MaxPaths).Draw(t, "k")
		p := rapid.SampledFrom([]Percentile{50, 90, 99}).Draw(t, "p")
		to := fmt.Sprint("r", rapid.IntRange(1, n-1).Draw(t, "to"))
		paths, err := v.Paths("r0", to, k, p)
		if err != nil {
			t.Fatal(err)
		}
		want := allPaths(v, "r0", to, p)
		if len(paths) != min(k, len(want)) {
			t.Fatalf("%d paths, want %d", len(paths), min(k, len(want)))
		}
		for i, got := range paths {
			if got.RTT != want[i] {
				t.Fatalf("path %d %v takes %v, want %v", i, got.Regions, got.RTT, want[i])
			}
			var sum time.Duration
			for x := 1; x < len(got.Regions); x++ {
				sum += v.Edge(got.Regions[x-1], got.Regions[x]).RTT(p)
			}
			if sum != got.RTT || got.Regions[0] != "r0" || got.Regions[len(got.Regions)-1] != to {
				t.Fatalf("path %d %v says %v, its edges sum to %v", i, got.Regions, got.RTT, sum)
			}
		}
	})
}

func TestPathNamesItsLeastTrustworthySource(t *testing.T) {
	v := NewView(
		[]Region{{Name: "a"}, {Name: "b", Location: singapore}, {Name: "c", Location: tokyo}, {Name: "d"}},
		[]Edge{measured("a", "b", 10, OK), measured("c", "d", 10, Stale)})
	paths, err := v.Paths("a", "d", 4, 50)
	if err != nil || len(paths) != 1 {
		t.Fatalf("paths %v, %v", paths, err)
	}
	if got := paths[0]; strings.Join(got.Regions, " ") != "a b c d" || got.Source != Estimated || got.State != Unknown {
		t.Errorf("path %+v, want a b c d, estimated", got)
	}
	if paths, err := v.Paths("d", "a", 1, 50); err != nil || len(paths) != 0 {
		t.Errorf("a way from d, which nothing leaves: %v, %v", paths, err)
	}
	if _, err := v.Paths("a", "x", 1, 50); !errors.Is(err, ErrUnknownRegion) {
		t.Errorf("path to a region that is not there: %v", err)
	}
	if paths, err := v.Paths("a", "a", 3, 50); err != nil || len(paths) != 1 || paths[0].RTT != 0 {
		t.Errorf("path to itself: %v, %v", paths, err)
	}
}

// The sum of two lucky guesses is no reason to leave a measured way.
func TestPathsPreferMeasuredWays(t *testing.T) {
	v := NewView(
		[]Region{{Name: "a", Coordinate: at(0)}, {Name: "relay", Coordinate: at(0.01)}, {Name: "b", Coordinate: at(0.02)}},
		[]Edge{measured("a", "b", 70, OK)})
	paths, err := v.Paths("a", "b", 5, 50)
	if err != nil || len(paths) != 1 || paths[0].Source != Measured || paths[0].RTT != 70*msec {
		t.Errorf("a to b: %+v, %v; want the measured edge only", paths, err)
	}
	paths, err = v.Paths("b", "a", 5, 50)
	if err != nil || len(paths) != 2 || paths[0].Source != Predicted {
		t.Errorf("b to a: %+v, %v; want the predicted edge and relay", paths, err)
	}
}
