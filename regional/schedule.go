package regional

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nusa-scheduler/nusa/regional/accept"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

const (
	// perCommand bounds the placements of one command: about 300 bytes each,
	// it stays within an entry.
	perCommand = 512
	// fewCommands are carried out at once, or nearly.
	fewCommands = 4
	// staleRetry is the rest after a plan of which nothing held: it must not
	// become a busy loop.
	staleRetry = 100 * time.Millisecond
	// maxPlaces bounds a plan, and with it for how long nothing else is decided:
	// some milliseconds where asks are alike, a quarter of a second where there are
	// hundreds of kinds. Of one group there may be more: see sched.Input.
	maxPlaces = 2048
	// maxRest bounds the rest of a scheduler that plans in vain.
	maxRest = time.Second
)

// scheduler plans over the state as it will be, and answers with the commands
// that carry the plan out. Plans follow one another in the order of the log, so
// a plan never needs to guess what is on its way.
type scheduler struct {
	l       *leader
	planner *sched.Planner // the sequencer's, as are ids
	ids     ids
	// more: the latest plan is large, or a part of a larger one, and there is more
	// of it to come.
	more atomic.Bool

	mu sync.Mutex
	// last is the newest plan: what is pending, and its reasons, by group once
	// somebody has asked.
	last         *sched.Plan
	lastUnixNano int64
	reasons      map[state.GroupKey][]wire.CountedReason
	unplaced     map[state.GroupKey][]sched.Unplaced
	// settled is the greatest revision of slots that are placed as far as they
	// can be: what a report charges for.
	settled int64
}

func newScheduler(l *leader) *scheduler { return &scheduler{l: l, planner: sched.NewPlanner()} }

// input is what a plan is made from.
func (l *leader) input(view *state.View) sched.Input {
	return sched.Input{View: view, NowUnixNano: time.Now().UnixNano(), NodeLease: l.s.cfg.NodeLease, Funcs: l.exprs.funcs()}
}

// decide makes a plan, and gives back to the global tier what fits nowhere. The
// sequencer calls it.
func (s *scheduler) decide(view *state.View) raftlog.Decision {
	began := time.Now()
	in := s.l.input(view)
	in.MaxPlaces = maxPlaces
	plan := s.planner.Make(in)
	d := raftlog.Decision{RetryAfter: staleRetry, Rest: restAfter(plan, time.Since(began)), OnCommitted: func() { s.note(in, plan) }}
	for _, c := range plan.Commands(s.ids.next, perCommand) {
		d.Commands = append(d.Commands, state.Command{ApplyPlan: &c})
	}
	back, again := accept.Return(accept.Input{
		View: in.View, Unplaced: plan.Unplaced, LinkUp: s.l.uplink.Connected(),
		NowUnixNano: in.NowUnixNano, Grace: accept.DefaultGrace,
	})
	if back != nil {
		d.Commands = append(d.Commands, state.Command{AnswerSlots: back})
	}
	d.RecheckAfter = earliest(plan.Wake, again)
	s.more.Store(plan.More || len(d.Commands) > fewCommands)
	return d
}

// restAfter is how long to rest after a plan: as long as it took, while there
// are instances that fit nowhere. Each report of an agent frees something, and
// with thousands of them every plan looks at all the rest again.
func restAfter(plan *sched.Plan, took time.Duration) time.Duration {
	if plan.More || len(plan.Unplaced) == 0 {
		return 0
	}
	return min(took, maxRest)
}

// earliest is the lesser of two, where 0 is never.
func earliest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// note remembers the plan for those who ask why, and how far slots are settled.
func (s *scheduler) note(in sched.Input, plan *sched.Plan) {
	view := in.View
	settled := int64(0)
	if plan.Empty() && !view.Cluster().OrdersIncomplete {
		settled = view.SlotsRevision()
	}
	s.mu.Lock()
	s.last, s.lastUnixNano, s.reasons, s.unplaced = plan, in.NowUnixNano, nil, nil
	s.settled = max(s.settled, settled)
	s.mu.Unlock()
	explained := map[state.GroupKey]struct{}{}
	for _, u := range plan.Unplaced {
		explained[u.Key] = struct{}{}
	}
	for _, w := range plan.Waiting {
		explained[w.Key] = struct{}{}
	}
	s.l.uplink.ReasonsChanged(explained)
}

// planned is the newest plan and the time that it was made for; nil before the
// first.
func (s *scheduler) planned() (*sched.Plan, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.lastUnixNano
}

func (s *scheduler) settledRevision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settled
}

// pending are the counted reasons of a group's instances without a node.
func (s *scheduler) pending(key state.GroupKey) []wire.CountedReason {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reasons == nil && s.last != nil {
		s.reasons = wire.PlanReasons(s.last)
	}
	return s.reasons[key]
}

// without is what the newest plan found no node for, of a group.
func (s *scheduler) without(key state.GroupKey) []sched.Unplaced {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unplaced == nil && s.last != nil {
		s.unplaced = map[state.GroupKey][]sched.Unplaced{}
		for _, u := range s.last.Unplaced {
			s.unplaced[u.Key] = append(s.unplaced[u.Key], u)
		}
	}
	return s.unplaced[key]
}

// queueLength is how many instances wait for a node.
func (s *scheduler) queueLength() int32 {
	plan, _ := s.planned()
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
