package engine

import (
	"cmp"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxTaskEvents is the number of events of a task that are retained and reported. Older
// events are dropped.
const maxTaskEvents = 10

// maxMessage bounds a message of a report, in bytes.
const maxMessage = 1024

func reasonToProto(r reconcile.Reason) nusav1.Reason {
	return nusav1.Reason(nusav1.Reason_value["REASON_"+strings.ToUpper(string(r))])
}

func reasonFromProto(r nusav1.Reason) reconcile.Reason {
	if r == nusav1.Reason_REASON_UNSPECIFIED {
		return ""
	}
	return reconcile.Reason(strings.ToLower(strings.TrimPrefix(r.String(), "REASON_")))
}

// statesToProto maps each state to the state of the protocol.
var statesToProto = map[reconcile.State]nusav1.AllocState{
	reconcile.Pending:  nusav1.AllocState_ALLOC_STATE_PENDING,
	reconcile.Starting: nusav1.AllocState_ALLOC_STATE_STARTING,
	reconcile.Running:  nusav1.AllocState_ALLOC_STATE_RUNNING,
	reconcile.Complete: nusav1.AllocState_ALLOC_STATE_COMPLETE,
	reconcile.Failed:   nusav1.AllocState_ALLOC_STATE_FAILED,
	reconcile.Stopped:  nusav1.AllocState_ALLOC_STATE_STOPPED,
}

// makeReport returns the report of an allocation. details maps a task's name to its state.
// v says whether the allocation may start under its leases.
func makeReport(o *order, act reconcile.Actual, details map[string]*nusav1.TaskState, v lease.Verdict) *nusav1.AllocReport {
	r := &nusav1.AllocReport{
		Id: o.spec.ID, State: statesToProto[reconcile.StateOf(o.spec, act)],
		Incarnation: o.wire.GetIncarnation(), Index: o.wire.GetIndex(),
		Tasks: map[string]*nusav1.TaskState{},
	}
	outcome := act.End
	if outcome == nil {
		outcome = act.Closing
	}
	if outcome != nil {
		r.Declined, r.Reason, r.Message = outcome.Declined, reasonToProto(outcome.Reason), Clip(outcome.Message)
		r.Failure = failureToProto(outcome.Failure)
	} else if !v.MayStart && reconcile.AwaitsLease(o.spec, act) {
		r.Reason, r.Message = reasonToProto(reconcile.Reason(v.Reason)), v.Message()
	} else if check := awaitedCheck(o, act, details); check != "" {
		r.Reason, r.Message = reasonToProto(reconcile.ReasonNotHealthyYet), check
	}
	switch limits, refused := reconcile.LimitsOf(o.spec, act); limits {
	case reconcile.LimitsApplied:
		r.Limits = nusav1.LimitsState_LIMITS_STATE_APPLIED
	case reconcile.LimitsRefused:
		r.Limits, r.Message = nusav1.LimitsState_LIMITS_STATE_REFUSED, cmp.Or(r.Message, Clip(refused))
	}
	for name, d := range details {
		r.Tasks[name] = proto.CloneOf(d)
	}
	return r
}

func failureToProto(f *reconcile.Failure) *nusav1.Failure {
	if f == nil {
		return nil
	}
	return &nusav1.Failure{
		Category: nusav1.FailureCategory(nusav1.FailureCategory_value["FAILURE_CATEGORY_"+strings.ToUpper(string(f.Category))]),
		Task:     f.Task, ExitCode: int32(f.ExitCode), Signal: int32(f.Signal), Permanent: f.Permanent,
	}
}

// Clip shortens a message to the bound of reports and makes it valid UTF-8.
func Clip(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxMessage)], "")
}

// addEvent adds an event to a task. The oldest events are dropped, because a task that
// restarts again and again without a master must not take ever more memory. The number of
// dropped events is retained, so that a reader sees that events are missing.
func addEvent(d *nusav1.TaskState, at time.Time, kind, message string) {
	d.Events = append(d.Events, &nusav1.TaskEvent{Time: timestamppb.New(at), Type: kind, Message: Clip(message)})
	if n := len(d.Events) - maxTaskEvents; n > 0 {
		d.Events = d.Events[n:]
		d.EventsDropped += int64(n)
	}
}

// setEnd records how a run ended. done means that the task needs no further run.
func setEnd(d *nusav1.TaskState, t reconcile.TaskActual, done bool) {
	d.State = nusav1.AllocState_ALLOC_STATE_FAILED
	switch {
	case done:
		d.State = nusav1.AllocState_ALLOC_STATE_COMPLETE
	case t.Reason == reconcile.StoppedByAgent || t.Lapsed():
		d.State = nusav1.AllocState_ALLOC_STATE_STOPPED
	}
	d.ExitCode, d.Signal = int32(t.ExitCode), int32(t.Signal)
	d.Finished = timestamppb.New(t.Finished)
	d.Reason, d.Message = reasonToProto(t.Reason), Clip(t.Message)
}

// endOf converts the final status of a run, as its driver reported it.
func endOf(run int, restarts []time.Time, st driver.Status) runEnd {
	t := reconcile.TaskActual{Phase: reconcile.Ended, Run: run, Restarts: restarts,
		Finished: st.Finished, ExitCode: st.ExitCode, Signal: st.Signal, Message: Clip(st.Message)}
	switch st.Cause {
	case driver.CauseStopped:
		t.Reason = reconcile.StoppedByAgent
	case driver.CauseLeaseExpired, driver.CauseLateStart:
		t.Reason = reconcile.ReasonLeaseExpired
	case driver.CauseStartFailed:
		t.Reason, t.Final = reconcile.ReasonStartFailed, st.Final
	case driver.CauseLost:
		t.Reason = reconcile.ReasonKilledBySignal
	case driver.CauseRebooted:
		t.Reason = reconcile.ReasonHostRebooted
	}
	if err := st.StartError(); err != nil {
		category, _ := driver.CategoryOf(err)
		t.Category = reconcile.Category(category)
	} else if st.OutOfMemory {
		t.Category = reconcile.CategoryOOM
	}
	return runEnd{end: t, ran: st.Cause != driver.CauseStartFailed && st.Cause != driver.CauseLateStart, started: st.Started}
}
