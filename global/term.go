package global

import (
	"context"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/latency"
	"github.com/nusa-scheduler/nusa/global/placer"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/global/uplink"
	"github.com/nusa-scheduler/nusa/internal/lease"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	"github.com/nusa-scheduler/nusa/topology"
)

// leadershipTerm is this server as the active one for one leadership term. All
// soft state belongs to it and ends with it; the next term makes a new one.
type leadershipTerm struct {
	cfg *Config
	// ctx ends with the term; end ends the term.
	ctx context.Context
	end context.CancelCauseFunc

	state  *state.State
	commit *state.Committer
	placer *placer.Placer
	uplink *uplink.Server
	api    *api.Term

	// renew asks the store whether this server is still the elected one. election is
	// the proof, on Config.Clock: while it lasts, no other server can be elected. The
	// state's lock guards election.
	renew    func(context.Context) error
	election lease.Holder
}

// newTerm begins a term with the records as they are at the election.
func newTerm(ctx context.Context, cfg *Config, s store.Store, election store.Election, hub *tunnel.Hub, m *metrics) (*leadershipTerm, error) {
	guard := election.Guard()
	t := &leadershipTerm{
		cfg: cfg, renew: election.Renew,
		state: state.New(strconv.FormatInt(guard.Revision, 36), cfg.Clock, cfg.Lease),
	}
	t.ctx, t.end = context.WithCancelCause(ctx)
	t.commit = state.NewCommitter(t.state, s, guard)
	t.placer = placer.New(placer.Config{
		State: t.state, Commit: t.commit, DemandInterval: cfg.CheckpointInterval, Log: cfg.Logger,
		ObservePlan: m.observePlan, ObserveActions: m.observeActions,
	})
	t.commit.Committed, t.commit.Observe = t.placer.Wake, m.observeCommit
	t.uplink = uplink.New(uplink.Config{
		Context: t.ctx, State: t.state, Commit: t.commit, Hub: hub, Log: cfg.Logger,
		Lease: cfg.Lease, ReportInterval: cfg.ReportInterval, PeersInterval: cfg.CheckpointInterval,
		MayGrant: t.mayGrant, WakePlacer: t.placer.Wake,
	})
	t.api = api.NewTerm(api.TermConfig{
		Context: t.ctx, State: t.state, Commit: t.commit, Store: s, ServeRegion: t.uplink.Serve, Log: cfg.Logger,
	})
	if err := t.state.Load(ctx, s); err != nil {
		t.end(err)
		return nil, err
	}
	return t, nil
}

// run runs the term until its context ends or something fails.
func (t *leadershipTerm) run() error {
	defer t.end(state.ErrNotActive)
	g, ctx := errgroup.WithContext(t.ctx)
	checkpoints := state.Checkpoints{State: t.state, Commit: t.commit, Interval: t.cfg.CheckpointInterval, Log: t.cfg.Logger}
	predictor := latency.Predictor{
		View: t.view, Set: t.setPredictor, ReportInterval: t.cfg.ReportInterval, Clock: t.cfg.Clock, Log: t.cfg.Logger,
	}
	for _, loop := range []func(context.Context) error{t.commit.Run, t.placer.Run, checkpoints.Run, t.tickLoop, t.renewLoop, predictor.Run} {
		g.Go(func() error { return loop(ctx) })
	}
	t.placer.Wake()
	return g.Wait()
}

func (t *leadershipTerm) view() *topology.View {
	t.state.Lock()
	defer t.state.Unlock()
	return t.state.TopologyView()
}

func (t *leadershipTerm) setPredictor(p topology.Predictor) {
	t.state.Lock()
	t.state.Latency.SetPredictor(p)
	t.state.Notify()
	t.state.Unlock()
	t.placer.Wake()
}

// tickLoop makes the changes that depend only on time, once in each report interval.
func (t *leadershipTerm) tickLoop(ctx context.Context) error {
	tick := time.NewTicker(t.cfg.ReportInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			t.uplink.Tick()
			t.state.NoticeSilence()
			t.placer.Tick()
			t.uplink.SendMatrix()
			t.api.Tick()
		}
	}
}

// renewLoop extends the time until which no other server can be elected. A failure
// does not end the term, since the election does that. But without renewals the
// time runs out, and then no lease is granted.
func (t *leadershipTerm) renewLoop(ctx context.Context) error {
	tick := time.NewTicker(t.cfg.ElectionTTL / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if err := t.confirm(ctx); err != nil {
			t.cfg.Logger.Debug("no proof of being the active server", "error", err)
		}
	}
}

// mayGrant says whether, according to the latest renewal, no other server can be
// active yet. The state's lock is held.
func (t *leadershipTerm) mayGrant() bool { return t.election.At(t.cfg.Clock()).Left > 0 }

// confirm asks the store whether this server is still the elected one.
func (t *leadershipTerm) confirm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.ElectionTTL)
	defer cancel()
	t.state.Lock()
	request := t.election.Request(t.cfg.Clock())
	t.state.Unlock()
	if err := t.renew(ctx); err != nil {
		return err
	}
	t.state.Lock()
	defer t.state.Unlock()
	t.election.Granted(request, t.cfg.ElectionTTL)
	return nil
}
