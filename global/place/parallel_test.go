package place

import (
	"math/rand"
	"testing"
)

// TestSharesNeverExceedParallel: whatever regions begin, as far as their shares allow, end and get, and
// whichever share is written first, at most the total runs at once. In the end everything has run.
func TestSharesNeverExceedParallel(t *testing.T) {
	for seed := range int64(300) {
		r := rand.New(rand.NewSource(seed))
		total := 1 + r.Intn(12)
		all := make([]regionShare, 1+r.Intn(5))
		left, running := make([]int, len(all)), make([]int, len(all))
		waiting := 0
		for i := range all {
			left[i] = r.Intn(40)
			waiting += left[i]
		}
		for step := 0; waiting > 0; step++ {
			if step > 10_000 {
				t.Fatalf("seed %d: %d instances never run", seed, waiting)
			}
			// The summaries of some regions are older than others.
			want := make([]regionShare, len(all))
			copy(want, all)
			for i := range want {
				if r.Intn(3) > 0 || step%10 == 0 || all[i].open < left[i] {
					all[i].open, want[i].open = left[i], left[i]
				}
			}
			divideParallel(want, total)
			for _, i := range r.Perm(len(all)) { // the writes arrive in any order
				all[i].has = want[i].has
				now := 0
				for k := range all {
					running[k] = max(running[k], min(all[k].has, left[k]))
					now += running[k]
				}
				if now > total {
					t.Fatalf("seed %d: %d of %d run at once: %+v", seed, now, total, all)
				}
			}
			for i := range all {
				n := 0
				if running[i] > 0 {
					n = r.Intn(running[i] + 1)
				}
				running[i], left[i], waiting = running[i]-n, left[i]-n, waiting-n
			}
			if at := r.Intn(len(all)); step < 20 && r.Intn(4) == 0 { // a further slot
				n := r.Intn(10)
				left[at], waiting = left[at]+n, waiting+n
			}
		}
	}
}
