package alarms

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

type entry struct{ Alarm }

// TestDue compares the queue with a search of all objects.
func TestDue(t *testing.T) {
	begin := time.Date(2026, 11, 28, 10, 0, 0, 0, time.UTC)
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 3))
		var a Queue[*entry]
		all := make([]*entry, 20)
		want := map[*entry]time.Time{}
		for i := range all {
			all[i] = &entry{}
		}
		for now := begin; now.Before(begin.Add(time.Hour)); now = now.Add(time.Duration(random.IntN(60)) * time.Second) {
			e, at := all[random.IntN(len(all))], now.Add(time.Duration(random.IntN(600))*time.Second)
			switch random.IntN(3) {
			case 0:
				a.Set(e, time.Time{})
				delete(want, e)
			case 1:
				a.Set(e, at)
				want[e] = at
			default:
				a.Sooner(e, at)
				if old, is := want[e]; !is || at.Before(old) {
					want[e] = at
				}
			}
			var first time.Time
			for _, at := range want {
				if first.IsZero() || at.Before(first) {
					first = at
				}
			}
			if got := a.Next(); !got.Equal(first) {
				t.Fatalf("seed %d: next %s, want %s", seed, got, first)
			}
			got := a.Due(now)
			for e, at := range want {
				if due := !at.After(now); due != slices.Contains(got, e) {
					t.Fatalf("seed %d: an object of %s is due at %s: %v", seed, at, now, due)
				} else if due {
					delete(want, e)
				}
			}
			if a.Len() != len(want) {
				t.Fatalf("seed %d: %d objects wait, want %d", seed, a.Len(), len(want))
			}
		}
	}
}
