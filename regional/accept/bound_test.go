package accept

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestBoundOnceNothingUnboundIsLeft: the region answers that its lease binds a slot only
// when the lease binds everything that may run for it. Only after this answer may the
// global tier take the slot from a cut-off region by the end of the lease.
func TestBoundOnceNothingUnboundIsLeft(t *testing.T) {
	r := newRegion(t, state.Service)
	order := func(version int64, stop, unbound bool, st state.SlotState) {
		t.Helper()
		r.do(state.Command{ApplyOrders: &state.ApplyOrders{Orders: []state.SlotOrder{{
			Slot: state.Slot{
				Namespace: "default", Job: "api", Group: "web", To: 2, Generation: 5, Revision: int64(r.index) + 100,
				JobVersion: version, Desired: state.Run, State: st, Unbound: unbound,
			},
			Job: &state.Job{Version: version, Type: state.Service, Spec: []byte{byte(version)}, Groups: []state.Group{{
				Name: "web", Hash: uint64(version), Ask: state.Ask{Resources: state.Resources{CPUMilli: 500}},
				Disconnect: state.Disconnect{StopInRegion: stop},
			}}},
		}}}})
	}
	expect := func(what string, answered, bound bool) {
		t.Helper()
		got := Answers(r.Snapshot())
		if (len(got) == 1) != answered || answered && (got[0].Bound != bound || got[0].State != state.SlotAccepted) {
			t.Errorf("%s: answers %+v", what, got)
		}
	}
	order(1, false, true, state.SlotOffered)
	expect("offered, and the job keeps running", true, false)
	order(1, false, true, state.SlotAccepted)
	expect("accepted", false, false)
	r.place(0)
	order(2, true, true, state.SlotOffered)
	expect("the new version stops, an instance of the earlier one is left", true, false)
	order(2, true, true, state.SlotAccepted)
	expect("the same, accepted", false, false)
	r.lost(state.NodeLost)
	r.do(state.Command{ApplyPlan: &state.ApplyPlan{Stops: []state.StopAlloc{{ID: "a0", Reason: state.ReasonNodeLost, GiveUp: true}}}})
	expect("given up, and its node has not confirmed the end", false, false)
	r.lost(state.NodeReady)
	r.do(state.Command{AgentReports: &state.AgentReports{NodeID: "n1", Full: true}})
	expect("nothing of it is left", true, true)
	order(2, true, false, state.SlotAccepted)
	expect("the global tier knows", false, false)
}

// TestFormerOwnerAnswersOnceNothingUnboundIsLeft: the global tier took over a slot that no
// lease binds, and waits for its former owner. An attempt that the region gave up on a lost
// node may run until the node confirms its end. The former owner waits for that node. Any
// other owner does not wait, but answers that the node may still run the attempt.
func TestFormerOwnerAnswersOnceNothingUnboundIsLeft(t *testing.T) {
	for _, c := range []struct {
		desired state.Desired
		unbound bool
		first   []string
	}{
		{state.Revoke, true, nil},
		{state.Hold, true, []string{"1-2 g5 revoked"}},
		{state.Revoke, false, []string{"0-1 g5 revoked may run", "1-2 g5 revoked"}},
		{state.Stop, false, []string{"0-1 g5 stopped may run", "1-2 g5 stopped"}},
	} {
		r := newRegion(t, state.Service)
		r.order(0, 2, 5, state.Run, state.SlotAccepted)
		r.place(0)
		r.report(0, state.Running)
		r.lost(state.NodeLost)
		r.do(state.Command{ApplyPlan: &state.ApplyPlan{Stops: []state.StopAlloc{{ID: "a0", Reason: state.ReasonRevoked, GiveUp: true}}}})
		r.do(state.Command{ApplyOrders: &state.ApplyOrders{Orders: []state.SlotOrder{{Slot: state.Slot{
			Namespace: "default", Job: "api", Group: "web", To: 2, Generation: 5, Revision: 900, JobVersion: 1,
			Desired: c.desired, State: state.SlotAccepted, Unbound: c.unbound,
		}}}}})
		r.answers(c.first...)
		r.lost(state.NodeReady)
		r.do(state.Command{AgentReports: &state.AgentReports{NodeID: "n1", Full: true, Released: []string{"a0"}}})
		word := "revoked"
		if c.desired == state.Stop {
			word = "stopped"
		}
		r.answers("0-2 g5 " + word)
	}
}

// TestReturnedInstancesMayRun: a lost attempt was replaced, and no node takes the
// replacement any more. The region gives the instance back and answers that the lost node
// may still run it.
func TestReturnedInstancesMayRun(t *testing.T) {
	r := newRegion(t, state.Service)
	r.order(0, 2, 5, state.Run, state.SlotAccepted)
	r.place(0)
	r.report(0, state.Running)
	r.lost(state.NodeLost)
	r.do(state.Command{ApplyPlan: &state.ApplyPlan{Stops: []state.StopAlloc{{ID: "a0", Reason: state.ReasonNodeLost, GiveUp: true}}}})
	r.do(state.Command{AnswerSlots: &state.AnswerSlots{Answers: []state.Answer{{
		Namespace: "default", Job: "api", Group: "web", To: 2, Generation: 5, State: state.SlotReturned, Reason: state.ReasonInsufficientCPU,
	}}}})
	r.answers("0-1 g5 returned may run insufficient_cpu", "1-2 g5 returned insufficient_cpu")
}

// TestBoundAnswerNamesTheLongestStopTime: an attempt of an earlier version still runs. It
// may take longer to stop than the version of the slot, so the answer has the longer time.
func TestBoundAnswerNamesTheLongestStopTime(t *testing.T) {
	r := newRegion(t, state.Service)
	order := func(version int64, kill time.Duration) {
		t.Helper()
		r.do(state.Command{ApplyOrders: &state.ApplyOrders{Orders: []state.SlotOrder{{
			Slot: state.Slot{
				Namespace: "default", Job: "api", Group: "web", To: 2, Generation: 5, Revision: int64(r.index) + 100,
				JobVersion: version, Desired: state.Run, State: state.SlotAccepted, Unbound: true,
			},
			Job: &state.Job{Version: version, Type: state.Service, Spec: []byte{byte(version)}, Groups: []state.Group{{
				Name: "web", Hash: uint64(version), Ask: state.Ask{Resources: state.Resources{CPUMilli: 500}}, KillTimeout: kill,
				Disconnect: state.Disconnect{StopInRegion: true},
			}}},
		}}}})
	}
	expect := func(want time.Duration) {
		t.Helper()
		got := Answers(r.Snapshot())
		if len(got) != 1 || !got[0].Bound || got[0].StopTime != want {
			t.Errorf("answers %+v, want stop time %s", got, want)
		}
	}
	order(1, 9*time.Second)
	expect(9 * time.Second)
	r.place(0)
	order(2, 2*time.Second)
	expect(9 * time.Second)
	r.do(state.Command{ApplyPlan: &state.ApplyPlan{Stops: []state.StopAlloc{{ID: "a0", Reason: state.ReasonRevoked}}}})
	expect(9 * time.Second)
	r.report(0, state.Stopped)
	expect(2 * time.Second)
}

// TestVersionsRepeatAfterARestoreOfTheStore: a restored store gives its next version the
// number of a version that the store has forgotten. The new version is bound. An attempt of
// the forgotten version is not bound for that reason.
func TestVersionsRepeatAfterARestoreOfTheStore(t *testing.T) {
	r := newRegion(t, state.Service)
	r.do(state.Command{SetLimits: &state.SetLimits{FeatureLevel: 1}})
	order := func(spec string, stop bool) {
		t.Helper()
		r.do(state.Command{ApplyOrders: &state.ApplyOrders{Orders: []state.SlotOrder{{
			Slot: state.Slot{
				Namespace: "default", Job: "api", Group: "web", To: 2, Generation: int64(r.index), Revision: int64(r.index) + 100,
				JobVersion: 1, Desired: state.Run, State: state.SlotAccepted, Unbound: true,
			},
			Job: &state.Job{Version: 1, Type: state.Service, Spec: []byte(spec), Groups: []state.Group{{
				Name: "web", Hash: 1, Ask: state.Ask{Resources: state.Resources{CPUMilli: 500}}, Disconnect: state.Disconnect{StopInRegion: stop},
			}}},
		}}}})
	}
	order("forgotten", false)
	r.place(0)
	r.report(0, state.Running)
	order("new", true)
	if got := Answers(r.Snapshot()); len(got) > 0 {
		t.Errorf("an instance of the forgotten version runs: answers %+v", got)
	}
	r.do(state.Command{ApplyPlan: &state.ApplyPlan{Stops: []state.StopAlloc{{ID: "a0", Reason: state.ReasonRevoked}}}})
	r.report(0, state.Stopped)
	if got := Answers(r.Snapshot()); len(got) != 1 || !got[0].Bound {
		t.Errorf("nothing of the forgotten version runs: answers %+v", got)
	}
}
