package placer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
)

const (
	// planJobs bounds the jobs of one plan. The next plan follows at once, so that jobs which wait
	// for room do not delay the plans of others.
	planJobs = 2048
	// writesPerCommit bounds the writes of one request, so that they fit into one transaction.
	writesPerCommit = 120
	// restFrom, restShare and restMost bound the processor time for plans while many jobs wait for room.
	// After plans that took at least restFrom, the placer rests restShare times as long, and at most
	// restMost. So jobs that wait cost submits little, and a report of a region is still followed soon.
	restFrom, restShare, restMost = 5 * time.Millisecond, 3, 250 * time.Millisecond
)

// Config holds the dependencies of a Placer.
type Config struct {
	State  *state.State
	Commit *state.Committer
	// DemandInterval is the least time between two computations of the demand for probes.
	DemandInterval time.Duration
	Log            *slog.Logger
	// ObservePlan gets the duration of each plan. ObserveActions gets the actions that were
	// written.
	ObservePlan    func(took time.Duration)
	ObserveActions func([]place.Action)
}

// Placer plans the jobs of one leadership term.
type Placer struct {
	Config
	st    *state.State
	woken chan struct{} // capacity 1
	// all: the next plan must have all pending jobs, because of a fact that is not a stored record.
	all atomic.Bool

	// The state's lock guards these fields: explained holds the stored explanations; breachesAt is
	// when breaches were last followed; breached are the jobs with a breach, or with moves because of
	// one; demandAt is when the demand for probes was last computed.
	explained  explanations
	breachesAt time.Duration
	breached   state.JobSet
	demandAt   time.Duration
	// forgetDue: since the last run of forget, a tick found a reason to run it. forgotten is
	// State.MovedChanges at that last run.
	forgetDue bool
	forgotten uint64
	// drains holds the progress of each draining region.
	drains map[string]*drainProgress
	given  given
	// rolling are the rollouts in progress.
	rolling rollouts
	// latest is the outcome of the latest plan of all pending jobs.
	latest latest
	// submits is the Index for the plans of Decide. plans is the Index for the plans of Run.
	// plannedAt is when a plan was last made. Indexes of earlier plans are dropped later: see
	// indexKept.
	submits, plans *place.Index
	// memory is used again by each Decide.
	memory    memory
	plannedAt time.Duration
	// planning is how long the latest plans took, without their writes.
	planning time.Duration
}

// indexKept is how long an Index is kept after a plan. With many regions an Index takes tens of
// megabytes. It also keeps the round trips of its last plan in memory, which take as much again.
const indexKept = 10 * time.Second

// New returns a Placer. It does nothing before Run.
func New(cfg Config) *Placer {
	return &Placer{
		Config: cfg, st: cfg.State, woken: make(chan struct{}, 1), drains: map[string]*drainProgress{}, given: given{at: map[string]uint64{}}, rolling: rollouts{cfg.State, map[state.JobKey]*rolling{}},
		breached: state.JobSet{}, explained: explanations{verdicts: map[state.JobKey]int{}},
		submits: place.NewIndex(), plans: place.NewIndex(),
	}
}

// Wake makes the placer plan all pending jobs again. It does not block.
func (p *Placer) Wake() {
	p.all.Store(true)
	p.Stored()
}

// Stored makes the placer plan what stored records have changed. It does not block.
func (p *Placer) Stored() {
	select {
	case p.woken <- struct{}{}:
	default:
	}
}

// Run plans until ctx ends or a write fails. Every change that may affect a decision wakes it. It
// then plans once for all changes so far.
func (p *Placer) Run(ctx context.Context) error {
	var rested <-chan time.Time // nil: the placer does not rest
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.woken:
		case <-rested:
			rested = nil
		}
		if p.paused() {
			continue
		}
		rest := time.Duration(0)
		plan := func(ctx context.Context) (err error) {
			rest, err = p.placeNext(ctx, rested != nil)
			return err
		}
		for _, work := range []func(context.Context) error{p.forget, plan, p.purge, p.storeResults, p.evaluateRollouts} {
			switch err := work(ctx); {
			case err == nil:
			case errors.Is(err, state.ErrConflict): // a new term begins after the recovery
			default:
				return err
			}
		}
		p.subscribe()
		if rest > 0 {
			rested = time.After(rest)
		}
	}
}

// forget drops former owners that have nothing to confirm, and starts the moves that operators
// began.
func (p *Placer) forget(ctx context.Context) error {
	p.st.Lock()
	if p.st.MovesBegan {
		followMoves(p)
	}
	due := p.forgetDue
	p.forgetDue = false
	if due {
		p.forgotten = p.st.MovedChanges
	}
	p.st.Unlock()
	if !due {
		return nil
	}
	if err := forgetFormer(ctx, p); err != nil {
		return err
	}
	return endReturns(ctx, p)
}

// paused reports whether the store is, or may be, an old copy. Nothing is placed then.
func (p *Placer) paused() bool {
	p.st.Lock()
	defer p.st.Unlock()
	return p.st.OldCopy()
}

// Tick does the work that depends only on time. It is called once in each report interval.
func (p *Placer) Tick() {
	p.dropOld()
	p.followBreaches()
	p.st.Lock()
	defer p.st.Unlock()
	now := p.st.Clock()
	returning := followMoves(p)
	p.forgetDue = p.forgetDue || returning || p.forgotten != p.st.MovedChanges
	expired := false
	for _, r := range p.st.Regions {
		expired = r.ExpireRefusals(p.st.Pending, now) || expired
	}
	if p.rolling.expired(now) {
		p.Wake()
	}
	if expired || p.forgetDue || len(p.st.Pending) > 0 {
		p.Wake()
	}
}

// dropOld updates the demand for probes if that is due, and drops what was kept for plans and is not needed any more.
func (p *Placer) dropOld() {
	p.st.Lock()
	defer p.st.Unlock()
	now := p.st.Clock()
	state.TrimSets(p.st)
	if p.st.ProbeDemandStale && now-p.demandAt >= p.DemandInterval {
		p.demandAt = now
		p.updateProbeDemand()
	}
	if p.plannedAt > 0 && now-p.plannedAt >= indexKept {
		p.submits, p.plans, p.plannedAt, p.memory = place.NewIndex(), place.NewIndex(), 0, memory{}
	}
}

// placeNext plans the jobs that are due, the most urgent first. resting: jobs that wait must not be planned
// again yet. It returns how long the placer then rests from plans of all pending jobs.
func (p *Placer) placeNext(ctx context.Context, resting bool) (rest time.Duration, err error) {
	p.st.Lock()
	keys, all, due := next(p, resting)
	leftOut := p.given.leftOut
	p.planning = 0
	p.st.Unlock()
	if !due {
		return 0, nil
	}
	for batch := range slices.Chunk(keys, planJobs) {
		if err := p.placeBatch(ctx, batch, all); err != nil {
			p.all.Store(true)
			return 0, err
		}
	}
	p.st.Lock()
	defer p.st.Unlock()
	if p.given.leftOut > leftOut {
		p.given.paused = true
	} else if all {
		p.given.paused = false
	}
	if !all || p.given.paused || p.planning < restFrom {
		return 0, nil
	}
	return min(restShare*p.planning, restMost), nil
}

// placeBatch makes one plan and writes its actions. all: the plan is one of all pending jobs.
func (p *Placer) placeBatch(ctx context.Context, keys []state.JobKey, all bool) error {
	start := time.Now()
	p.st.Lock()
	opened := p.all.Load() || p.st.Openings != p.latest.openings
	if opened && !all { // jobs that wait may come before these
		for _, k := range keys {
			p.st.Fresh[k] = struct{}{}
		}
		p.Stored()
		p.st.Unlock()
		return nil
	}
	snapshot, jobs := snapshotOf(p.st, keys)
	since := p.given.stored
	p.plannedAt, snapshot.Index = p.st.Clock(), p.plans
	p.st.Unlock()
	if len(jobs) == 0 {
		return nil
	}
	plan, left := place.MakePlanWithRoom(snapshot)
	p.ObservePlan(time.Since(start))
	p.st.Lock()
	p.record(plan, jobs, !snapshot.Terse)
	p.latest.add(p.st, jobs, left, opened)
	p.planning += time.Since(start)
	p.st.Unlock()
	for _, batch := range batches(plan.Actions) {
		if err := p.apply(ctx, batch, jobs, since); err != nil {
			return fmt.Errorf("apply the plan: %w", err)
		}
	}
	return p.storeEnds(ctx, plan.RegionEnds, jobs)
}

// batches divides the actions into lists that each fit into one transaction. Actions that are
// written together or not at all stay together, unless they do not fit into one transaction.
func batches(actions []place.Action) (out [][]place.Action) {
	start, writes := 0, 0
	for at := 0; at < len(actions); {
		end, n := at+1, len(actions[at].Changes())
		for end < len(actions) && sameSet(actions[at], actions[end]) && n+len(actions[end].Changes()) <= writesPerCommit {
			n += len(actions[end].Changes())
			end++
		}
		if writes+n > writesPerCommit && at > start {
			out, start, writes = append(out, actions[start:at]), at, 0
		}
		writes, at = writes+n, end
	}
	if start < len(actions) {
		out = append(out, actions[start:])
	}
	return out
}

// sameSet reports whether two actions are written together or not at all.
func sameSet(a, b place.Action) bool {
	return a.Set != "" && a.Set == b.Set && a.Job == b.Job && a.Namespace == b.Namespace
}

// apply writes actions in one transaction. It leaves out actions for a job or a slot that has
// changed since the plan; that change has woken the placer, so the next plan decides again. It also
// leaves out offers to a region that was removed, or that got new jobs since. The plan saw the
// offers of the first `since` transactions with new jobs.
func (p *Placer) apply(ctx context.Context, actions []place.Action, jobs map[state.JobKey]seen, since uint64) error {
	var done []place.Action
	now := time.Now()
	revision, err := p.Commit.Do(ctx, func(t *state.Tx) error {
		done = done[:0]
		for i := 0; i < len(actions); {
			end := i + 1
			for end < len(actions) && sameSet(actions[i], actions[end]) {
				end++
			}
			set := actions[i:end]
			i = end
			if slices.ContainsFunc(set, func(a place.Action) bool { return p.outdated(t, a, jobs, since) }) {
				continue
			}
			for _, act := range set {
				act.Moved = now
				if act.Kind == place.Takeover && !act.Slot.Vacant {
					t.ExpectRegion(act.Region)
					if err := state.PutLostAttempts(t, &act.Slot); err != nil {
						return err
					}
				}
				if err := t.ChangeSlots(act.Changes()); err != nil {
					return err
				}
				addEvents(t, act)
				done = append(done, act)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	p.st.Lock()
	defer p.st.Unlock()
	p.ObserveActions(done)
	if len(done) < len(actions) {
		p.Wake()
	}
	p.Log.Debug("plan applied", "actions", len(done), "left", len(actions)-len(done), "revision", revision)
	return nil
}

// addEvents adds the events of an action to its transaction.
func addEvents(t *state.Tx, act place.Action) {
	if act.Kind == place.Share {
		return // nothing that an operator follows: the slot shows it
	}
	job := act.Namespace + "/" + act.Job
	if act.Kind != place.Takeover {
		t.EventText(act.Region, eventType(act.Kind), job, &actionText{act.Group, act.Region, preposition(act.Kind), act.Why, act.From, act.To})
		return
	}
	for _, part := range act.Parts {
		t.EventAt(part.Region, "slot.moved", job, "%s%s from %s to %s: %s", act.Group, region.FormatRange(part.From, part.To), act.Region, part.Region, act.Why)
	}
}

// actionText is the message of an event about an action. It is formatted when the event is stored.
type actionText struct {
	group, region, preposition, why string
	from, to                        int
}

// String returns, for example, "web[0-5] to oslo: it has the highest score".
func (a *actionText) String() string {
	return a.group + region.FormatRange(a.from, a.to) + " " + a.preposition + " " + cmp.Or(a.region, "no region") + ": " + a.why
}

// outdated reports whether an action must not be written any more. There are these reasons: its job
// or its slot has changed since the plan; its region is removed or has got new jobs since; the loss
// of the slot's owner has ended. The lock is held.
func (p *Placer) outdated(t *state.Tx, act place.Action, jobs map[state.JobKey]seen, since uint64) bool {
	k := state.JobKey{Namespace: act.Namespace, Name: act.Job}
	if rec, rev := t.Job(k); rec == nil || rev != jobs[k].revision || t.Stale(act.Changes()) {
		return true
	}
	at, _ := t.Region(act.Region)
	switch act.Kind {
	case place.Offer:
		return at == nil || p.given.newer(act.Region, since)
	case place.Takeover:
		// A region that has connected since then keeps its slots, because it may hold a lease
		// again.
		if !act.Slot.Vacant && (at.GetLost() == nil || at.GetFence() != act.Fence) {
			return true
		}
		return slices.ContainsFunc(act.Parts, func(part place.Part) bool {
			to, _ := t.Region(part.Region)
			return to == nil || to.GetLost() != nil || p.given.newer(part.Region, since)
		})
	}
	return false
}

// preposition returns the preposition between a slot and its region, for an action of a kind.
func preposition(k place.Kind) string {
	switch k {
	case place.Revoke, place.Stop:
		return "from"
	case place.Update:
		return "at"
	}
	return "to"
}

// eventType returns the type of the event about an action of a kind.
func eventType(k place.Kind) string {
	switch k {
	case place.Offer:
		return "slot.offered"
	case place.Update:
		return "slot.updated"
	case place.Stop:
		return "slot.stopping"
	}
	return "slot.revoking"
}

// subscribe sends the jobs' asks to the regions if the asks have changed.
func (p *Placer) subscribe() {
	p.st.Lock()
	defer p.st.Unlock()
	if !p.st.Demand.Subscribe() {
		return
	}
	for _, r := range p.st.Regions {
		if r.Session != nil {
			r.Session.Unsent.Asks = true
			r.Session.Wake()
		}
	}
}
