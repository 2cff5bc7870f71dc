package master

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nusa-scheduler/nusa/regional/accept"
	"github.com/nusa-scheduler/nusa/regional/pools"
	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

const (
	// perCommand bounds the placements in one command. A placement takes about 300 bytes,
	// so the command fits a log entry.
	perCommand = 512
	// fewCommands is how many commands a small plan has at most.
	fewCommands = 4
	// retryAfter is the pause after a plan whose commands changed nothing. Without the
	// pause the sequencer would make the same plan in a loop.
	retryAfter = 100 * time.Millisecond
	// maxPlaces bounds the placements of one plan, and so the time in which the sequencer
	// does nothing else. That time is some milliseconds when the asks are alike, and a
	// quarter of a second with hundreds of different asks. One group may exceed the bound:
	// see sched.Input.
	maxPlaces = 2048
	// maxRest bounds the pause between plans that leave instances unplaced.
	maxRest = time.Second
)

// plannerConfig holds the dependencies of a Planner.
type plannerConfig struct {
	nodeLease time.Duration
	// absences returns a function that returns how long a node of the view has been absent.
	absences func(*state.View) func(nodeID string) presence.Absence
	exprs    *exprs
	// load returns what the policies of pools weigh.
	load func(*state.View) *pools.Load
	// connected reports whether a session with the global tier exists.
	connected func() bool
	// logIsOld reports whether a node runs an order that the log does not have.
	logIsOld func() bool
	// logSuspect reports whether the log may be an old copy.
	logSuspect func() bool
	// reasonsChanged is called with the groups for which the newest plan has reasons.
	reasonsChanged func(map[state.GroupKey]struct{})
}

// Planner makes plans from the speculative state and returns the commands of each plan. The
// speculative state includes the commands in flight, so a plan never has to guess their
// results.
type Planner struct {
	cfg plannerConfig
	// Only the sequencer's goroutine uses the field planner.
	planner *sched.Planner
	// check is a request to compare the cached nodes with the log. decide answers it.
	check atomic.Pointer[chan []string]
	// more is true when the latest plan is large or is a part of a larger plan.
	more atomic.Bool

	mu sync.Mutex
	// last is the newest committed plan, made at lastUnixNano. reasons and unplaced are
	// computed from last when a caller first asks for them.
	last         *sched.Plan
	lastUnixNano int64
	reasons      map[state.GroupKey][]wire.CountedReason
	unplaced     map[state.GroupKey][]sched.Unplaced
	// placed is the slot revision up to which all slots are placed as far as possible. A
	// report to the global tier includes the slots up to that revision.
	placed int64
	// planned is the position in the slot orders up to which the committed plans are
	// complete. Allocations that no slot wants at that position have their order to stop.
	planned state.Position
}

func newPlanner(cfg plannerConfig) *Planner { return &Planner{cfg: cfg, planner: sched.NewPlanner()} }

// Input returns the input of a plan over a view.
func (p *Planner) Input(view *state.View) sched.Input {
	return sched.Input{
		View: view, NowUnixNano: time.Now().UnixNano(), NodeLease: p.cfg.nodeLease, Absence: p.cfg.absences(view), Funcs: p.cfg.exprs.funcs(),
		Load: p.cfg.load(view), LogSuspect: p.cfg.logSuspect(),
	}
}

// decide makes a plan. It also returns slots that fit nowhere to the global tier. The
// sequencer calls it.
func (p *Planner) decide(view *state.View) raftlog.Decision {
	if p.cfg.logIsOld() {
		return raftlog.Decision{RecheckAfter: maxRest} // the log has forgotten what runs
	}
	if check := p.check.Swap(nil); check != nil {
		*check <- p.planner.Check(view)
	}
	began := time.Now()
	in := p.Input(view)
	in.MaxPlaces = maxPlaces
	plan := p.planner.Make(in)
	d := raftlog.Decision{RetryAfter: retryAfter, Rest: restAfter(plan, time.Since(began)), OnCommitted: func() { p.record(in, plan) }}
	for _, c := range plan.Commands(uuid.NewString, perCommand) {
		d.Commands = append(d.Commands, state.Command{ApplyPlan: &c})
	}
	returned, recheck := accept.Return(accept.Input{
		View: in.View, Unplaced: plan.Unplaced, LinkUp: p.cfg.connected(),
		NowUnixNano: in.NowUnixNano, Grace: accept.DefaultGrace,
	})
	if returned != nil {
		d.Commands = append(d.Commands, state.Command{AnswerSlots: returned})
	}
	d.RecheckAfter = earliest(plan.Wake, recheck)
	p.more.Store(plan.More || len(d.Commands) > fewCommands)
	return d
}

// checkNodes compares the cached nodes with the log before the next plan, and drops the cache if they
// differ. wake makes the sequencer plan. It returns the nodes that differ, or false if ctx ended.
func (p *Planner) checkNodes(ctx context.Context, wake func()) ([]string, bool) {
	answer := make(chan []string, 1)
	p.check.Store(&answer)
	wake()
	select {
	case wrong := <-answer:
		return wrong, true
	case <-ctx.Done():
		return nil, false
	}
}

// restAfter returns the pause after a plan. While instances fit nowhere, the pause is as
// long as the plan took. Without the pause, thousands of agents would cause a new plan with
// each report that releases resources, and each plan would try all unplaced instances
// again.
func restAfter(plan *sched.Plan, took time.Duration) time.Duration {
	if plan.More || len(plan.Unplaced) == 0 {
		return 0
	}
	return min(took, maxRest)
}

// earliest returns the shorter duration, where 0 means never.
func earliest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// record stores a committed plan and the revision up to which slots are placed.
func (p *Planner) record(in sched.Input, plan *sched.Plan) {
	view := in.View
	placed := int64(0)
	whole := !plan.More && !view.Cluster().OrdersIncomplete
	if plan.Empty() && !view.Cluster().OrdersIncomplete {
		placed = view.SlotsRevision()
	}
	p.mu.Lock()
	p.last, p.lastUnixNano, p.reasons, p.unplaced = plan, in.NowUnixNano, nil, nil
	p.placed = max(p.placed, placed)
	if whole {
		p.planned = view.Cluster().Orders
	}
	p.mu.Unlock()
	groups := map[state.GroupKey]struct{}{}
	for _, u := range plan.Unplaced {
		groups[u.Key] = struct{}{}
	}
	for _, w := range plan.Waiting {
		groups[w.Key] = struct{}{}
	}
	p.cfg.reasonsChanged(groups)
}

// plannedOrders returns the position in the slot orders up to which the committed plans are
// complete. It is zero before the first plan.
func (p *Planner) plannedOrders() state.Position {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.planned
}

// Latest returns the newest committed plan and the time for which it was made. The plan is
// nil before the first one.
func (p *Planner) Latest() (plan *sched.Plan, unixNano int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last, p.lastUnixNano
}

// placedRevision returns the slot revision up to which all slots are placed as far as
// possible.
func (p *Planner) placedRevision() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.placed
}

// Pending returns why instances of a group have no node, according to the newest plan.
func (p *Planner) Pending(key state.GroupKey) []wire.CountedReason {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reasons == nil && p.last != nil {
		p.reasons = wire.PlanReasons(p.last)
	}
	return p.reasons[key]
}

// unplacedOf returns the instances of a group for which the newest plan found no node.
func (p *Planner) unplacedOf(key state.GroupKey) []sched.Unplaced {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unplaced == nil && p.last != nil {
		p.unplaced = map[state.GroupKey][]sched.Unplaced{}
		for _, u := range p.last.Unplaced {
			p.unplaced[u.Key] = append(p.unplaced[u.Key], u)
		}
	}
	return p.unplaced[key]
}

// queueLength returns how many instances wait for a node.
func (p *Planner) queueLength() int32 {
	plan, _ := p.Latest()
	if plan == nil {
		return 0
	}
	n := int32(0)
	for _, u := range plan.Unplaced {
		n += sched.Instances(u.Ranges)
	}
	for _, w := range plan.Waiting {
		n += sched.Instances(w.Ranges)
	}
	return n
}
