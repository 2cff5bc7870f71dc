package tasks

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

const (
	// maxChanges bounds the changes of a record. Of more changes the first and the latest half stay.
	maxChanges = 32
	// maxMessage bounds a message in bytes.
	maxMessage = 512
)

// states are the states after the events about instances.
var states = map[state.EventKind]state.AllocState{
	state.EventInstancePlaced: state.Pending, state.EventInstanceStarting: state.Starting,
	state.EventInstanceRunning: state.Running, state.EventInstanceRestarted: state.Running,
	state.EventInstanceComplete: state.Complete, state.EventInstanceFailed: state.Failed, state.EventInstanceDeclined: state.Failed,
	state.EventInstanceStopped: state.Stopped, state.EventInstanceLost: state.Lost,
}

// source says what the log knows about the events: its state, and the region.
type source struct {
	view   *state.View
	region string
	labels func(*state.View, *state.Alloc) map[string]string
}

// begin returns the record of an allocation whose first event is e. An event that is not the first one
// follows a gap, or comes from a log of a lower feature level. Then the allocation says when it began.
func (s source) begin(e *state.Event) *nusav1.StoredTask {
	rec := &nusav1.TaskRecord{
		Id: e.ID, Namespace: e.Namespace, Job: wire.JobName(e.Job, e.Local, s.region), Own: e.Local, Group: e.Group, Index: e.Index,
		JobVersion: e.Version, Region: s.region, Node: e.Node, Placed: timestamp(e.UnixNano),
	}
	if a, ok := s.view.Alloc(e.ID); ok {
		rec.Placed = timestamp(a.CreatedUnixNano)
		rec.NodeId, rec.Attempt, rec.Run, rec.Epoch, rec.Labels = a.NodeID, a.Attempt, a.Run, a.Epoch, s.labels(s.view, a)
		if e.Kind != state.EventInstancePlaced {
			addChange(rec, &nusav1.TaskChange{Time: rec.Placed, State: nusav1.AllocState_ALLOC_STATE_PENDING, Message: cut(a.PlacedBecause)})
		}
	}
	return &nusav1.StoredTask{Task: rec}
}

// fold adds an event to the record of its allocation.
func (s source) fold(rec *nusav1.StoredTask, number uint64, e *state.Event) {
	if number <= rec.Event {
		return
	}
	rec.Event = number
	change := &nusav1.TaskChange{
		Time: timestamp(e.UnixNano), State: nusav1.AllocState(states[e.Kind]), Restarts: e.Restarts,
		Reason: wire.ReasonToProto(e.Reason), Message: cut(e.Message), Declined: e.Kind == state.EventInstanceDeclined,
	}
	s.change(rec.Task, change)
}

// change adds a change to a record. If it is the latest one, it sets the state of the record.
func (s source) change(rec *nusav1.TaskRecord, c *nusav1.TaskChange) {
	addChange(rec, c)
	if rec.Changes[len(rec.Changes)-1] == c {
		s.update(rec, c)
	}
}

// update sets the latest state of a record.
func (s source) update(rec *nusav1.TaskRecord, c *nusav1.TaskChange) {
	rec.State, rec.Reason, rec.Message, rec.Restarts = c.State, c.Reason, c.Message, max(rec.Restarts, c.Restarts)
	at := state.AllocState(c.State)
	if at == state.Running && rec.Started == nil {
		rec.Started = c.Time
	}
	if at.Terminal() {
		rec.Ended = c.Time
	}
}

// complete adds to a changed record what the events do not tell: its tasks as the log has them now.
func (s source) complete(rec *nusav1.TaskRecord) {
	a, ok := s.view.Alloc(rec.Id)
	if !ok {
		return
	}
	if a.RunningUnixNano != 0 && rec.Started == nil {
		rec.Started = timestamp(a.RunningUnixNano)
	}
	rec.Tasks = wire.TasksFromStored(a.Tasks)
	for _, t := range rec.Tasks {
		t.Events, t.Check, t.Message = nil, nil, cut(t.GetMessage())
	}
}

// present brings a record to the state that an allocation has now, for the changes that were missed.
func (s source) present(rec *nusav1.StoredTask, a *state.Alloc) {
	have := state.AllocState(rec.Task.State)
	if have == a.State && rec.Task.Restarts >= a.Restarts || have.Terminal() {
		return
	}
	at := a.ModifiedUnixNano
	if a.State == state.Running && a.Restarts == 0 && a.RunningUnixNano != 0 {
		at = a.RunningUnixNano
	}
	c := &nusav1.TaskChange{Time: timestamp(at), State: nusav1.AllocState(a.State), Restarts: a.Restarts, Declined: a.Declined}
	if a.State.Terminal() || a.Restarts > 0 {
		c.Reason, c.Message = wire.ReasonToProto(a.Reason), cut(a.Message)
	}
	s.change(rec.Task, c)
	s.complete(rec.Task)
}

// addChange adds a change to a record at its time, unless the record has it, and bounds the changes.
func addChange(rec *nusav1.TaskRecord, c *nusav1.TaskChange) {
	at := len(rec.Changes)
	for ; at > 0; at-- {
		order := compareChanges(rec.Changes[at-1], c)
		if order == 0 {
			return
		}
		if order < 0 {
			break
		}
	}
	rec.Changes = slices.Insert(rec.Changes, at, c)
	if len(rec.Changes) > maxChanges {
		rec.Changes = slices.Delete(rec.Changes, maxChanges/2, maxChanges/2+1)
		rec.ChangesDropped++
	}
}

func compareChanges(x, y *nusav1.TaskChange) int {
	return cmp.Or(x.GetTime().AsTime().Compare(y.GetTime().AsTime()), cmp.Compare(x.GetState(), y.GetState()), cmp.Compare(x.GetRestarts(), y.GetRestarts()))
}

// merge returns the record with the changes of two copies of it.
func merge(have, other *nusav1.StoredTask) *nusav1.StoredTask {
	a, b := have, other
	if b.Event > a.Event || b.Event == a.Event && len(b.Task.Changes) > len(a.Task.Changes) {
		a, b = b, a
	}
	a.Task.Placed = have.Task.Placed // it is in the key
	if a.Task.Started == nil || b.Task.Started != nil && before(b.Task.Started, a.Task.Started) {
		a.Task.Started = b.Task.Started
	}
	if a.Task.NodeId == "" { // the log had forgotten the allocation when the other server wrote its record
		a.Task.NodeId, a.Task.Labels, a.Task.Attempt, a.Task.Run, a.Task.Epoch = b.Task.NodeId, b.Task.Labels, b.Task.Attempt, b.Task.Run, b.Task.Epoch
	}
	if a.Task.ChangesDropped+b.Task.ChangesDropped > 0 {
		return a // it has at least as many changes
	}
	for _, c := range b.Task.Changes {
		if c.State != nusav1.AllocState_ALLOC_STATE_UNSPECIFIED { // an unknown end is known now
			addChange(a.Task, c)
		}
	}
	return a
}

// cut bounds a message.
func cut(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxMessage)], "")
}

func timestamp(unixNano int64) *timestamppb.Timestamp {
	return timestamppb.New(time.Unix(0, max(unixNano, 0)))
}
