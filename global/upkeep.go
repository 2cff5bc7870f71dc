package global

import (
	"context"
	"log/slog"
	"time"

	"github.com/nusa-scheduler/nusa/global/room"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
)

// usageEvery is how often the server measures how full its embedded store is. sharedUsageEvery is
// the same for a store that the server reaches over the network.
const usageEvery, sharedUsageEvery = time.Second, 5 * time.Second

// pagesEvery is how often the pages of the embedded store leave the process. That takes some
// milliseconds.
const pagesEvery = 15 * time.Second

// keepStore measures how full the store is, and makes space in it, until ctx ends. It does not
// depend on leadership, because no server is elected while the store is full.
func (s *server) keepStore(ctx context.Context) error {
	bounded, ok := s.store.(store.Bounded)
	if !ok {
		return nil
	}
	every := usageEvery
	if !bounded.Embedded() {
		every = sharedUsageEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var upkeep store.Upkeep
	released := s.cfg.Clock()
	for {
		if now := s.cfg.Clock(); bounded.Embedded() && now-released >= pagesEvery {
			released = now
			if err := store.ReleasePages(s.store); err != nil {
				s.log.Debug("cannot release the pages of the store", "error", err)
			}
		}
		if use, ok := s.measure(ctx); ok {
			upkeep = s.makeRoom(ctx, bounded, upkeep, use)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// makeRoom takes all steps that are due. It returns after store.StepResume, because only a later
// measurement shows whether writes work again.
func (s *server) makeRoom(ctx context.Context, bounded store.Bounded, upkeep store.Upkeep, use store.Usage) store.Upkeep {
	for {
		at := store.Place{Lead: s.active.Load() != nil, Embedded: bounded.Embedded()}
		at.Turn, at.Members = bounded.Turn()
		upkeep = upkeep.Seen(s.cfg.Clock(), use)
		step := upkeep.Next(s.cfg.Clock(), use, at)
		if step == store.StepNone {
			return upkeep
		}
		start := s.cfg.Clock()
		err := takeStep(ctx, bounded, step)
		now := s.cfg.Clock()
		upkeep = upkeep.Did(now, step)
		if err != nil {
			s.log.Warn("cannot make room in the store", "step", step, "error", err)
			return upkeep
		}
		before := use
		var ok bool
		use, ok = s.measure(ctx)
		if !ok {
			return upkeep
		}
		level := slog.LevelInfo
		if step == store.StepCompact && use.InUse >= before.InUse {
			level = slog.LevelDebug // there was nothing to remove
		}
		s.log.Log(ctx, level, "made room in the store", "step", step, "took", now-start,
			"used_before", before.InUse, "used", use.InUse, "bytes_before", before.Bytes, "bytes", use.Bytes)
		if step == store.StepResume {
			return upkeep
		}
	}
}

// measure measures how full the store is, and keeps the result for this term and the next one.
func (s *server) measure(ctx context.Context) (use store.Usage, ok bool) {
	bounded, ok := s.store.(store.Bounded)
	if !ok {
		return use, false
	}
	use, err := bounded.Usage(ctx)
	if err != nil {
		s.log.Debug("cannot measure how full the store is", "error", err)
		return use, false
	}
	measured := room.Usage{Bytes: use.Bytes, InUse: use.InUse, Quota: use.Quota, NoSpace: use.NoSpace}
	s.usage.Store(&measured)
	if term := s.active.Load(); term != nil {
		setUsage(term.state, measured, s.log)
	}
	return use, true
}

// setUsage tells a term how full the store is, and logs what the term has an event about.
func setUsage(st *state.State, use room.Usage, log *slog.Logger) {
	text, worse := st.SetUsage(use)
	switch {
	case worse:
		log.Warn("the store is filling", "state", text)
	case text != "":
		log.Info("the store has room again", "state", text)
	}
}

func takeStep(ctx context.Context, bounded store.Bounded, step store.Step) error {
	switch step {
	case store.StepCompact:
		return bounded.Compact(ctx)
	case store.StepDefragment:
		return bounded.Defragment(ctx)
	default:
		return bounded.Resume(ctx)
	}
}
