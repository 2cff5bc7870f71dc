package global

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/store"
)

// neverFree is a store that stays full, so that it refuses writes again at once.
type neverFree struct {
	store.Store
	resumes int
}

func (s *neverFree) Usage(context.Context) (store.Usage, error) {
	return store.Usage{Bytes: 1, InUse: 1, Quota: 1, NoSpace: true}, nil
}

func (s *neverFree) Compact(context.Context) error    { return nil }
func (s *neverFree) Defragment(context.Context) error { return nil }
func (s *neverFree) Embedded() bool                   { return true }

func (s *neverFree) Missing(context.Context, []string) ([]string, error) { return nil, nil }

func (s *neverFree) Turn() (before, members int) { return 0, 1 }

func (s *neverFree) Resume(context.Context) error {
	s.resumes++
	if s.resumes > 9 {
		return errors.New("too often")
	}
	return nil
}

// TestAFullStoreResumesOnceATick: a store that refuses writes again at once does not get the order to resume
// more than once a tick.
func TestAFullStoreResumesOnceATick(t *testing.T) {
	full := &neverFree{}
	s := &server{store: full, log: slog.New(slog.DiscardHandler)}
	s.cfg.Clock = func() time.Duration { return time.Hour }
	use, ok := s.measure(t.Context())
	if !ok {
		t.Fatal("the store cannot be measured")
	}
	var upkeep store.Upkeep
	for range 3 {
		upkeep = s.makeRoom(t.Context(), full, upkeep, use)
	}
	if full.resumes != 3 {
		t.Errorf("the store resumed %d times in three ticks", full.resumes)
	}
}
