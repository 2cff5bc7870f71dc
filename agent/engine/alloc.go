package engine

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/agent/reconcile"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// alloc holds the order of one allocation, its actual state, and the details for reports.
type alloc struct {
	*order
	act     reconcile.Actual
	details map[string]*nusav1.TaskState
	// output is what the task that ended last wrote for later steps of its workflow.
	output string
	// dirty says that something has changed since the last publish.
	dirty bool
	// repeat makes the engine send the report again, because the master seems to have
	// missed it.
	repeat bool
	// unstored says that the allocation was declined because the store could not write its
	// order. The end of such an allocation need not be durable, because the store has no
	// order to run.
	unstored bool
}

func newAlloc(o *order) *alloc {
	return &alloc{order: o, details: map[string]*nusav1.TaskState{}, dirty: true}
}

// ends reports whether the allocation was ordered to stop, or is about to end. Another node
// may already run the instance, so a later lease starts no part of this allocation.
func (a *alloc) ends() bool { return a.spec.Want != reconcile.Run || a.act.Closing != nil }

// undecided reports whether the engine must still accept or decline the allocation. That
// decision depends on all other allocations.
func (a *alloc) undecided() bool {
	return !a.act.Accepted && a.act.End == nil && a.spec.Want == reconcile.Run
}

// setTask replaces the state of one task of the allocation.
func (a *alloc) setTask(name string, t reconcile.TaskActual) {
	// The plan that is being applied holds the old map.
	tasks := maps.Clone(a.act.Tasks)
	if tasks == nil {
		tasks = map[string]reconcile.TaskActual{}
	}
	tasks[name] = t
	a.act.Tasks = tasks
	a.dirty = true
}

func (a *alloc) detail(name string) *nusav1.TaskState {
	d := a.details[name]
	if d == nil {
		d = &nusav1.TaskState{State: nusav1.AllocState_ALLOC_STATE_PENDING}
		a.details[name] = d
	}
	return d
}

// task returns a task as the order describes it.
func (a *alloc) task(name string) reconcile.Task {
	for _, t := range a.spec.Tasks {
		if t.Name == name {
			return t
		}
	}
	return reconcile.Task{Name: name}
}

// names reports whether an order contains every task that has begun, with the same driver,
// and only valid task names. The agent would never stop a task that the new order does not
// contain.
func (a *alloc) names(wire *nusav1.AllocOrder) bool {
	if bytes.Equal(wire.GetGroup(), a.wire.GetGroup()) {
		return true
	}
	var g nusav1.Group
	if proto.Unmarshal(wire.GetGroup(), &g) != nil {
		return false
	}
	for name := range a.act.Tasks {
		if t := g.GetTasks()[name]; t == nil || t.GetDriver() != a.tasks[name].driver {
			return false
		}
	}
	return !slices.ContainsFunc(slices.Collect(maps.Keys(g.GetTasks())), func(name string) bool { return !taskName().MatchString(name) })
}

// runStarted records that a run has started. It returns false if the run is not the latest
// one or if its start is known already. at is the driver's time, and onTimeline is the same
// time on the store's timeline.
func (a *alloc) runStarted(name string, run int, at, onTimeline time.Time) bool {
	t := a.act.Tasks[name]
	if t.Run != run || t.Phase != reconcile.Launching && t.Phase != reconcile.Unknown {
		return false
	}
	t.Phase = reconcile.Up
	a.setTask(name, t)
	if a.act.Started.IsZero() {
		a.act.Started = onTimeline
	}
	d := a.detail(name)
	known := int(d.Run) == run // an earlier process of the agent recorded the start
	d.State, d.Started, d.Finished = nusav1.AllocState_ALLOC_STATE_RUNNING, timestamppb.New(at), nil
	d.Reason, d.Message, d.Run = nusav1.Reason_REASON_UNSPECIFIED, "", int32(run)
	if !known {
		addEvent(d, at, "started", fmt.Sprintf("run %d", run))
	}
	return true
}

// runEnded records the end of the latest run of a task. end.Finished is the driver's time,
// and onTimeline is the same time on the store's timeline.
func (a *alloc) runEnded(name string, end reconcile.TaskActual, onTimeline time.Time) {
	t, finished := a.act.Tasks[name], end.Finished
	end.Finished = onTimeline
	end = t.Finish(end)
	a.setTask(name, end)
	end.Finished = finished
	d := a.detail(name)
	setEnd(d, end, a.task(name).Done(a.spec.Batch, end))
	message := fmt.Sprintf("exit code %d", end.ExitCode)
	if end.Message != "" && end.Reason != reconcile.ReasonUnhealthy { // an earlier event has end.Message
		message += ": " + end.Message
	}
	addEvent(d, finished, "ended", message)
}

// runUncertain adds the event that a run may still begin or may still be running, at most
// once for each run. It returns false if the allocation has that event already, or if the
// run has ended.
func (a *alloc) runUncertain(name string, run int, why string) bool {
	if t := a.act.Tasks[name]; t.Run != run || t.Phase == reconcile.Ended {
		return false
	}
	d := a.detail(name)
	for _, ev := range d.GetEvents() {
		if ev.GetType() == uncertainEvent && ev.GetMessage() == uncertainMessage(run) {
			return false
		}
	}
	d.Message = Clip(uncertainMessage(run) + ": " + why)
	addEvent(d, time.Now(), uncertainEvent, uncertainMessage(run))
	a.dirty = true
	return true
}

// uncertainEvent is the type of the event that a run may still begin or may still be
// running.
const uncertainEvent = "uncertain"

func uncertainMessage(run int) string {
	return fmt.Sprintf("run %d may have begun or may still begin: no other run of this task starts before run %d is known to have ended", run, run)
}
