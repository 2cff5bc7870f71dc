package regional

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/internal/notify"
	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/regional/api"
	"github.com/nusa-scheduler/nusa/regional/discovery"
	"github.com/nusa-scheduler/nusa/regional/master"
	"github.com/nusa-scheduler/nusa/regional/overview"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// barrierTimeout bounds the wait until all entries of earlier masters are applied.
const barrierTimeout = 10 * time.Second

// leadership holds this server's present term. It is safe for concurrent use.
type leadership struct {
	mu      sync.Mutex
	now     *term // nil while this server does not lead
	changed notify.Signal
}

// term is one term of this server as the master.
type term struct {
	master *master.Master
	// api is what the API sees of the same term. overview has the streams of the overview.
	api      *api.Master
	overview *overview.Term
}

// current returns the present term, nil while this server does not lead. The channel is
// closed when the region's master or its servers change.
func (s *leadership) current() (*term, <-chan struct{}) {
	changed := s.changed.C() // get the channel before the read, so that no change is missed
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, changed
}

// master returns the present Master; nil while this server does not lead.
func (s *leadership) master() *master.Master {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil {
		return nil
	}
	return s.now.master
}

// apiMaster returns the present term for the API; nil while this server does not
// lead.
func (s *leadership) apiMaster() *api.Master {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil {
		return nil
	}
	return s.now.api
}

// overviewTerm returns the streams of the overview in the present term; nil while this
// server does not lead.
func (s *leadership) overviewTerm() *overview.Term {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil {
		return nil
	}
	return s.now.overview
}

// exchange returns what the present term does about services, and a channel that is closed when the
// term ends. Both are nil while this server does not lead.
func (s *leadership) exchange() (*discovery.Exchange, <-chan struct{}) {
	m := s.master()
	if m == nil {
		return nil, nil
	}
	return m.Exchange, m.Context().Done()
}

func (s *leadership) set(t *term) {
	s.mu.Lock()
	s.now = t
	s.mu.Unlock()
	s.changed.Notify()
}

// lead does a master's work whenever Raft says that this server is the leader,
// until ctx ends.
func (s *server) lead(ctx context.Context) error {
	for {
		for ctx.Err() == nil && s.quorum.State() == raft.Leader {
			err := s.runTerm(ctx)
			if errors.Is(err, state.ErrOtherCluster) {
				return err
			}
			if err != nil && ctx.Err() == nil {
				s.cfg.Logger.Warn("leadership ended", "error", err)
			}
			if s.quorum.State() == raft.Leader {
				// This server still leads although the work failed. The pause prevents a busy loop.
				wait.For(ctx, s.cfg.Raft.Heartbeat)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.quorum.LeaderCh():
		}
	}
}

// runTerm does the work of one term. It returns when the term has ended.
func (s *server) runTerm(ctx context.Context) error {
	term, elected := s.quorum.CurrentTerm(), s.cfg.Clock()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.awaitTermEnd(ctx, term) })
	g.Go(func() error {
		if err := s.quorum.Barrier(barrierTimeout).Error(); err != nil {
			return fmt.Errorf("catch up with the log: %w", err)
		}
		cluster, err := bootstrap(ctx, s.quorum, s.fsm, s.cfg.Region.GetName())
		if err != nil {
			return err
		}
		return s.runMaster(ctx, term, elected, cluster)
	})
	err := g.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// awaitTermEnd returns ErrNotLeader when the term ends. It does not trust one message of
// LeaderCh alone, because Raft may report a won election after the term's work began. A
// server that wins again has another term number.
func (s *server) awaitTermEnd(ctx context.Context, term uint64) error {
	for s.quorum.State() == raft.Leader && s.quorum.CurrentTerm() == term {
		select {
		case <-ctx.Done():
			return nil
		case <-s.quorum.LeaderCh():
		}
	}
	return raftlog.ErrNotLeader
}

// runMaster runs a Master for the term.
func (s *server) runMaster(ctx context.Context, number uint64, elected time.Duration, cluster state.Cluster) error {
	watches, jobs := api.NewGroupWatches(), &overview.Jobs{}
	changed := func(groups []state.GroupKey) {
		watches.Changed(groups)
		jobs.Changed(groups)
	}
	m, err := master.New(ctx, master.Config{
		Region: s.cfg.Region, Server: s.cfg.Name, Address: s.addrs.GRPC, Version: s.cfg.Version, Global: s.cfg.Global,
		Net: s.cfg.Net, Identity: s.cfg.Identity, Clock: s.cfg.Clock,
		NodeLease: s.cfg.NodeLease, StatsInterval: s.cfg.StatsInterval, ReportInterval: s.cfg.ReportInterval,
		ProbeAddr: s.cfg.ProbeAddr, ProbeRate: s.cfg.ProbeRate, ProbeRing: s.probes, ProbeLastSeen: s.responder.LastSeen,
		Term: number, Elected: elected, Start: s.start, Cluster: cluster, RaftLog: s.quorum, FSM: s.fsm,
		FeatureLevel:    s.featureLevel,
		ObserveRepair:   s.counters.observeRepair,
		VerifyLeader:    func() error { return s.quorum.VerifyLeader().Error() },
		MaintainMembers: s.quorum.MaintainMembers,
		Federation:      s.federation, Services: s.discovery, Metrics: s.history, Hub: s.hub, Tunnels: s.tunnels, Streams: &s.streams,
		Servers: s.servers, AgentServers: s.agentServers, Keys: s.wanted.announced.Load, Standby: s.standbyMessage, GroupsChanged: changed, Logger: s.cfg.Logger,
	})
	if err != nil {
		return err
	}
	t := &term{master: m, api: apiMaster(m, watches)}
	t.overview = overview.NewTerm(m.Context(), s.calls, t.api, jobs)
	return m.Run(func() { s.leadership.set(t) }, func() { s.leadership.set(nil) })
}
