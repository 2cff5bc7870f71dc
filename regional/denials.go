package regional

import (
	"context"
	"time"

	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/regional/api"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// writeDenials writes entries about denied calls to the audit trail, until ctx ends.
func writeDenials(ctx context.Context, s *server) error {
	err := s.denials.Run(ctx, func(ctx context.Context, some []audit.Entry) error { return recordDenials(ctx, s, some) }, func(err error) {
		s.cfg.Logger.Warn("denied calls are missing in the audit trail", "error", err)
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// recordDenials commits entries about denied calls. Only the master can. Other servers log them.
func recordDenials(ctx context.Context, s *server, some []audit.Entry) error {
	m := s.leadership.apiMaster()
	if m == nil || s.fsm.View().Cluster().FeatureLevel < state.AuditLevel {
		for _, e := range some {
			s.cfg.Logger.Warn("denied call", "who", e.Who, "from", e.From, "method", e.Method, "why", e.Reason)
		}
		return nil
	}
	return commitDenials(ctx, m.Log, some)
}

// commitDenials proposes one command for each entry, and waits until all are committed.
func commitDenials(ctx context.Context, log api.Log, some []audit.Entry) error {
	var waiting []*raftlog.Proposal
	var first error
	for _, e := range some {
		p, err := log.Propose(state.Command{Audit: state.AuditOf(e.Bounded())})
		if err != nil {
			first = err
			break
		}
		waiting = append(waiting, p)
	}
	for _, p := range waiting {
		if _, err := p.Wait(ctx); err != nil && first == nil {
			first = err
		}
	}
	return first
}

const (
	// trailEvery is how often new entries of the trail are passed to the sink.
	trailEvery = 500 * time.Millisecond
	// overlap is how far before its leadership a new master begins, because its predecessor may not
	// have written the latest entries. So entries may be written twice.
	overlap = 30 * time.Second
)

// followTrail passes new entries of the trail to the sink while this server is the master, until ctx
// ends.
func followTrail(ctx context.Context, s *server) error {
	if s.sink == nil {
		<-ctx.Done()
		return nil
	}
	next := int64(-1) // the number of the last entry that was passed on; -1: this server is not the master
	for range wait.Ticks(ctx, trailEvery) {
		m := s.leadership.apiMaster()
		if m == nil {
			next = -1
			continue
		}
		trail := s.fsm.View().Audit()
		if next < 0 {
			next = earlier(trail, time.Now().Add(-overlap).UnixNano())
		}
		for x := range trail.After(next) {
			s.sink.Put(audit.RegionTrail(m.Cluster.Region, m.Cluster.ID), x.Entry(m.Cluster.Region))
			next = x.Seq
		}
	}
	return nil
}

// earlier returns the number of the last entry before a time.
func earlier(trail *state.Trail, unixNano int64) int64 {
	for x := range trail.Latest() {
		if x.UnixNano < unixNano {
			return x.Seq
		}
	}
	return trail.Base().Size
}
