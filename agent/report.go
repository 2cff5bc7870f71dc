package agent

import (
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxTaskEvents is how many of a task's latest events are kept and reported.
const maxTaskEvents = 10

// maxMessage bounds a message of a report, in bytes.
const maxMessage = 1024

// wireReason turns a core's reason into the wire's.
func wireReason(r reconcile.Reason) nusav1.Reason {
	return nusav1.Reason(nusav1.Reason_value["REASON_"+strings.ToUpper(string(r))])
}

// coreReason is the inverse of wireReason.
func coreReason(r nusav1.Reason) reconcile.Reason {
	if r == nusav1.Reason_REASON_UNSPECIFIED {
		return ""
	}
	return reconcile.Reason(strings.ToLower(strings.TrimPrefix(r.String(), "REASON_")))
}

// wireStates by the core's states.
var wireStates = map[reconcile.State]nusav1.AllocState{
	reconcile.Pending:  nusav1.AllocState_ALLOC_STATE_PENDING,
	reconcile.Starting: nusav1.AllocState_ALLOC_STATE_STARTING,
	reconcile.Running:  nusav1.AllocState_ALLOC_STATE_RUNNING,
	reconcile.Complete: nusav1.AllocState_ALLOC_STATE_COMPLETE,
	reconcile.Failed:   nusav1.AllocState_ALLOC_STATE_FAILED,
	reconcile.Stopped:  nusav1.AllocState_ALLOC_STATE_STOPPED,
}

// makeReport says how an allocation stands. details are kept by task.
func makeReport(o *order, act reconcile.Actual, details map[string]*nusav1.TaskState) *nusav1.AllocReport {
	r := &nusav1.AllocReport{
		Id: o.alloc.ID, State: wireStates[reconcile.StateOf(o.alloc, act)],
		Incarnation: o.wire.GetIncarnation(), Index: o.wire.GetIndex(),
		Tasks: map[string]*nusav1.TaskState{},
	}
	outcome := act.End
	if outcome == nil {
		outcome = act.Closing
	}
	if outcome != nil {
		r.Declined, r.Reason, r.Message = outcome.Declined, wireReason(outcome.Reason), clip(outcome.Message)
	} else if waits := waitsFor(o, act, details); waits != "" {
		r.Reason, r.Message = wireReason(reconcile.ReasonNotHealthyYet), waits
	}
	for name, d := range details {
		r.Tasks[name] = proto.CloneOf(d)
	}
	return r
}

// clip shortens a message to its bound, and makes it fit for the wire.
func clip(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxMessage)], "")
}

// noteEvent adds an event to a task, forgetting the oldest but their number: a
// task that is restarted again and again while no master listens takes no more
// room, and who reads its history sees that it has a beginning elsewhere.
func noteEvent(d *nusav1.TaskState, at time.Time, kind, message string) {
	d.Events = append(d.Events, &nusav1.TaskEvent{Time: timestamppb.New(at), Type: kind, Message: clip(message)})
	if n := len(d.Events) - maxTaskEvents; n > 0 {
		d.Events = d.Events[n:]
		d.EventsDropped += int64(n)
	}
}

// noteEnd writes down how a run ended.
func noteEnd(d *nusav1.TaskState, t reconcile.TaskActual, done bool) {
	d.State = nusav1.AllocState_ALLOC_STATE_FAILED
	switch {
	case done:
		d.State = nusav1.AllocState_ALLOC_STATE_COMPLETE
	case t.Reason == reconcile.StoppedByAgent:
		d.State = nusav1.AllocState_ALLOC_STATE_STOPPED
	}
	d.ExitCode, d.Signal = int32(t.ExitCode), int32(t.Signal)
	d.Finished = timestamppb.New(t.Finished)
	d.Reason, d.Message = wireReason(t.Reason), clip(t.Message)
}

// endOf turns a driver's final status into the core's terms.
func endOf(run int, restarts []time.Time, st driver.Status) reconcile.TaskActual {
	t := reconcile.TaskActual{Phase: reconcile.Ended, Run: run, Restarts: restarts,
		Finished: st.Finished, ExitCode: st.ExitCode, Signal: st.Signal, Message: clip(st.Message)}
	switch st.Cause {
	case driver.CauseStopped:
		t.Reason = reconcile.StoppedByAgent
	case driver.CauseLeaseExpired:
		t.Reason = reconcile.ReasonLeaseExpired
	case driver.CauseStartFailed:
		t.Reason = reconcile.ReasonStartFailed
	case driver.CauseLost:
		t.Reason = reconcile.ReasonKilledBySignal
	case driver.CauseRebooted:
		t.Reason = reconcile.ReasonHostRebooted
	}
	return t
}
