package global

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/buses"
	"github.com/nusa-scheduler/nusa/global/deadletters"
	"github.com/nusa-scheduler/nusa/global/discovery"
	"github.com/nusa-scheduler/nusa/global/gather"
	"github.com/nusa-scheduler/nusa/global/hooks"
	"github.com/nusa-scheduler/nusa/global/intakes"
	"github.com/nusa-scheduler/nusa/global/latency"
	"github.com/nusa-scheduler/nusa/global/overview"
	"github.com/nusa-scheduler/nusa/global/placer"
	"github.com/nusa-scheduler/nusa/global/recovery"
	"github.com/nusa-scheduler/nusa/global/repair"
	"github.com/nusa-scheduler/nusa/global/reservations"
	"github.com/nusa-scheduler/nusa/global/room"
	"github.com/nusa-scheduler/nusa/global/schedules"
	"github.com/nusa-scheduler/nusa/global/spares"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/global/uplink"
	"github.com/nusa-scheduler/nusa/global/workflows"
	"github.com/nusa-scheduler/nusa/internal/lease"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/topology"
)

// leadershipTerm is one leadership term of this server as the active one. All soft state belongs to
// the term and ends with it. The next term makes new soft state.
type leadershipTerm struct {
	cfg *Config
	// ctx ends with the term. end ends the term.
	ctx context.Context
	end context.CancelCauseFunc

	state  *state.State
	commit *state.Committer
	gather *gather.Gather
	// repairer compares the tiers.
	repairer *repair.Repairer
	placer   *placer.Placer
	uplink   *uplink.Server
	api      *api.Term
	// hooks delivers events to webhooks, and buses to message brokers.
	hooks    *hooks.Sender
	buses    *buses.Term
	intakes  *intakes.Term
	overview *overview.Term
	book     *reservations.Book
	spares   *spares.Book
	// schedules begins the runs of jobs with schedules.
	schedules *schedules.Book
	// workflows runs the steps of workflows.
	workflows *workflows.Book
	// letters stores what is left of instances that failed for good.
	letters *deadletters.Book
	// services has the instances of services of all regions.
	services *discovery.Exchange

	// renew asks the store whether this server is still the elected one. election is the proof, on
	// Config.Clock: while election lasts, no other server can be elected. The state's lock guards
	// election.
	renew    func(context.Context) error
	election lease.Holder
	// observeVerdicts gets the number of regions that were declared lost.
	observeVerdicts func(int)
	// known is the greatest revision that this server has seen. regions are the regions that it has
	// seen.
	known   *knownRevision
	regions *knownRegions
	// began is when the term began, on the wall clock.
	began time.Time
	// candidates returns the servers that stand for election.
	candidates func(context.Context) ([]*nusav1.GlobalServer, error)
	// store is the store of the records. logKnown is closed when the store has reported the length of
	// its log. nil: regions do not wait for that.
	store    store.Store
	logKnown chan struct{}
}

// silenceCheck is how often the term checks which regions are silent.
const silenceCheck = time.Second

// newTerm begins a term with the records that the store has at the election.
func newTerm(ctx context.Context, s *server, election store.Election) (*leadershipTerm, error) {
	cfg, m, guard := &s.cfg, s.metrics, election.Guard()
	begin, err := state.BeginTerm(ctx, s.store, state.Elected{
		At: cfg.Clock(), Guard: guard, Federation: s.federation, Known: s.known.get(), Lease: cfg.Lease, Candidacy: cfg.ElectionTTL,
	})
	if err != nil {
		return nil, err
	}
	t := &leadershipTerm{cfg: cfg, began: time.Now(), known: s.known, regions: s.regions, renew: election.Renew, candidates: s.servers, store: s.store, observeVerdicts: m.observeVerdicts, state: state.New(begin, cfg.Clock)}
	t.ctx, t.end = context.WithCancelCause(ctx)
	t.state.KnownRegions = s.regions.begin()
	t.state.Self = "global/" + cfg.Name
	t.state.Events.SetAge(cfg.EventRetention)
	if begin.LogUnknown != nil {
		cfg.Logger.Warn("the store does not tell the length of its log: until it does, the store may be an old copy, so no lease is granted and no region is declared lost", "error", s.reach.cause(begin.LogUnknown))
	}
	t.state.Room.Limits = room.Limits{Jobs: cfg.JobsMax, Namespace: cfg.NamespaceMax}
	if use := s.usage.Load(); use != nil {
		setUsage(t.state, *use, cfg.Logger)
	}
	t.commit = state.NewCommitter(t.state, s.store, guard)
	t.placer = placer.New(placer.Config{
		State: t.state, Commit: t.commit, DemandInterval: cfg.CheckpointInterval, Log: cfg.Logger,
		ObservePlan: m.observePlan, ObserveActions: m.observeActions,
	})
	t.commit.Committed, t.commit.Observe = t.placer.Stored, m.observeCommit
	t.commit.Audited = func(entries []audit.Entry) { s.sink.Put(audit.GlobalTrail(s.federation), entries...) }
	t.commit.Decide = func(tx *state.Tx) func() { return placer.Decide(t.placer, tx) }
	t.commit.DecideMost = func() int { return placer.DecideMost(t.placer) }
	t.uplink = uplink.New(uplink.Config{
		Context: t.ctx, State: t.state, Commit: t.commit, Hub: s.hub, Log: cfg.Logger,
		ReportInterval: cfg.ReportInterval, PeersInterval: cfg.CheckpointInterval, WakePlacer: t.placer.Wake,
		Keys: func(region string) *nusav1.KeyGoal { return s.rotating.goals.Load().region(region) },
	})
	t.api = api.NewTerm(api.TermConfig{
		Context: t.ctx, State: t.state, Commit: t.commit, Store: s.store, ServeRegion: t.serveRegion, Renew: t.end, Log: cfg.Logger,
	})
	t.overview = overview.NewTerm(overview.Config{
		Context: t.ctx, State: t.state, Dial: t.api.Dial, Servers: s.servers, Banned: s.bans.region,
		Info: func() *nusav1.InfoResponse {
			out := s.info()
			out.Alarms = t.state.Alarms()
			return out
		},
	})
	t.openBooks()
	t.gather = gather.New(gather.Config{
		State: t.state, Commit: t.commit, Store: s.store, Client: t.api.AuditOf, Age: cfg.AuditRetention,
		Most: func() int64 { return t.boundOf(gather.MostBytes) }, Lost: m.observeLost, Stored: m.observeForwarded, Log: cfg.Logger,
		Audited: func(trail string, entries []audit.Entry) { s.sink.Put(trail, entries...) },
	})
	t.repairer = repair.New(repair.Config{
		State: t.state, Commit: t.commit, Store: s.store, Dial: t.api.Dial, Observe: m.observeRepair, Log: cfg.Logger,
	})
	t.api.Repairer = t.repairer
	t.hooks = hooks.New(hooks.Config{
		State: t.state, Commit: t.commit, Source: t.state.Events, Policy: &cfg.Webhooks, Metrics: s.hooks, Log: cfg.Logger,
	})
	t.connectBrokers(s)
	err = t.state.Load(ctx, s.store)
	if err == nil {
		err = t.countCandidates(ctx)
	}
	if err != nil {
		t.end(err)
		return nil, err
	}
	if t.state.AwaitsLog() && t.state.Leadership.GetConflict() == nil {
		t.logKnown = make(chan struct{})
	}
	t.noteConflict()
	return t, nil
}

// openBooks makes the reservations, the spares, the schedules, the workflows, the dead letters and the services of the term.
func (t *leadershipTerm) openBooks() {
	t.book = reservations.New(reservations.Config{Term: t.api, Retention: t.cfg.ReservationRetention})
	t.schedules = schedules.New(t.api)
	t.workflows = workflows.New(t.api, t.schedules)
	t.letters = deadletters.New(deadletters.Config{Term: t.api, Retention: t.cfg.DeadLetterRetention, Alarm: t.cfg.DeadLetterAlarm, WakePlacer: t.placer.Wake})
	t.services = discovery.New(t.ctx, t.state, t.cfg.Logger)
	t.spares = spares.New(spares.Config{
		Term: t.api, Reservations: t.book, Policy: &t.cfg.Webhooks, Programs: t.cfg.SpareCommands, Retention: t.cfg.ReservationRetention, Log: t.cfg.Logger,
	})
}

// connectBrokers makes what publishes to message brokers, and takes jobs from them.
func (t *leadershipTerm) connectBrokers(s *server) {
	t.buses = buses.NewTerm(buses.Config{
		State: t.state, Commit: t.commit, Store: s.store, Source: t.state.Events, Policy: &t.cfg.Webhooks, Metrics: s.buses, Log: t.cfg.Logger,
	})
	t.intakes = intakes.NewTerm(intakes.Config{
		State: t.state, Commit: t.commit, Store: s.store, Policy: &t.cfg.Webhooks, Secure: t.cfg.Identity != nil, API: t.api, Metrics: s.intakes, Log: t.cfg.Logger,
	})
}

// noteConflict reports that the store must be recovered, with an event and in the log, if an
// earlier term or the beginning of this term has found that.
func (t *leadershipTerm) noteConflict() {
	if why := recovery.Text(t.state.Leadership.GetConflict()); why != "" {
		t.state.Events.Add("store.conflict", "", "%s", why)
		t.cfg.Logger.Error("nothing is placed or ordered", "why", why)
	}
}

// run runs the term until its context ends or one of its loops fails.
func (t *leadershipTerm) run() error {
	defer t.retire()
	g, ctx := errgroup.WithContext(t.ctx)
	checkpoints := state.Checkpoints{State: t.state, Commit: t.commit, Interval: t.cfg.CheckpointInterval, Log: t.cfg.Logger}
	predictor := latency.Predictor{
		View: t.view, Set: t.setPredictor, ReportInterval: t.cfg.ReportInterval, Clock: t.cfg.Clock, Log: t.cfg.Logger,
	}
	lost := failoverLoop{
		state: t.state, commit: t.commit, wake: t.placer.Wake, resign: t.resign, log: t.cfg.Logger, observe: t.observeVerdicts,
	}
	for _, loop := range []func(context.Context) error{lost.run, t.commit.Run, t.eventsLoop, t.eventRetentionLoop, t.hooks.Run, t.buses.Run, t.intakes.Run, t.placer.Run, checkpoints.Run, t.uplink.Run, t.tickLoop, t.secondLoop, t.membersLoop, t.renewLoop, t.answersLoop, t.auditLoop, t.gatherLoop, t.repairer.Run, t.historyLoop, t.logLoop, predictor.Run, t.book.Run, t.spares.Run, t.schedules.Run, t.workflows.Run, t.letters.Run, t.services.Run} {
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

// tickLoop does the work that depends only on time, once in each report interval.
func (t *leadershipTerm) tickLoop(ctx context.Context) error {
	for range wait.Ticks(ctx, t.cfg.ReportInterval) {
		t.uplink.Tick()
		t.placer.Tick()
		t.uplink.SendMatrix()
		t.api.Tick()
		t.noteKnown()
		if err := t.updateLimits(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// secondLoop runs once each second. It checks which regions are silent and what they confirm, and
// counts the slots that drains still have to move.
func (t *leadershipTerm) secondLoop(ctx context.Context) error {
	for range wait.Ticks(ctx, silenceCheck) {
		t.uplink.EndSilent()
		t.state.NoticeSilence()
		placer.CountDrains(t.placer)
		if err := t.confirmRegions(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// confirmRegions stores which regions have confirmed what they run since a recovery of the store.
func (t *leadershipTerm) confirmRegions(ctx context.Context) error {
	t.state.Lock()
	names := t.state.NewlyConfirmed()
	t.state.Unlock()
	if len(names) == 0 {
		return nil
	}
	_, err := t.commit.Do(ctx, func(tx *state.Tx) error {
		for _, name := range names {
			tx.Event("region.confirmed", name, "since the store was recovered, nothing runs there but what the store orders")
			if err := tx.Confirmed(name); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// updateLimits counts the candidates. Once no longer lease of a predecessor can be outstanding, it
// also lowers the times that a successor has to wait.
func (t *leadershipTerm) updateLimits(ctx context.Context) error {
	if err := t.countCandidates(ctx); err != nil {
		t.cfg.Logger.Debug("cannot count the candidates", "error", err)
	}
	t.state.Lock()
	change, lower := t.state.LowerLimits(t.cfg.Lease, t.cfg.ElectionTTL)
	t.state.Unlock()
	if !lower {
		return nil
	}
	_, err := t.commit.Do(ctx, func(tx *state.Tx) error {
		return tx.PutLeadership(change)
	})
	return err
}

// countCandidates notes how many servers stand for election, and the feature level that all of them
// have.
func (t *leadershipTerm) countCandidates(ctx context.Context) error {
	servers, err := t.candidates(ctx)
	if err != nil {
		return err
	}
	level := uint32(featureLevel)
	for _, s := range servers {
		level = min(level, s.GetFeatureLevel())
	}
	t.state.Lock()
	defer t.state.Unlock()
	t.state.Candidates, t.state.GlobalLevel = len(servers), level
	return nil
}

// resign gives up the leadership, so that another candidate is elected. The stored record says why,
// so that the successor does not resign for the same reason.
func (t *leadershipTerm) resign(ctx context.Context, why string) error {
	_, err := t.commit.Do(ctx, func(tx *state.Tx) error {
		return tx.PutLeadership(func(rec *nusav1.LeadershipRecord) { rec.Resigned = why })
	})
	if err != nil {
		return err
	}
	t.end(fmt.Errorf("resigned: %s", why))
	return nil
}

// noteKnown stores the latest revision of the store and the names of its regions in the data
// directory.
func (t *leadershipTerm) noteKnown() {
	t.state.Lock()
	revision, names := t.state.Revision, t.state.ConnectedOnce()
	t.state.Unlock()
	if err := errors.Join(t.known.note(revision), t.regions.note(names)); err != nil {
		t.cfg.Logger.Warn("cannot store what is known of the store; after a restart this server may not notice an old copy", "error", err)
	}
}

// retire ends the term. The term grants no lease after that.
func (t *leadershipTerm) retire() {
	t.noteKnown()
	t.end(state.ErrNotActive)
	t.state.Lock()
	defer t.state.Unlock()
	t.state.Sessions.ActiveUntil = 0
}

// renewLoop renews the proof that no other server can be elected. A failed renewal does not end the
// term, because the end of the election does that. But without renewals the proof expires, and then
// no lease is granted. If the candidacy is gone, renewLoop ends the term.
func (t *leadershipTerm) renewLoop(ctx context.Context) error {
	for range wait.Ticks(ctx, t.cfg.ElectionTTL/3) {
		switch err := t.confirm(ctx); {
		case errors.Is(err, store.ErrCompareFailed):
			return err // another process removed the candidacy
		case err != nil:
			t.cfg.Logger.Debug("cannot verify that this server is the active one", "error", err)
		}
	}
	return ctx.Err()
}

// confirm asks the store whether this server is still the elected one, and extends the proof.
//
// The proof ends before the candidacy does, because the clock of the store may be fast, and a
// successor may exist once the candidacy has ended by that clock. If this server could not serve
// before, the silence of the regions counts from now on.
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
	now := t.cfg.Clock()
	uncertain := !t.state.Sessions.Serving(now) || now < t.state.SessionConfig().ServesFrom
	t.election.Granted(request, lease.Sure(t.cfg.ElectionTTL))
	t.state.Sessions.ActiveUntil = t.election.At(0).Deadline
	if uncertain {
		t.uplink.Resume()
	}
	return nil
}
