package accept

import (
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// DefaultGrace is how long an instance may be without a node before it is given back. In
// that time a node may register, or resources may be released.
const DefaultGrace = time.Second

// Input holds everything on which Return depends.
type Input struct {
	// View is the committed state. An answer must not be about any other state.
	View *state.View
	// Unplaced comes from a plan over this view, or over a newer one.
	Unplaced []sched.Unplaced
	// LinkUp is true while a session with the global tier exists. Without a session no
	// instance is given back.
	LinkUp      bool
	NowUnixNano int64
	Grace       time.Duration // 0: no grace
}

// Return makes the command that gives unplaced instances back to the global tier. The
// command is nil if no instance is to be given back now. Return also returns the time until
// the next call is due. 0: only a change can make one due.
//
// Instances that no node could ever run, and instances that every feasible node declined,
// are given back without grace. Instances of the region's own jobs and of system jobs are
// never given back. Instances that may still run on a lost node wait until that node is
// back or removed: see Disconnected. The answers are sent after the command is committed:
// see Answers.
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

// returnable adds the parts of a slot that are to be given back now. It returns after how
// many nanoseconds the next part is due, 0 for none.
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

// grace returns for how many nanoseconds an index still waits for a node of this region.
// The grace counts from the arrival of the slot or from the end of the index's last
// attempt. It is longer for a slot with a hold time, so that a node can be reserved for the
// instance (sched.ReserveAfter).
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

// Answers returns all answers that the committed view supports, by group and slot. They are
// sent, and repeated every few seconds, until the orders for the slots change.
func Answers(view *state.View) []state.Answer {
	var out []state.Answer
	for g := range view.Groups() {
		out = append(out, GroupAnswers(view, g)...)
	}
	return out
}

// OfSuspectLog returns the answers that are true even if the log is an old copy: the
// answers that the region has work. The answer that work has ended may be true only of the
// old copy.
func OfSuspectLog(answers []state.Answer) []state.Answer {
	return slices.DeleteFunc(answers, func(a state.Answer) bool { return a.State != state.SlotAccepted })
}

// GroupAnswers returns the answers about one group of the view. In two cases no answer says
// that a slot ended. The first is while a change of slot orders is incomplete. The second
// is after a restore of the log, before every earlier lease has ended: a node that has not
// connected since the restore may run instances that the log does not know.
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
			// A region that rejects a new version of a slot still runs the instances of the
			// version before.
			if !recovered && (a.State != state.SlotRejected || !livesIn(view, s)) {
				out = sayWhatMayRun(out, a, onLostNodes(view, s))
			}
		}
		switch {
		case s.Desired != state.Run:
			if complete {
				out = append(out, givenUp(view, s)...)
			}
		case s.State != state.SlotDone && complete && done(view, g, s):
			out = append(out, doneAnswers(view, s)...)
		case s.State != state.SlotDone:
			out = append(out, accepted(view, s)...)
		}
	}
	return out
}

// givenUp returns the answers about a slot that must stop or is revoked: about the instances that
// stay, or else, once nothing of the slot lives, about all of its instances.
func givenUp(view *state.View, s *state.Slot) (out []state.Answer) {
	if stay := exempt(view, s); len(stay) > 0 || livesIn(view, s) {
		return stay
	}
	left := onLostNodes(view, s)
	for _, a := range ended(view, s) {
		out = sayWhatMayRun(out, a, left)
	}
	return out
}

// accepted returns the answers that the region accepts a slot, and which leases bind it. It returns
// none if the global tier already has these answers.
func accepted(view *state.View, s *state.Slot) (out []state.Answer) {
	var binds bool
	var stop time.Duration
	if s.Unbound || s.State != state.SlotAccepted {
		stop, binds = bound(view, s)
	}
	if s.State == state.SlotAccepted && !binds {
		return nil
	}
	for _, r := range s.Ranges() {
		a := answer(s, r[0], r[1], state.SlotAccepted)
		a.Bound, a.StopTime = binds, stop
		out = append(out, a)
	}
	return out
}

// ended returns the answers about a slot that is stopped or revoked and has no live
// allocation. For a revoked slot, completed instances are answered as done, so that they do
// not run again in another region. If the global tier knows that they are done and revokes
// the slot all the same, they are answered as revoked.
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

// exempt returns the answers about instances that stay although their slot is revoked with
// UnlessConnected. The global tier gives those instances a slot of their own. After that
// the rest of the slot is answered.
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

// livesIn reports whether an allocation of the slot is live, or may still run on a node
// without a lease that ends it: see unboundOnLostNode.
func livesIn(view *state.View, s *state.Slot) bool {
	job, ok := view.Job(s.Key().JobKey(), s.JobVersion)
	system := ok && job.Type == state.System
	for a := range view.GroupAllocs(s.Key()) {
		if (system || a.Index >= s.From && a.Index < s.To) && (a.Live() || unboundOnLostNode(view, s, a)) {
			return true
		}
	}
	return false
}

// done reports whether every instance of a batch slot has ended and will not be tried
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
		if s.Owns(in.Index) && in.Finished() {
			finished++
		}
	}
	return wanted > 0 && finished == wanted && !livesIn(view, s)
}

// doneAnswers returns the answers that say how a batch slot ended. They have a reason if
// instances failed.
func doneAnswers(view *state.View, s *state.Slot) []state.Answer {
	var failed, all int32
	message, why := "", state.ReasonReschedulesExhausted
	for in := range view.Instances(s.Key()) {
		if !s.Owns(in.Index) {
			continue
		}
		all++
		if in.Exhausted && !in.Done {
			failed++
			message, why = in.Message, in.Reason
		}
	}
	var out []state.Answer
	for _, r := range s.Ranges() {
		a := answer(s, r[0], r[1], state.SlotDone)
		if failed > 0 {
			a.Reason = why
			a.Message = fmt.Sprintf("%d of %d instances failed", failed, all)
			if message != "" {
				a.Message += ": " + message
			}
			a.Counts = []state.Count{{Reason: why, Count: failed}}
		}
		out = append(out, a)
	}
	return out
}
