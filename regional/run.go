package regional

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nusa-scheduler/nusa/internal/series"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/regional/gossip"
	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/quorum"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// run opens a server and runs it until ctx ends or a part fails.
func run(ctx context.Context, cfg Config) error {
	s, err := open(ctx, cfg)
	if err != nil {
		return err
	}
	return s.run(ctx)
}

// run starts the parts, each after the parts that it needs. It waits for the end of ctx or
// the first failure. Then it stops the parts in the opposite order. First another server
// becomes the master, so that the region hardly notices the stop. Then the master's work
// ends, then calls, gossip and Raft. The data directory is closed last.
func (s *server) run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var err error
	s.quorum, err = quorum.Open(quorum.Config{
		ID: s.id, Dir: s.raftDir(), Log: s.cfg.RaftLog, Net: raftNet(s.cfg), Listener: raftListener(s.cfg, s.raftLis), Advertise: s.addrs.Raft,
		Expect: s.cfg.BootstrapExpect, Others: s.othersConfigured(),
		Heartbeat: s.cfg.Raft.Heartbeat, Election: s.cfg.Raft.Election,
		LeaderLease: s.cfg.Raft.LeaderLease, Commit: s.cfg.Raft.Commit,
		ReplaceAfter: 5 * s.cfg.Raft.Heartbeat, DeadAfter: s.cfg.DeadServerAfter,
		Gossip: s.gossip, FSM: s.fsm, Logger: serve.QuietAfter(ctx, s.cfg.Logger),
		Cluster: s.group,
	})
	if err != nil {
		s.close()
		return err
	}
	s.start = presence.Start{At: s.cfg.Clock(), Index: s.quorum.LastIndex()}
	if err := s.gossip.SetLocal(s.meta()); err != nil {
		fail(err)
	}
	start := func(name string, f func(context.Context) error) *part { return startPart(ctx, fail, name, f) }
	gossips := start("gossip", s.gossip.Run)
	group := start("group", s.quorum.Run)
	snapshots := start("snapshots", s.quorum.TakeSnapshots)
	watch := start("servers", s.watchServers)
	probes := start("probe responder", s.responder.Run)
	own := start("identity", s.cfg.Identity.Watch)
	denials := start("denials", func(ctx context.Context) error { return writeDenials(ctx, s) })
	sink := start("audit sink", s.sink.Run)
	trail := start("audit trail", func(ctx context.Context) error { return followTrail(ctx, s) })
	keys := start("keys", func(ctx context.Context) error { return followKeys(ctx, s) })
	banned := start("bans", func(ctx context.Context) error { return watchBans(ctx, s) })
	calls := start("API", s.serve.Run)
	history := start("history", s.runHistory)
	recorder := start("task history", s.tasks.Run)
	filler := start("gaps in the task history", taskFiller(s).Run)
	copies := start("federation", s.copier.Run)
	services := start("services", s.followers.Run)
	down := start("tunnels", func(context.Context) error { return s.serveTunnels() })
	lead := start("master", s.lead)
	if s.cfg.Ready != nil {
		s.cfg.Ready(s.addrs)
	}
	select {
	case <-ctx.Done():
	case <-s.fsm.Broken():
		fail(s.fsm.Err())
	}
	s.handOver()
	lead.stop()
	close(s.stopping)
	calls.stop()
	s.streams.Wait()
	_ = s.tunnels.Close()
	for _, p := range []*part{copies, services, filler, recorder, history, down, own, denials, trail, sink, keys, banned, probes, watch, snapshots, group, gossips} {
		p.stop()
	}
	if err := s.quorum.Close(); err != nil {
		fail(fmt.Errorf("stop Raft: %w", err))
	}
	s.release()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// part is a goroutine of the server that can be stopped alone.
type part struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// startPart runs f until the part is stopped. When f fails or returns early, the whole
// server stops.
func startPart(ctx context.Context, fail context.CancelCauseFunc, name string, f func(context.Context) error) *part {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &part{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		if err := f(own); err != nil {
			fail(fmt.Errorf("%s: %w", name, err))
		} else if own.Err() == nil && ctx.Err() == nil {
			fail(fmt.Errorf("%s: ended by itself", name))
		}
	}()
	return p
}

func (p *part) stop() {
	p.cancel()
	<-p.done
}

// runHistory keeps the file of the metrics history open until ctx ends.
func (s *server) runHistory(ctx context.Context) error {
	path := ""
	if s.dir != nil {
		path = s.dir.Path("history", "series.db")
	}
	limits := series.Limits{Series: s.cfg.HistorySeries, Bytes: s.cfg.HistoryBytes}
	return s.history.Run(ctx, path, limits, s.cfg.Logger)
}

// handOver makes another server the master, so that the region need not wait for an
// election.
func (s *server) handOver() {
	if s.leadership.master() == nil || len(s.quorum.GetConfiguration().Configuration().Servers) < 2 {
		return
	}
	if err := s.quorum.LeadershipTransfer().Error(); err != nil {
		s.cfg.Logger.Debug("cannot transfer leadership", "error", err)
	}
}

// othersConfigured reports whether the configuration names other servers.
func (s *server) othersConfigured() bool {
	for _, a := range s.cfg.Join {
		if a != s.addrs.Gossip && a != s.cfg.GossipAddr {
			return true
		}
	}
	return false
}

// serveTunnels serves the calls that come through tunnels to the global tier.
func (s *server) serveTunnels() error {
	return serve.GRPC(s.serve.GRPC, s.tunnels)
}

// group returns the name of the Raft group in gossip. A later incarnation of the log has
// another name, so servers of an earlier incarnation do not join the group.
func (s *server) group() string {
	c := s.fsm.View().Cluster()
	if c.Incarnation > 1 {
		return fmt.Sprintf("%s/%d", c.ID, c.Incarnation)
	}
	return c.ID
}

// meta returns the metadata that this server publishes in gossip.
func (s *server) meta() gossip.Meta {
	return gossip.Meta{
		ID: s.id, Name: s.cfg.Name, GRPC: s.addrs.GRPC, Raft: s.addrs.Raft, Probe: s.addrs.Probe, Agents: s.addrs.Agents,
		Expect: s.cfg.BootstrapExpect, Bootstrapped: s.quorum.Existing(),
		Cluster: s.group(), Started: time.Now().UnixMilli(), Version: s.cfg.Version,
		Level: state.FeatureLevel,
	}
}
