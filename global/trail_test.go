package global

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
)

// failingLists fails the first lists of some prefixes, and counts candidacies.
type failingLists struct {
	store.Store
	left       map[string]*atomic.Int32
	candidates atomic.Int32
}

func (s *failingLists) Campaign(ctx context.Context, prefix, value string, ttl time.Duration) (store.Election, error) {
	s.candidates.Add(1)
	return s.Store.Campaign(ctx, prefix, value, ttl)
}

func (s *failingLists) List(ctx context.Context, prefix string, visit func(store.KV) error) (int64, error) {
	if left := s.left[prefix]; left != nil && left.Add(-1) >= 0 {
		return 0, errors.New("no list")
	}
	return s.Store.List(ctx, prefix, visit)
}

// TestATermOutlivesAFailedLoad: a failed load of the audit and of the idempotency records of
// earlier terms is tried again. The term continues.
func TestATermOutlivesAFailedLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lists := &failingLists{left: map[string]*atomic.Int32{state.AuditPrefix: {}, idempotencyKeys: {}}}
		for _, left := range lists.left {
			left.Store(3)
		}
		f := newFederation()
		start := time.Now()
		s := f.start(t, "g1", func(c *Config) {
			c.Clock = func() time.Duration { return time.Since(start) }
			c.ReportInterval, c.CheckpointInterval, c.ElectionTTL = 0, 0, 0
			lists.Store, c.Store, c.Logger = c.Store, lists, slog.New(slog.DiscardHandler)
		})
		waitActive(t, s)
		time.Sleep(3 * reloadMost)
		synctest.Wait()
		if n := lists.candidates.Load(); n != 1 {
			t.Errorf("the server stood for election %d times", n)
		}
		for prefix, left := range lists.left {
			if left.Load() >= 0 {
				t.Errorf("%s was not loaded again", prefix)
			}
		}
		s.stop()
	})
}
