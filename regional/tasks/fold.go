package tasks

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/taskpage"
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
	// about returns what the records of the allocation's version of a job have in common.
	about func(*state.View, *state.Alloc) *about
}

// begin encodes the beginning of the record of an allocation whose first event is e. An event that is not the
// first one follows a gap, or comes from a log of a lower feature level. Then the allocation says when it began.
func (s source) begin(c *encoder, id [taskpage.IDBytes]byte, e *state.Event) *entry {
	out := &entry{key: taskpage.Key{Placed: max(e.UnixNano, 0), ID: id}, node: termOf('n', e.Node), nodeID: termOf('n', "")}
	job := wire.JobName(e.Job, e.Local, s.region)
	a, ok := s.view.Alloc(e.ID)
	if !ok {
		out.common = newAbout(e.Namespace, job, nil)
		c.begin(e, job, s.region, nil, out.common, out.key.Placed)
		return out
	}
	out.key.Placed, out.nodeID, out.common = max(a.CreatedUnixNano, 0), termOf('n', a.NodeID), s.about(s.view, a)
	c.begin(e, job, s.region, a, out.common, out.key.Placed)
	if e.Kind != state.EventInstancePlaced {
		x := change{time: out.key.Placed, state: nusav1.AllocState_ALLOC_STATE_PENDING, message: cut(a.PlacedBecause)}
		c.change(&x)
		out.apply(&x)
	}
	return out
}

// changeOf returns the change that an event about an instance tells.
func changeOf(e *state.Event) change {
	return change{
		time: max(e.UnixNano, 0), state: nusav1.AllocState(states[e.Kind]), restarts: e.Restarts,
		reason: wire.ReasonToProto(e.Reason), message: cut(e.Message), declined: e.Kind == state.EventInstanceDeclined,
	}
}

// end returns what the events do not tell about an allocation that has ended: its tasks as the log has them.
func (s source) end(id string) *nusav1.TaskRecord {
	rec := &nusav1.TaskRecord{}
	if a, ok := s.view.Alloc(id); ok {
		s.complete(rec, a)
	}
	return rec
}

func (s source) complete(rec *nusav1.TaskRecord, a *state.Alloc) {
	if a.RunningUnixNano != 0 && rec.Started == nil {
		rec.Started = timestamp(a.RunningUnixNano)
	}
	rec.Tasks = wire.TasksFromStored(a.Tasks)
	for _, t := range rec.Tasks {
		t.Events, t.Check, t.Message = nil, nil, cut(t.GetMessage())
	}
}

// present returns the change that brings a record to the state that an allocation has now, for the changes that
// were missed. It returns false if the record has that state.
func (s source) present(e *entry, a *state.Alloc) (change, bool) {
	have := state.AllocState(e.state)
	if have == a.State && e.restarts >= a.Restarts || have.Terminal() {
		return change{}, false
	}
	at := a.ModifiedUnixNano
	if a.State == state.Running && a.Restarts == 0 && a.RunningUnixNano != 0 {
		at = a.RunningUnixNano
	}
	c := change{time: max(at, 0), state: nusav1.AllocState(a.State), restarts: a.Restarts, declined: a.Declined}
	if a.State.Terminal() || a.Restarts > 0 {
		c.reason, c.message = wire.ReasonToProto(a.Reason), cut(a.Message)
	}
	return c, true
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
