package wait

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestPace: an action after a quiet time is allowed at once. Actions without a pause are
// allowed once in each interval, after the first few.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval = 100 * time.Millisecond
		p := NewPace(interval, 3)
		start := time.Now()
		for i := range 10 {
			want := time.Duration(max(0, i-2)) * interval
			if !p.Wait(t.Context()) || time.Since(start) != want {
				t.Errorf("wait %d ended after %s, not %s", i, time.Since(start), want)
			}
		}
		due, allowed := p.Take(time.Now())
		if allowed || time.Until(due) != interval {
			t.Errorf("in a busy time: allowed %t, due in %s", allowed, time.Until(due))
		}
		if again, _ := p.Take(time.Now()); !again.Equal(due) {
			t.Errorf("what is not allowed delays the next by %s", again.Sub(due))
		}
		ctx, cancel := context.WithTimeout(t.Context(), interval/2)
		defer cancel()
		if p.Wait(ctx) || time.Since(start) != 7*interval+interval/2 {
			t.Errorf("with an end of the context: %s", time.Since(start))
		}
		For(t.Context(), time.Second)
		for i := range 3 {
			if _, allowed := p.Take(time.Now()); !allowed {
				t.Errorf("take %d after a quiet time is not allowed", i)
			}
		}
	})
}

func TestForEndsWithTheTimeOrTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if !For(t.Context(), time.Minute) || time.Since(start) != time.Minute {
			t.Errorf("without an end of the context: %s", time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if For(ctx, time.Minute) || time.Since(start) != time.Second {
			t.Errorf("with an end of the context: %s", time.Since(start))
		}
	})
}

// TestTicksUntilTheContextEnds: the loop runs once in each interval, drops the ticks of a body that
// takes long, and ends with the context or with break.
func TestTicksUntilTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 75*time.Second)
		defer cancel()
		start, at := time.Now(), []time.Duration(nil)
		for range Ticks(ctx, 10*time.Second) {
			at = append(at, time.Since(start))
			if len(at) == 2 {
				For(ctx, 25*time.Second)
			}
		}
		want := []time.Duration{10 * time.Second, 20 * time.Second, 45 * time.Second, 50 * time.Second, 60 * time.Second, 70 * time.Second}
		if !slices.Equal(at, want) || time.Since(start) != 75*time.Second {
			t.Errorf("ran at %v, ended after %s", at, time.Since(start))
		}
		for range Ticks(t.Context(), time.Second) {
			break
		}
	})
}
