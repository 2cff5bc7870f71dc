package regional

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/internal/eventlog"
	"github.com/nusa-scheduler/nusa/regional/api"
	"github.com/nusa-scheduler/nusa/regional/metrics"
	agentnodes "github.com/nusa-scheduler/nusa/regional/nodes"
	"github.com/nusa-scheduler/nusa/regional/peers"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/uplink"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

const (
	// barrierTimeout bounds the wait for the log of earlier masters.
	barrierTimeout = 10 * time.Second
	// endedKept is how long allocations that have ended stay listed.
	endedKept = time.Hour
	// goneKept is how long nodes that are lost or left stay listed, and what lost
	// ones may run is believed in. One that comes back later registers as a new
	// one, and stops what it runs.
	goneKept = 72 * time.Hour
	// goneWatched is for how long a master has led before it forgets any: one
	// whose clock is wrong must not give up nodes that are about to be heard of.
	goneWatched = time.Hour
	// purgeEvery is how often what has ended for so long is forgotten.
	purgeEvery = time.Minute
	// purgeAtOnce bounds the job versions and keys that one command forgets:
	// their names travel in it, it shall fit an entry. purgeRounds bounds the
	// commands of a pass.
	purgeAtOnce = 1000
	purgeRounds = 1000
)

func newID() string { return uuid.NewString() }

// ids makes random UUIDs in great number, as newID does, but asks the system for
// the randomness of many at once. Not for two goroutines at once.
type ids struct {
	random [256 * len(uuid.UUID{})]byte
	left   int
}

func (s *ids) next() string {
	if s.left == 0 {
		rand.Read(s.random[:]) // never fails
		s.left = len(s.random)
	}
	s.left -= len(uuid.UUID{})
	id := uuid.UUID(s.random[s.left:][:len(uuid.UUID{})])
	id[6] = id[6]&0x0f | 4<<4 // version 4: random
	id[8] = id[8]&0x3f | 2<<6 // variant 2: RFC 9562
	return id.String()
}

// leader is everything that only a master does and knows. It is made anew at
// each election and ends with it.
type leader struct {
	s   *server
	log *slog.Logger
	// ctx ends with the leadership.
	ctx     context.Context
	term    uint64
	cluster state.Cluster
	// epoch numbers the link to every agent and to the global tier.
	epoch string

	// events is what happened in this office; made before anybody can ask.
	events   *eventlog.Log
	seq      *raftlog.Sequencer
	agents   *agentnodes.Agents
	sched    *scheduler
	reporter *uplink.Reporter
	uplink   *uplink.Uplink
	prober   *peers.Prober
	exprs    *exprs
	groups   *api.GroupWatches
	// api is this term as the API sees it.
	api *api.Master
}

// lead does a master's work whenever Raft says that this server is one, until
// ctx ends.
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
				// Still elected though the work failed: not in a busy loop.
				pause(ctx, s.cfg.Raft.Heartbeat)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.quorum.LeaderCh():
		}
	}
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// runTerm does the work of one term; it returns when the term has ended.
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
		return s.runLeader(ctx, term, elected, cluster)
	})
	err := g.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// awaitTermEnd returns ErrNotLeader when the term ends. Raft's message of a won
// election may arrive after the term's work began; a term won again has another
// number.
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

// runLeader creates the values of a term and runs them until ctx ends or one
// fails.
func (s *server) runLeader(ctx context.Context, term uint64, elected time.Duration, cluster state.Cluster) error {
	g, ctx := errgroup.WithContext(ctx)
	l := &leader{
		s: s, ctx: ctx, term: term, cluster: cluster, log: s.cfg.Logger.With("term", term),
		epoch: fmt.Sprintf("%s/%d/%d", cluster.ID, cluster.Incarnation, term),
		exprs: newExprs(s.cfg.Region.GetName()), groups: api.NewGroupWatches(),
	}
	l.events = eventlog.New(l.epoch)
	l.sched = newScheduler(l)
	l.seq = raftlog.NewSequencer(s.quorum, s.fsm, l.sched.decide, l.committed)
	verifier := raftlog.NewVerifier(func() error { return s.quorum.VerifyLeader().Error() })
	l.agents = agentnodes.New(ctx, agentnodes.Config{
		Region: s.cfg.Region.GetName(), Cluster: cluster, Term: term, Epoch: l.epoch,
		NodeLease: s.cfg.NodeLease, StatsInterval: s.cfg.StatsInterval, Clock: s.cfg.Clock, Elected: elected,
		Log: l.seq, FSM: s.fsm, Verifier: verifier, Events: l.events, Logger: l.log,
		Hub: s.hub, Streams: &s.streams, Servers: s.servers, Standby: s.standbyMessage, MorePlanned: l.sched.more.Load,
	})
	var err error
	if l.prober, err = peers.NewProber(peers.ProberConfig{
		Region: s.cfg.Region, Net: s.cfg.Net, Addr: s.cfg.ProbeAddr, Rate: s.cfg.ProbeRate, Keys: s.cfg.ProbeKeys,
		LastSeen: s.responder.LastSeen, Clock: s.cfg.Clock, EdgeChanged: func() { l.uplink.EdgeChanged() }, Federation: s.federation, Log: l.log,
	}); err != nil {
		return err
	}
	l.reporter = &uplink.Reporter{
		Region: s.cfg.Region.GetName(), Incarnation: cluster.Incarnation, View: s.fsm.View, Input: l.input, Stats: l.stats,
		Plan: uplink.Plan{
			Reasons: l.sched.pending, Unplaced: l.sched.without,
			SettledRevision: l.sched.settledRevision, QueueLength: l.sched.queueLength,
		},
	}
	l.uplink = uplink.New(uplink.Config{
		Definition: s.cfg.Region, Global: s.cfg.Global, Net: s.cfg.Net, Server: s.cfg.Name, Address: s.addrs.GRPC,
		Version: s.cfg.Version, ReportInterval: s.cfg.ReportInterval, Clock: s.cfg.Clock,
		Cluster: cluster, Term: term, Epoch: l.epoch, Log: l.seq, FSM: s.fsm, Reporter: l.reporter,
		Federation: s.federation, Prober: l.prober, Tunnels: s.tunnels, Servers: s.servers, Logger: l.log,
	})
	poller := &peers.Poller{Prober: l.prober, Connected: l.uplink.Connected, Net: s.cfg.Net, Log: l.log}
	l.log.Info("this server is the master", "cluster", cluster.ID, "incarnation", cluster.Incarnation)
	l.events.Add("master.elected", s.cfg.Name, "term %d", term)
	l.api = l.apiMaster()
	s.standing.set(l)
	g.Go(func() error {
		<-ctx.Done()
		s.standing.set(nil)
		return nil
	})
	for _, part := range []func(context.Context) error{
		l.seq.Run, verifier.Run, l.agents.Watch, l.agents.Deliver, l.uplink.Run, l.prober.Run, poller.Run,
		s.quorum.MaintainMembers, l.purge, l.recorder().Run,
	} {
		g.Go(func() error { return part(ctx) })
	}
	l.seq.Wake() // the first plan; from now on one follows each change
	err = g.Wait()
	l.agents.Close()
	return err
}

// committed passes on what changed to those whom it concerns. Called in the
// order of the log.
func (l *leader) committed(results []state.Result) {
	changed, ordered, touched := false, 0, 0
	for i := range results {
		ordered += len(results[i].Orders)
		touched += len(results[i].Groups)
	}
	orders := make([]*state.Alloc, 0, ordered)
	groups := make([]state.GroupKey, 0, touched)
	var dirty []string
	for i := range results {
		r := &results[i]
		changed = changed || r.Changed
		orders = append(orders, r.Orders...)
		dirty = append(dirty, r.Nodes...)
		groups = append(groups, r.Groups...)
		for _, a := range r.Reported {
			l.addInstanceEvent(a)
		}
		l.purged(r)
	}
	if !changed {
		return
	}
	l.groups.Changed(groups)
	l.agents.AddOrders(orders)
	l.agents.MarkDirty(dirty)
	l.uplink.GroupsChanged(groups)
}

// purged tells what was forgotten. A stop that purges a job of which nothing
// runs does both at once: who asked for it would tell of the stop too late.
func (l *leader) purged(r *state.Result) {
	for _, k := range r.Purged {
		name := k.In(l.s.cfg.Region.GetName())
		if r.Revision > 0 {
			l.events.Add("job.stopped", name, "nothing of it runs")
		}
		l.events.Add("job.purged", name, "forgotten")
	}
}

// stats returns a node's latest statistics.
func (l *leader) stats(nodeID string) (wire.NodeStats, bool) {
	return l.agents.Stats(nodeID, l.s.cfg.Clock())
}

// recorder records what this master measures.
func (l *leader) recorder() *metrics.Recorder {
	return &metrics.Recorder{
		Store: l.s.history, Region: l.s.cfg.Region.GetName(), Server: l.s.cfg.Name,
		View: l.s.fsm.View, Edges: l.prober.Edges, StatsInterval: l.s.cfg.StatsInterval,
		Stats:  l.stats,
		Events: l.events, Log: l.log,
	}
}

// purge forgets what ended long ago.
func (l *leader) purge(ctx context.Context) error {
	tick := time.NewTicker(purgeEvery)
	defer tick.Stop()
	began := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		led := time.Since(began) // by the monotonic clock
		now := unjumped(time.Now(), began, led)
		before := now.Add(-endedKept).UnixNano()
		// A command forgets a bounded number: short batch jobs end faster.
		for range purgeRounds {
			c := l.s.fsm.View().Purgeable(before, now.UnixNano(), purgeAtOnce)
			if c == nil {
				break
			}
			r, err := l.seq.CommitQueued(ctx, state.Command{Purge: c})
			if err != nil {
				return ignoreAfterEnd(ctx, fmt.Errorf("forget what has ended: %w", err))
			}
			if !r.Changed {
				break // all of it is in use again
			}
		}
		if led < goneWatched {
			continue
		}
		for _, n := range longGone(l.s.fsm.View(), now.Add(-goneKept).UnixNano()) {
			r, err := l.seq.CommitQueued(ctx, state.Command{RemoveNode: &state.RemoveNode{ID: n.ID}})
			if err != nil && r.Err == nil { // it may have come back at this moment
				return ignoreAfterEnd(ctx, fmt.Errorf("forget a node: %w", err))
			}
			if err == nil {
				l.events.Add("node.removed", n.Name, "it is gone for more than %v", goneKept)
				l.log.Info("node is forgotten", "node", n.Name, "id", n.ID, "gone", goneKept)
			}
		}
	}
}

// unjumped is the wall clock's time, or what it would be had it not been set
// forward since some time has passed from began on: what is forgotten by age is
// rather kept for too long.
func unjumped(wall, began time.Time, passed time.Duration) time.Time {
	if steady := began.Add(passed); steady.Before(wall) {
		return steady
	}
	return wall
}

// longGone are the nodes that have not been there since, about which no operator
// has said anything, and for which no instance waits. What else may run there
// has been replaced, or waits in vain for a node with room in this region and
// is away: once the node is forgotten it is given back, like any other.
func longGone(view *state.View, since int64) []*state.Node {
	var out []*state.Node
nodes:
	for n := range view.Nodes() {
		if n.Status == state.NodeReady || n.StatusUnixNano >= since || n.Cordoned || n.Draining {
			continue
		}
		for a := range view.NodeAllocs(n.ID) {
			if a.Live() && waitsFor(view, a) {
				continue nodes
			}
		}
		out = append(out, n)
	}
	return out
}

// waitsFor says that an allocation of a lost node must not be replaced without
// the node's word, or an operator's: its group says `replace: false`. A system
// job wants nothing where there is no node.
func waitsFor(view *state.View, a *state.Alloc) bool {
	job, ok := view.Job(a.Key().JobKey(), a.JobVersion)
	if !ok || job.Type == state.System {
		return false
	}
	g := job.Group(a.Key().Group)
	return g != nil && !g.Disconnect.Replace
}

// ignoreAfterEnd returns nil when ctx has ended, else err: after the end of ctx
// the errors of its calls carry no news.
func ignoreAfterEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
