package objects

import (
	"context"
	"testing"
	"testing/synctest"
)

// slow is a worker that ends only when the test lets it.
type slow struct{ begun, let chan struct{} }

// Set implements Worker.
func (s *slow) Set(string) {}

// Run implements Worker.
func (s *slow) Run(ctx context.Context) {
	close(s.begun)
	<-ctx.Done()
	<-s.let
}

func (s *slow) hasBegun() bool {
	select {
	case <-s.begun:
		return true
	default:
		return false
	}
}

// TestAnObjectThatIsCreatedAgain: its worker begins when the earlier one has ended, also if Follow has seen the
// object removed in between, once or twice.
func TestAnObjectThatIsCreatedAgain(t *testing.T) {
	for _, removals := range []int{0, 1, 2} {
		synctest.Test(t, func(t *testing.T) {
			var made []*slow
			c := Crew[string, *slow]{
				Begin: func(string, string) *slow {
					made = append(made, &slow{make(chan struct{}), make(chan struct{})})
					return made[len(made)-1]
				},
				ID: func(rec string) string { return rec }, Revision: func(string) int64 { return 1 },
			}
			c.Follow(t.Context(), map[string]string{"a": "first"})
			synctest.Wait()
			if removals > 0 {
				c.Follow(t.Context(), nil)
			}
			if removals > 1 {
				c.Follow(t.Context(), map[string]string{"a": "second"})
				c.Follow(t.Context(), nil)
			}
			c.Follow(t.Context(), map[string]string{"a": "last"})
			synctest.Wait()
			last := made[len(made)-1]
			if last.hasBegun() {
				t.Errorf("%d removals: two workers of an object run at the same time", removals)
			}
			for _, s := range made {
				close(s.let)
			}
			synctest.Wait()
			if !last.hasBegun() {
				t.Errorf("%d removals: the worker has not begun", removals)
			}
			c.Stop()
			if len(c.ending) > 0 {
				t.Errorf("%d removals: %d workers that have ended are still known", removals, len(c.ending))
			}
		})
	}
}
