package global

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// campaignPause is how long a server waits after a failed campaign or the end of
// its leadership before it campaigns again.
const campaignPause = 500 * time.Millisecond

// campaign stands for election until the server stops. A leadership term that ends leaves nothing
// in memory: the next term loads everything again.
func (s *server) campaign(ctx context.Context) error {
	removed := false
	s.measure(ctx) // measure the store first, so that a term knows from its beginning how full the store is
	for {
		var err error
		if !removed {
			err = s.removeFormerCandidacy(ctx)
			removed = err == nil
		}
		if err == nil {
			err = s.lead(ctx)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, state.ErrFormat) {
			return err // the records stay unreadable, so another attempt fails too
		}
		s.log.Warn("not active", "error", s.reach.cause(err))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(campaignPause):
		}
	}
}

// removeFormerCandidacy removes the candidacy of this server's former process, if that process was
// killed. Otherwise an election would wait until the key expires. This process has the address now,
// so the key cannot belong to another server. The former process may still live behind a partition
// and grant leases until its candidacy would have ended. Every successor waits for that time.
func (s *server) removeFormerCandidacy(ctx context.Context) error {
	var former []store.KV
	_, err := s.store.List(ctx, state.ElectionPrefix, func(kv store.KV) error {
		c := new(nusav1.GlobalServer)
		if err := state.Decode(kv, c); err != nil {
			return err
		}
		if c.GetName() == s.leader.self.GetName() && c.GetAddress() == s.leader.self.GetAddress() {
			former = append(former, kv)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, kv := range former {
		_, err := s.store.Txn(ctx, []store.Compare{store.Mod(kv.Key, kv.ModRevision)}, []store.Op{store.Delete(kv.Key)})
		if err != nil && !errors.Is(err, store.ErrCompareFailed) {
			return err
		}
	}
	return nil
}

// lead waits until this server is elected, and then is the active server until its leadership ends.
func (s *server) lead(ctx context.Context) error {
	value, err := state.Encode(s.leader.self)
	if err != nil {
		return err
	}
	election, err := s.store.Campaign(ctx, state.ElectionPrefix, string(value), s.cfg.ElectionTTL)
	if err != nil {
		return err
	}
	defer func() {
		// The resignation lets a successor be elected before the key expires.
		resign, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if err := election.Resign(resign); err != nil {
			s.log.Debug("cannot resign", "error", err)
		}
	}()
	start := time.Now()
	term, loaded, err := s.load(ctx, election)
	defer loaded()
	if err != nil {
		return err
	}
	watching, cancel := context.WithCancel(term.ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-election.Lost():
			term.end(state.ErrNotActive)
		case <-watching.Done():
		}
	}()
	s.active.Store(term)
	s.leader.changed(s.leader.self)
	loaded()
	s.log.Info("active", "name", s.cfg.Name, "jobs", len(term.state.Jobs), "regions", len(term.state.Regions), "took", time.Since(start))
	err = term.run()
	s.active.Store(nil)
	cancel()
	<-ended
	return err
}

// loading describes how an elected server reads the records, before it serves.
type loading struct {
	since time.Time
	ended chan struct{} // closed when the server has become the active one, or cannot
}

// err returns the error of calls while the server loads.
func (l *loading) err(name string) error {
	return rpcerr.Error{
		Code: codes.Unavailable, RetryAfter: state.RetryAfter,
		Message: fmt.Sprintf("global server %s is elected and has been loading its records for %s", name, time.Since(l.since).Round(100*time.Millisecond)),
	}.Err()
}

// load begins a term. Until the caller calls loaded, regions wait for the term.
func (s *server) load(ctx context.Context, election store.Election) (term *leadershipTerm, loaded func(), err error) {
	l := &loading{since: time.Now(), ended: make(chan struct{})}
	s.loading.Store(l)
	loaded = sync.OnceFunc(func() {
		s.loading.Store(nil)
		close(l.ended)
	})
	term, err = newTerm(ctx, s, election)
	if err != nil {
		return nil, loaded, err
	}
	if err := term.confirm(ctx); err != nil {
		term.retire()
		return nil, loaded, err
	}
	return term, loaded, nil
}

// awaitMost bounds the wait of a region for the load. It is less than the time in which a region
// expects its welcome.
const awaitMost = 20 * time.Second

// awaitLoaded waits while this server is elected and loads the records. Otherwise it returns at once.
// A region that was refused instead would come back only after a pause of up to five seconds.
func (s *server) awaitLoaded(ctx context.Context) {
	l := s.loading.Load()
	if l == nil {
		return
	}
	late := time.NewTimer(awaitMost)
	defer late.Stop()
	select {
	case <-l.ended:
	case <-late.C:
	case <-ctx.Done():
	}
}

// servers returns all candidates of the election, the active one first.
func (s *server) servers(ctx context.Context) ([]*nusav1.GlobalServer, error) {
	active, ok, err := s.store.Leader(ctx, state.ElectionPrefix)
	if err != nil {
		return nil, err
	}
	var out []*nusav1.GlobalServer
	_, err = s.store.List(ctx, state.ElectionPrefix, func(kv store.KV) error {
		server := new(nusav1.GlobalServer)
		if err := state.Decode(kv, server); err != nil {
			return err
		}
		server.Active = ok && kv.Key == active.Key
		if server.Active {
			out = append([]*nusav1.GlobalServer{server}, out...)
		} else {
			out = append(out, server)
		}
		return nil
	})
	return out, err
}
