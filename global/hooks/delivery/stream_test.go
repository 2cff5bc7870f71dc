package delivery

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestStreamLosesNothing: whatever part of each attempt succeeds, and whatever retention removes, every
// selected event is delivered or dropped, in order, and the cursor never goes back.
func TestStreamLosesNothing(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		last, removed := uint64(1+r.IntN(300)), uint64(0)
		wants := func(n uint64) bool { return (n*2654435761)%uint64(2+seed%3) != 0 }
		s := NewStream(Saved{Cursor: 0})
		var got []uint64
		dropped := uint64(0)
		for s.Cursor() < last {
			before := s.Cursor()
			if r.IntN(10) == 0 {
				removed = min(last-1, max(removed, before)+uint64(r.IntN(20)))
			}
			if r.IntN(10) == 0 { // another term
				s = NewStream(s.Save())
			}
			first := before + 1
			if removed > before {
				s.Missed(removed-before, removed+1)
				dropped += removed - before
				first = removed + 1
			}
			var numbers, chosen []uint64
			var selected []bool
			for n := first; n <= min(last, first+uint64(r.IntN(16))); n++ {
				numbers, selected = append(numbers, n), append(selected, wants(n))
				if wants(n) {
					chosen = append(chosen, n)
				}
			}
			done := len(chosen)
			if done > 0 && r.IntN(2) == 0 {
				done = r.IntN(done)
			}
			s.Read(numbers, selected, done)
			got = append(got, chosen[:done]...)
			if s.Cursor() < before {
				t.Fatalf("seed %d: the cursor went from %d to %d", seed, before, s.Cursor())
			}
			if done < len(chosen) && s.Cursor() >= chosen[done] {
				t.Fatalf("seed %d: the cursor %d is beyond %d, which was not delivered", seed, s.Cursor(), chosen[done])
			}
		}
		for i, n := range got {
			if i > 0 && n <= got[i-1] {
				t.Fatalf("seed %d: %d follows %d", seed, n, got[i-1])
			}
		}
		if c := s.Counts(); c.Delivered != uint64(len(got)) || c.Dropped != dropped {
			t.Fatalf("seed %d: counts %+v, want %d delivered and %d dropped", seed, c, len(got), dropped)
		}
		want := 0
		for n := uint64(1); n <= last; n++ {
			if wants(n) {
				want++
			}
		}
		if len(got) > want || uint64(want-len(got)) > dropped {
			t.Fatalf("seed %d: %d of %d selected events delivered, %d dropped", seed, len(got), want, dropped)
		}
	}
}

func TestStreamBacksOff(t *testing.T) {
	now := time.Unix(1000, 0)
	s := NewStream(Saved{})
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		s.Failed(false, now, 0.5)
		if got := s.Due().Sub(now); got != want*time.Second || s.Failures() != i+1 {
			t.Errorf("after %d failures: %s, want %d s", s.Failures(), got, want)
		}
	}
	s.Failed(true, now, 0.5)
	if got := s.Due().Sub(now); got != time.Second {
		t.Errorf("after progress: %s", got)
	}
	s.Hurry()
	if !s.Due().IsZero() {
		t.Error("hurried, and not due")
	}
	s.Succeeded()
	if s.Failures() != 0 {
		t.Error("failures after a success")
	}
	for _, random := range []float64{0, 0.999999} {
		if d := Pause(1000, random); d < 54*time.Second || d > 66*time.Second {
			t.Errorf("pause %s", d)
		}
	}
}
