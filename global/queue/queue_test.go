package queue

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestPlacesAreThoseOfABruteForce: for random groups, each place is what a count of all other groups gives.
func TestPlacesAreThoseOfABruteForce(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		var all []Waiting
		for i := range rnd.IntN(40) {
			all = append(all, Waiting{
				Namespace: fmt.Sprint("ns", rnd.IntN(2)), Job: fmt.Sprint("job", rnd.IntN(6)), Group: fmt.Sprint("group", i), Priority: 10 * rnd.IntN(3),
				Revision: int64(rnd.IntN(4)), Count: 1 + int64(rnd.IntN(5)), Ask: Asked{int64(rnd.IntN(100)), int64(rnd.IntN(100)), int64(rnd.IntN(100))},
			})
		}
		rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		places := Places(all)
		for i, w := range all {
			want := Place{Position: 1}
			for j, o := range all {
				if i == j || !before(o, w) {
					continue
				}
				want.Position++
				if o.Priority > w.Priority {
					want.Higher += o.Count
				} else {
					want.Earlier += o.Count
				}
				want.Asked.CPUMilli += o.Count * o.Ask.CPUMilli
				want.Asked.MemoryBytes += o.Count * o.Ask.MemoryBytes
				want.Asked.DiskBytes += o.Count * o.Ask.DiskBytes
			}
			if places[i] != want {
				t.Fatalf("seed %d, %+v: %+v, want %+v", seed, w, places[i], want)
			}
		}
	}
}

// before says which of two groups the placer decides about first, in words of its own.
func before(a, b Waiting) bool {
	switch {
	case a.Priority != b.Priority:
		return a.Priority > b.Priority
	case a.Revision != b.Revision:
		return a.Revision < b.Revision
	case a.Namespace != b.Namespace:
		return a.Namespace < b.Namespace
	case a.Job != b.Job:
		return a.Job < b.Job
	}
	return a.Group < b.Group
}
