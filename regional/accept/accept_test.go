package accept

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

var key = state.GroupKey{Namespace: "default", Job: "api", Group: "web"}

// region is a state with one node that fits two instances.
type region struct {
	t *testing.T
	*state.State
	index uint64
	now   int64
	jobs  map[int64]*state.Job
	hold  time.Duration // hold time of the region's orders
}

func newRegion(t *testing.T, typ state.JobType) *region {
	r := &region{t: t, State: state.New(), now: int64(time.Hour)}
	r.do(state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{ID: "n1", Name: "n1", Capacity: state.Resources{CPUMilli: 1000}}}})
	r.jobs = map[int64]*state.Job{1: {Version: 1, Type: typ, Groups: []state.Group{{
		Name: "web", Ask: state.Ask{Resources: state.Resources{CPUMilli: 500}},
	}}}}
	return r
}

func (r *region) do(c state.Command) {
	r.t.Helper()
	r.index++
	c.NowUnixNano = r.now
	if res := r.Apply(r.index, c); res.Err != nil || len(res.Skipped) > 0 {
		r.t.Fatalf("%v, skipped %v", res.Err, res.Skipped)
	}
}

func (r *region) order(from, to int32, generation int64, desired state.Desired, st state.SlotState) {
	r.t.Helper()
	r.do(state.Command{ApplyOrders: &state.ApplyOrders{Orders: []state.SlotOrder{{
		Slot: state.Slot{
			Namespace: "default", Job: "api", Group: "web", From: from, To: to, Generation: generation,
			Revision: int64(r.index) + 100, JobVersion: 1, Desired: desired, State: st, HoldNano: int64(r.hold),
		},
		Job: r.jobs[1],
	}}}})
}

// place places instance i on the node. The id of the allocation is "a<i>".
func (r *region) place(i int32) {
	r.t.Helper()
	r.do(state.Command{ApplyPlan: &state.ApplyPlan{Places: []state.PlaceGroup{{
		Key: key, JobVersion: 1, Allocs: []state.PlaceAlloc{{ID: fmt.Sprint("a", i), Index: i, NodeID: "n1"}},
	}}}})
}

func (r *region) report(i int32, s state.AllocState) {
	r.t.Helper()
	r.do(state.Command{AgentReports: &state.AgentReports{NodeID: "n1", Reports: []state.AllocReport{{ID: fmt.Sprint("a", i), State: s}}}})
}

// lost gives the node the status lost or left.
func (r *region) lost(status state.NodeStatus) {
	r.t.Helper()
	r.do(state.Command{SetNodeStatus: &state.SetNodeStatus{ID: "n1", Status: status}})
}

func (r *region) answers(want ...string) {
	r.t.Helper()
	var got []string
	for _, a := range Answers(r.Snapshot()) {
		line := fmt.Sprintf("%d-%d g%d %s", a.From, a.To, a.Generation, a.State)
		if a.MayRun {
			line += " may run"
		}
		if a.Reason != "" {
			line += " " + string(a.Reason)
		}
		got = append(got, line)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		r.t.Errorf("answers %q, want %q", got, want)
	}
}

func TestAcceptedIsAnsweredUntilTheOrderHasIt(t *testing.T) {
	r := newRegion(t, state.Service)
	r.answers()
	r.order(0, 2, 5, state.Run, state.SlotOffered)
	r.answers("0-2 g5 accepted")
	r.place(0)
	r.answers("0-2 g5 accepted")
	r.order(0, 2, 5, state.Run, state.SlotAccepted)
	r.answers()
	r.order(0, 2, 9, state.Run, state.SlotOffered) // a new version, offered in the same slot
	r.answers("0-2 g9 accepted")
}

func TestStoppedAndRevokedOnceNothingLives(t *testing.T) {
	for desired, word := range map[state.Desired]string{state.Stop: "stopped", state.Revoke: "revoked"} {
		r := newRegion(t, state.Service)
		r.order(0, 2, 5, state.Run, state.SlotAccepted)
		r.place(1)
		r.order(0, 2, 5, desired, state.SlotAccepted)
		r.answers()
		r.report(1, state.Running)
		r.answers()
		r.report(1, state.Stopped)
		r.answers("0-2 g5 " + word)
		r.do(state.Command{ApplyOrders: &state.ApplyOrders{More: true}})
		r.answers() // a later part of the change may still want the slots
		r.do(state.Command{ApplyOrders: &state.ApplyOrders{Removed: []string{"default/api/web/0"}}})
		r.answers()
	}
}

func TestDoneWhenEveryInstanceHasEnded(t *testing.T) {
	r := newRegion(t, state.Batch)
	r.order(0, 2, 5, state.Run, state.SlotAccepted)
	r.place(0)
	r.report(0, state.Complete)
	r.answers()
	r.place(1)
	r.report(1, state.Failed) // no reschedule attempts
	r.answers("0-2 g5 done reschedules_exhausted")
	r.order(0, 2, 5, state.Run, state.SlotDone)
	r.answers()

	good := newRegion(t, state.Batch)
	good.order(3, 5, 5, state.Run, state.SlotOffered)
	good.place(3)
	good.place(4)
	good.report(3, state.Complete)
	good.answers("3-5 g5 accepted")
	good.report(4, state.Complete)
	good.answers("3-5 g5 done")
}

func TestRegionsOwnJobsAreNotAnswered(t *testing.T) {
	r := newRegion(t, state.Service)
	job := *r.jobs[1]
	job.Key = state.JobKey{Namespace: "default", Job: "api", Local: true}
	r.do(state.Command{SubmitLocalJob: &state.SubmitLocalJob{Job: job}})
	r.answers()
}

func TestReturn(t *testing.T) {
	unplaced := func(change func(*sched.Unplaced)) sched.Unplaced {
		u := sched.Unplaced{
			Key: key, JobVersion: 1, Generation: 5, Ranges: []sched.Range{{From: 1, To: 2}, {From: 3, To: 6}},
			Reason: state.ReasonInsufficientCPU, Counts: []state.Count{{Reason: state.ReasonInsufficientCPU, Count: 1}},
		}
		if change != nil {
			change(&u)
		}
		return u
	}
	cases := []struct {
		name   string
		change func(*sched.Unplaced)
		before func(*region)
		after  time.Duration // since the order
		down   bool
		hold   time.Duration
		want   string
		next   time.Duration
	}{
		{name: "within the grace", after: 300 * time.Millisecond, next: 700 * time.Millisecond},
		{name: "after the grace", after: time.Second, want: "1-2 3-6"},
		{name: "held", hold: 10 * time.Minute, after: time.Minute, next: 9 * time.Minute},
		{name: "held long enough", hold: 10 * time.Minute, after: 10 * time.Minute, want: "1-2 3-6"},
		{name: "held, and fits never", hold: 10 * time.Minute, change: func(u *sched.Unplaced) { u.Never = true }, want: "1-2 3-6"},
		{name: "no link", after: time.Hour, down: true},
		{name: "fits never", change: func(u *sched.Unplaced) { u.Never = true }, want: "1-2 3-6"},
		{name: "all declined", change: func(u *sched.Unplaced) { u.Reason = state.ReasonDeclined }, want: "1-2 3-6"},
		{name: "of its own", change: func(u *sched.Unplaced) { u.Key.Local = true }, after: time.Hour},
		{name: "system", change: func(u *sched.Unplaced) { u.System = true }, after: time.Hour},
		{name: "generation gone", change: func(u *sched.Unplaced) { u.Generation = 4 }, after: time.Hour},
		{name: "group gone", change: func(u *sched.Unplaced) { u.Key.Group = "x" }, after: time.Hour},
		{name: "placed since", before: func(r *region) { r.place(4) }, after: time.Hour, want: "1-2 3-4 5-6"},
		{name: "on a lost node", before: func(r *region) {
			r.place(4)
			r.lost(state.NodeLost)
		}, after: time.Hour, want: "1-2 3-4 5-6"},
		{name: "on a lost node, and fits never", before: func(r *region) {
			r.place(4)
			r.lost(state.NodeLost)
		}, change: func(u *sched.Unplaced) { u.Never = true }, want: "1-2 3-4 5-6"},
		{name: "on a node that left", before: func(r *region) {
			r.place(4)
			r.lost(state.NodeLeft)
		}, after: time.Hour, want: "1-2 3-6"},
		{name: "given up", before: func(r *region) {
			r.place(4)
			r.lost(state.NodeLost)
			r.do(state.Command{ApplyPlan: &state.ApplyPlan{Stops: []state.StopAlloc{{ID: "a4", Reason: state.ReasonNodeLost, GiveUp: true}}}})
		}, after: time.Hour, want: "1-2 3-6"},
		{name: "ended a moment ago", before: func(r *region) {
			r.place(4)
			r.now += int64(time.Minute)
			r.report(4, state.Stopped)
		}, want: "1-2 3-4 5-6", next: time.Second},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newRegion(t, state.Service)
			r.hold = c.hold
			r.order(0, 6, 5, state.Run, state.SlotAccepted)
			if c.before != nil {
				c.before(r)
			}
			in := Input{
				View: r.Snapshot(), Unplaced: []sched.Unplaced{unplaced(c.change)}, LinkUp: !c.down,
				NowUnixNano: r.now + int64(c.after), Grace: DefaultGrace,
			}
			cmd, next := Return(in)
			var got []string
			if cmd != nil {
				for _, a := range cmd.Answers {
					got = append(got, fmt.Sprintf("%d-%d", a.From, a.To))
					if a.State != state.SlotReturned || a.Generation != 5 || len(a.Counts) != 1 {
						t.Errorf("%+v", a)
					}
				}
				r.do(state.Command{AnswerSlots: cmd}) // the command is valid
			}
			if strings.Join(got, " ") != c.want || next != c.next {
				t.Errorf("returned %q, next in %s; want %q, %s", got, next, c.want, c.next)
			}
		})
	}
}

// TestReturnedUntilTheOrderIsCut: the answer about a part that was given back is repeated
// until the order no longer has that part. The rest of the slot stays accepted.
func TestReturnedUntilTheOrderIsCut(t *testing.T) {
	r := newRegion(t, state.Service)
	r.order(0, 4, 5, state.Run, state.SlotOffered)
	cmd, _ := Return(Input{
		View: r.Snapshot(), LinkUp: true, NowUnixNano: r.now,
		Unplaced: []sched.Unplaced{{Key: key, Generation: 5, Ranges: []sched.Range{{From: 2, To: 4}}, Reason: state.ReasonInsufficientCPU, Never: true}},
	})
	r.do(state.Command{AnswerSlots: cmd})
	r.answers("2-4 g5 returned insufficient_cpu", "0-2 g5 accepted")
	if g, _ := r.Group(key); g.Wanted != 2 {
		t.Errorf("%d are wanted", g.Wanted)
	}
	r.order(0, 2, 5, state.Run, state.SlotAccepted)
	r.answers()
	r.order(2, 4, 8, state.Run, state.SlotOffered) // offered again
	r.answers("2-4 g8 accepted")
}

// TestRejectedOnceNothingLives: a region rejects a new version of a slot that it cannot
// run. It does so only after the instances of the former version have ended, because
// otherwise the index would have two owners.
func TestRejectedOnceNothingLives(t *testing.T) {
	r := newRegion(t, state.Service)
	r.order(0, 2, 10, state.Run, state.SlotAccepted)
	r.place(0)
	r.report(0, state.Running)
	r.index++
	r.Apply(r.index, state.Command{ApplyOrders: &state.ApplyOrders{Orders: []state.SlotOrder{{Slot: state.Slot{
		Namespace: "default", Job: "api", Group: "web", From: 0, To: 2, Generation: 20, Revision: 1000, JobVersion: 7, Desired: state.Run, State: state.SlotOffered,
	}}}}})
	if got := Answers(r.Snapshot()); len(got) != 0 {
		t.Errorf("answers %+v while an instance runs", got)
	}
	r.report(0, state.Stopped)
	got := Answers(r.Snapshot())
	if len(got) != 1 || got[0].State != state.SlotRejected || got[0].From != 0 || got[0].To != 2 || got[0].Generation != 20 {
		t.Errorf("answers %+v", got)
	}
}

// TestRestoredLogEndsNothingBeforeLeasesAreOver: a node that has not connected since the
// restore may run instances that the log does not have. So no answer says that a slot
// ended.
func TestRestoredLogEndsNothingBeforeLeasesAreOver(t *testing.T) {
	for _, desired := range []state.Desired{state.Revoke, state.Stop} {
		r := newRegion(t, state.Service)
		r.do(state.Command{SetLimits: &state.SetLimits{FeatureLevel: 1}})
		r.order(0, 1, 1, desired, state.SlotAccepted)
		if got := Answers(r.Snapshot()); len(got) != 1 {
			t.Fatalf("%d: %v", desired, got)
		}
		r.do(state.Command{BumpIncarnation: &state.BumpIncarnation{Incarnation: 2}})
		if got := Answers(r.Snapshot()); len(got) != 0 {
			t.Errorf("%d after a restore: %v", desired, got)
		}
		r.do(state.Command{SetLimits: &state.SetLimits{FeatureLevel: 1, LeasesOver: true}})
		if got := Answers(r.Snapshot()); len(got) != 1 {
			t.Errorf("%d once all leases are over: %v", desired, got)
		}
	}
}

// TestSuspectLogAnswersOnlyAccepted: the answer that a slot is accepted is true even if the log
// is an old copy. The answer that a slot has ended may be true of the copy only.
func TestSuspectLogAnswersOnlyAccepted(t *testing.T) {
	r := newRegion(t, state.Service)
	r.order(0, 1, 1, state.Run, state.SlotOffered)
	if got := OfSuspectLog(Answers(r.Snapshot())); len(got) != 1 || got[0].State != state.SlotAccepted {
		t.Errorf("accepted: %v", got)
	}
	r.order(0, 1, 1, state.Revoke, state.SlotAccepted)
	if got := Answers(r.Snapshot()); len(got) != 1 || len(OfSuspectLog(got)) != 0 {
		t.Errorf("revoked: %v", got)
	}
}
