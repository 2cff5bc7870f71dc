package predict

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// sortedFlaw does what the comment of witnesses.flaw says: it sorts the bounds.
func sortedFlaw(w witnesses, p Pair) Flaw {
	var lower, upper []float64
	for k := range w.n {
		a, b := float64(w.of(p.A)[k]), float64(w.of(p.B)[k])
		if a > 0 && b > 0 && len(lower) < maxWitnesses {
			lower, upper = append(lower, math.Abs(a-b)), append(upper, a+b)
		}
	}
	slices.Sort(lower)
	slices.Sort(upper)
	switch n := len(lower); {
	case n == 0:
		return ""
	case n < minWitnesses:
		if p.RTT > farFactor*upper[n-1]+fewMS {
			return FlawLong
		}
	case farFactor*p.RTT < lower[n/2]-oddMS:
		return FlawShort
	case p.RTT > farFactor*upper[2]+farMS:
		return FlawLong
	}
	return ""
}

// TestCountsEqualSortedBounds checks on random pairs that witnesses.flaw, which only
// counts, finds the same flaws as sortedFlaw.
func TestCountsEqualSortedBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 12).Draw(t, "regions")
		rtt := rapid.SampledFrom([]float64{1, 5, 30, 90, 250, 1500, 9000})
		var pairs []Pair
		for a := range n {
			for b := a + 1; b < n; b++ {
				if rapid.IntRange(0, 4).Draw(t, "measured") > 0 {
					pairs = append(pairs, Pair{a, b, rtt.Draw(t, "rtt")})
				}
			}
		}
		w := newWitnesses(n, pairs)
		for _, p := range pairs {
			if got, want := w.flaw(p), sortedFlaw(w, p); got != want {
				t.Fatalf("the flaw of %v is %q, want %q", p, got, want)
			}
		}
	})
}
