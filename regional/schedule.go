package regional

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/regional/accept"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

const (
	// perCommand bounds the placements of one command: about 300 bytes each,
	// it stays within an entry.
	perCommand = 512
	// staleRetry is the rest after a plan of which nothing held: it must not
	// become a busy loop.
	staleRetry = 100 * time.Millisecond
	// maxRest bounds the rest of a scheduler that plans in vain.
	maxRest = time.Second
)

// scheduler plans over the committed state whenever that changed, and commits
// its plans. Plans and grants follow one another, so a plan never needs to
// guess what is on its way.
type scheduler struct {
	l       *leader
	wake    chan struct{} // room for one
	planner *sched.Planner

	mu sync.Mutex
	// last is the newest plan: reasons of what is pending.
	last         *sched.Plan
	lastUnixNano int64
	// settled is the greatest revision of slots that are placed as far as they
	// can be: what a report charges for.
	settled int64
}

func newScheduler(l *leader) *scheduler {
	return &scheduler{l: l, wake: make(chan struct{}, 1), planner: sched.NewPlanner()}
}

func (s *scheduler) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// restAfter is how long to rest after a round: as long as its planning took,
// while there are instances that fit nowhere. Each report of an agent frees
// something, and with thousands of them every plan looks at all the rest again:
// what is freed meanwhile is planned at once. What fits never waits for that.
func restAfter(plan *sched.Plan, took time.Duration) time.Duration {
	if plan.More || len(plan.Unplaced) == 0 {
		return 0
	}
	return min(took, maxRest)
}

// run plans until ctx ends.
func (s *scheduler) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-timer.C:
		}
		next, rest, err := s.round(ctx)
		if err != nil {
			return ignoreEnd(ctx, err)
		}
		timer.Stop()
		if rest > 0 {
			pause(ctx, rest)
			next = max(next-rest, min(next, 1))
		}
		if next > 0 {
			timer.Reset(next)
		}
	}
}

// input is what a plan is made from.
func (l *leader) input(view *state.View) sched.Input {
	return sched.Input{View: view, NowUnixNano: time.Now().UnixNano(), NodeLease: l.s.cfg.NodeLease, Funcs: l.exprs.funcs()}
}

// round makes one plan and commits it. It answers after how long something is
// due, and how long to rest in any case; what it commits wakes it by itself.
func (s *scheduler) round(ctx context.Context) (next, rest time.Duration, err error) {
	began := time.Now()
	in := s.l.input(s.l.s.fsm.View())
	plan := s.planner.Make(in)
	rest = restAfter(plan, time.Since(began))
	changed, err := s.commit(ctx, plan)
	if err != nil {
		return 0, 0, err
	}
	back, again := accept.Return(accept.Input{
		View: in.View, Unplaced: plan.Unplaced, LinkUp: s.l.uplink.up(),
		NowUnixNano: in.NowUnixNano, Grace: accept.DefaultGrace,
	})
	if back != nil {
		if r, err := s.l.do(ctx, state.Command{AnswerSlots: back}); err != nil && r.Err == nil {
			return 0, 0, fmt.Errorf("commit what is given back: %w", err)
		}
	}
	s.note(in, plan)
	switch {
	case plan.More:
		s.poke()
	case !plan.Empty() && !changed:
		return staleRetry, rest, nil
	}
	return earliest(plan.Wake, again), rest, nil
}

func earliest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// commit proposes all entries of a plan at once and waits for them.
func (s *scheduler) commit(ctx context.Context, plan *sched.Plan) (changed bool, err error) {
	var waiting []*proposal
	for _, c := range plan.Commands(newID, perCommand) {
		p, err := s.l.seq.start(state.Command{ApplyPlan: &c})
		if errors.Is(err, ErrQueueFull) {
			break // the rest is planned again
		}
		if err != nil {
			return changed, err
		}
		waiting = append(waiting, p)
	}
	for _, p := range waiting {
		r, err := p.wait(ctx)
		if r.Err != nil {
			s.l.log.Warn("a plan was refused", "error", r.Err)
			continue
		}
		if err != nil {
			return changed, fmt.Errorf("commit a plan: %w", err)
		}
		changed = changed || r.Changed
		for _, skip := range r.Skipped {
			s.l.log.Debug("part of a plan no longer held", "id", skip.ID, "reason", skip.Reason, "message", skip.Message)
		}
	}
	return changed, nil
}

// note remembers the plan for those who ask why, and how far slots are settled.
func (s *scheduler) note(in sched.Input, plan *sched.Plan) {
	view := in.View
	settled := int64(0)
	if plan.Empty() && !view.Cluster().OrdersIncomplete {
		for slot := range view.Slots() {
			if !slot.Local {
				settled = max(settled, slot.Revision)
			}
		}
	}
	s.mu.Lock()
	s.last, s.lastUnixNano = plan, in.NowUnixNano
	s.settled = max(s.settled, settled)
	s.mu.Unlock()
	explained := map[state.GroupKey]struct{}{}
	for _, u := range plan.Unplaced {
		explained[u.Key] = struct{}{}
	}
	for _, w := range plan.Waiting {
		explained[w.Key] = struct{}{}
	}
	s.l.uplink.explained(explained)
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

// waitText says what instances wait for that are due later.
var waitText = map[state.Reason]string{
	state.ReasonBackoff:  "it failed and waits before the next attempt",
	state.ReasonNodeLost: "its node is silent, and it is not to be replaced yet",
	state.ReasonDeclined: "its node declined it and is asked again soon",
}

// pending are the counted reasons of a group's instances without a node.
func (s *scheduler) pending(key state.GroupKey) []state.Count {
	plan, _ := s.planned()
	if plan == nil {
		return nil
	}
	var out []state.Count
	for _, u := range plan.Unplaced {
		if u.Key == key {
			out = append(out, blockingFirst(&u)...)
		}
	}
	for _, w := range plan.Waiting {
		if w.Key == key {
			out = append(out, state.Count{Reason: w.Reason, Count: sched.Instances(w.Ranges), Message: waitText[w.Reason]})
		}
	}
	return out
}

// blockingFirst are the counted reasons, the one that stands in the way first
// and with its figures.
func blockingFirst(u *sched.Unplaced) []state.Count {
	out := []state.Count{{Reason: u.Reason, Message: u.Message, Count: sched.Instances(u.Ranges)}}
	for _, c := range u.Counts {
		if c.Reason == u.Reason {
			out[0].Count = c.Count
		} else {
			out = append(out, c)
		}
	}
	return out
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
