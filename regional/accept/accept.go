package accept

import (
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// DefaultGrace is how long an instance may be without a node before it is given
// back: long enough for a node to register, or for resources to be released.
const DefaultGrace = time.Second

// Input holds everything that a decision depends on.
type Input struct {
	// View is the committed state: answers must not be about any other state.
	View *state.View
	// Unplaced of a plan over this view, or over a newer one.
	Unplaced []sched.Unplaced
	// LinkUp says that a session with the global tier is up; without a session
	// instances wait here.
	LinkUp      bool
	NowUnixNano int64
	Grace       time.Duration // 0 = at once
}

// Return makes the command that gives unplaced instances back, nil if none is to be
// given back now, and returns after how long to call Return again (0 = not at all).
// Instances that no node could ever run, or that every fitting node declined, do not
// wait for the grace to pass. Instances of the region's own jobs and of system jobs
// are never given back. Instances that may still run on a lost node wait until the
// node is back or removed, see Disconnected. The answers are sent once the command is
// committed: see Answers.
func Return(in Input) (*state.AnswerSlots, time.Duration) {
	if !in.LinkUp {
		return nil, 0
	}
	var cmd state.AnswerSlots
	var next int64
	for i := range in.Unplaced {
		u := &in.Unplaced[i]
		if u.Key.Local || u.System {
			continue
		}
		g, ok := in.View.Group(u.Key)
		if !ok {
			continue
		}
		for _, s := range g.Slots {
			if s.Generation != u.Generation {
				continue
			}
			due := in.returnable(&cmd, s, u)
			if due > 0 && (next == 0 || due < next) {
				next = due
			}
		}
	}
	if len(cmd.Answers) == 0 {
		return nil, time.Duration(next)
	}
	return &cmd, time.Duration(next)
}

// returnable adds the parts of a slot that are to be given back now, and returns
// after how many nanoseconds the next part is due; 0 = none.
func (in *Input) returnable(cmd *state.AnswerSlots, s *state.Slot, u *sched.Unplaced) (next int64) {
	first := len(cmd.Answers)
	for _, r := range u.Ranges {
		for i := max(r.From, s.From); i < min(r.To, s.To); i++ {
			if !s.Wants(i) || in.lives(u.Key, i) || mayRunOn(in.View, u.Key, i) != nil {
				continue
			}
			if left := in.grace(s, u, i); left > 0 {
				if next == 0 || left < next {
					next = left
				}
				continue
			}
			if n := len(cmd.Answers); n > first && cmd.Answers[n-1].To == i {
				cmd.Answers[n-1].To++
				continue
			}
			cmd.Answers = append(cmd.Answers, state.Answer{
				Namespace: s.Namespace, Job: s.Job, Group: s.Group, From: i, To: i + 1,
				Generation: s.Generation, State: state.SlotReturned,
				Reason: u.Reason, Message: u.Message, Counts: u.Counts,
			})
		}
	}
	return next
}

// grace returns how many nanoseconds an index still waits here for a node, counted
// from the slot's arrival or from the end of its last attempt. It waits longer if
// the slot is to be held, so that a node is reserved for it (sched.ReserveAfter).
func (in *Input) grace(s *state.Slot, u *sched.Unplaced, index int32) int64 {
	if u.Never || u.Reason == state.ReasonDeclined {
		return 0
	}
	since := max(s.CommittedUnixNano, in.View.Instance(u.Key, index).EndedUnixNano)
	return max(since+int64(in.Grace), s.CommittedUnixNano+s.HoldNano) - in.NowUnixNano
}

// lives reports whether the instance has a live allocation on a connected node.
func (in *Input) lives(key state.GroupKey, index int32) bool {
	for a := range in.View.InstanceAllocs(key, index) {
		if a.Live() && !a.Disconnected {
			return true
		}
	}
	return false
}

// Answers returns all answers that are true of the committed view, by group and slot.
// They are sent and repeated until the orders change accordingly.
func Answers(view *state.View) []state.Answer {
	var out []state.Answer
	for g := range view.Groups() {
		out = append(out, GroupAnswers(view, g)...)
	}
	return out
}

// OfSuspectLog returns the answers that are true if the log is an old copy: the region has work. That
// work has ended may be true of the copy only.
func OfSuspectLog(answers []state.Answer) []state.Answer {
	return slices.DeleteFunc(answers, func(a state.Answer) bool { return a.State != state.SlotAccepted })
}

// GroupAnswers returns the answers about one group of the view. While a change of slot
// orders is incomplete, no answer says that a slot ended. After a restore of the log no answer
// does before every earlier lease is over: a node that has not connected since may run what the
// log does not have.
func GroupAnswers(view *state.View, g *state.GroupView) []state.Answer {
	if g.Key.Local {
		return nil
	}
	var out []state.Answer
	recovered := view.Cluster().Recovered && view.Cluster().FeatureLevel > 0
	complete := !view.Cluster().OrdersIncomplete && !recovered
	for _, s := range g.Slots {
		if s.Desired == state.Hold {
			if complete {
				out = append(out, held(view, s)...)
			}
			continue
		}
		for _, a := range s.Returned {
			// A region that rejects a change of a slot still runs the instances from before the
			// change.
			if !recovered && (a.State != state.SlotRejected || !livesIn(view, s)) {
				out = sayWhatMayRun(out, a, leftBehind(view, s))
			}
		}
		switch {
		case s.Desired != state.Run:
			stay := exempt(view, s)
			if complete {
				out = append(out, stay...)
			}
			if complete && len(stay) == 0 && !livesIn(view, s) {
				left := leftBehind(view, s)
				for _, a := range ended(view, s) {
					out = sayWhatMayRun(out, a, left)
				}
			}
		case s.State != state.SlotDone && complete && done(view, g, s):
			out = append(out, doneAnswers(view, s)...)
		case s.State != state.SlotDone:
			var binds bool
			var stop time.Duration
			if s.Unbound || s.State != state.SlotAccepted {
				stop, binds = bound(view, s)
			}
			if s.State == state.SlotAccepted && !binds {
				continue // the answer has arrived
			}
			for _, r := range s.Ranges() {
				a := answer(s, r[0], r[1], state.SlotAccepted)
				a.Bound, a.StopTime = binds, stop
				out = append(out, a)
			}
		}
	}
	return out
}

// ended returns the answers about a slot that has to go and has no live allocation. Completed
// instances are answered as done, so that they do not run again elsewhere. If the global tier
// knows that they are done and revokes the slot all the same, they are answered as revoked.
func ended(view *state.View, s *state.Slot) []state.Answer {
	if s.Desired != state.Revoke {
		return []state.Answer{answer(s, s.From, s.To, state.SlotStopped)}
	}
	var out []state.Answer
	from := s.From
	for in := range view.Instances(s.Key()) {
		if s.State == state.SlotDone || in.Index < s.From || in.Index >= s.To || !in.CompletedIn(s.Run) {
			continue
		}
		if in.Index > from {
			out = append(out, answer(s, from, in.Index, state.SlotRevoked))
		}
		from = in.Index + 1
		if k := len(out) - 1; k >= 0 && out[k].State == state.SlotDone && out[k].To == in.Index {
			out[k].To = from
			continue
		}
		out = append(out, answer(s, in.Index, from, state.SlotDone))
	}
	if from < s.To {
		out = append(out, answer(s, from, s.To, state.SlotRevoked))
	}
	return out
}

// exempt returns the answers about instances that stay although their slot is
// revoked with UnlessConnected. Once the global tier has given those instances a slot
// of their own, the rest of the slot is answered.
func exempt(view *state.View, s *state.Slot) []state.Answer {
	if s.Desired != state.Revoke || !s.UnlessConnected {
		return nil
	}
	var out []state.Answer
	for i := s.From; i < s.To; i++ {
		if !view.ExemptFromRevoke(s, i) {
			continue
		}
		if k := len(out) - 1; k >= 0 && out[k].To == i {
			out[k].To++
			continue
		}
		out = append(out, answer(s, i, i+1, state.SlotKept))
	}
	return out
}

func answer(s *state.Slot, from, to int32, st state.SlotState) state.Answer {
	return state.Answer{
		Namespace: s.Namespace, Job: s.Job, Group: s.Group, From: from, To: to,
		Generation: s.Generation, State: st,
	}
}

// livesIn reports whether an allocation of the slot has not ended, or may run where no
// lease ends it: see leftUnbound.
func livesIn(view *state.View, s *state.Slot) bool {
	job, ok := view.Job(s.Key().JobKey(), s.JobVersion)
	system := ok && job.Type == state.System
	for a := range view.GroupAllocs(s.Key()) {
		if (system || a.Index >= s.From && a.Index < s.To) && (a.Live() || leftUnbound(view, s, a)) {
			return true
		}
	}
	return false
}

// done reports whether every instance of a batch slot has ended and is not tried
// again.
func done(view *state.View, g *state.GroupView, s *state.Slot) bool {
	if g.Counts.Complete+g.Counts.Failed == 0 {
		return false
	}
	job, ok := view.Job(s.Key().JobKey(), s.JobVersion)
	if !ok || job.Type != state.Batch {
		return false
	}
	var wanted, finished int32
	for _, r := range s.Ranges() {
		wanted += r[1] - r[0]
	}
	for in := range view.Instances(s.Key()) {
		if s.Wants(in.Index) && in.Finished() {
			finished++
		}
	}
	return wanted > 0 && finished == wanted && !livesIn(view, s)
}

// doneAnswers say how a batch slot ended, with a reason if instances failed.
func doneAnswers(view *state.View, s *state.Slot) []state.Answer {
	var failed, all int32
	message := ""
	for in := range view.Instances(s.Key()) {
		if !s.Wants(in.Index) {
			continue
		}
		all++
		if in.Exhausted && !in.Done {
			failed++
			message = in.Message
		}
	}
	var out []state.Answer
	for _, r := range s.Ranges() {
		a := answer(s, r[0], r[1], state.SlotDone)
		if failed > 0 {
			a.Reason = state.ReasonReschedulesExhausted
			a.Message = fmt.Sprintf("%d of %d instances failed", failed, all)
			if message != "" {
				a.Message += ": " + message
			}
			a.Counts = []state.Count{{Reason: state.ReasonReschedulesExhausted, Count: failed}}
		}
		out = append(out, a)
	}
	return out
}
