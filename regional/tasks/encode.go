package tasks

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// A record is stored as pieces. Each piece is an encoded StoredTask with what an event adds. Pieces one after
// another decode to one StoredTask, because protobuf merges the fields of repeated messages. The latest state
// and the times of the start and the end are in no piece of an event: decode derives them from the changes.
//
// Pieces of events are written field by field, which takes a fifth of the time of the generated code.
// TestPiecesDecode compares the fields with the messages.
const (
	storedTask  protowire.Number = 1
	storedEvent protowire.Number = 2

	taskID        protowire.Number = 1
	taskNamespace protowire.Number = 2
	taskJob       protowire.Number = 3
	taskGroup     protowire.Number = 4
	taskIndex     protowire.Number = 5
	taskVersion   protowire.Number = 6
	taskRegion    protowire.Number = 7
	taskNodeID    protowire.Number = 8
	taskNode      protowire.Number = 9
	taskAttempt   protowire.Number = 13
	taskPlaced    protowire.Number = 14
	taskLabels    protowire.Number = 18
	taskChanges   protowire.Number = 19
	taskOwn       protowire.Number = 22
	taskRun       protowire.Number = 24
	taskEpoch     protowire.Number = 25

	changeTime     protowire.Number = 1
	changeState    protowire.Number = 2
	changeReason   protowire.Number = 3
	changeMessage  protowire.Number = 4
	changeRestarts protowire.Number = 5
	changeDeclined protowire.Number = 6
)

// change is a TaskChange.
type change struct {
	time     int64 // Unix time in nanoseconds
	state    nusav1.AllocState
	reason   nusav1.Reason
	message  string
	restarts int32
	declined bool
}

// about is what the records of all allocations of a version of a job have in common.
type about struct {
	labels []byte // encoded as fields of a TaskRecord
	terms  []term
}

// newAbout returns the common part of the records of a version of a job.
func newAbout(namespace, job string, labels map[string]string) *about {
	a := &about{terms: make([]term, 0, 2+len(labels))}
	a.terms = append(a.terms, termOf('m', namespace), termOf('j', namespace, job))
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		a.terms = append(a.terms, termOf('l', k, labels[k]))
		entry := appendText(appendText(nil, 1, k), 2, labels[k])
		a.labels = protowire.AppendBytes(protowire.AppendTag(a.labels, taskLabels, protowire.BytesType), entry)
	}
	return a
}

// encoder encodes pieces. Its buffers are used again.
type encoder struct{ task, part, out []byte }

// begin begins a piece that is the first one of a record. a may be nil.
func (c *encoder) begin(e *state.Event, job, region string, a *state.Alloc, common *about, placed int64) {
	b := appendText(c.task[:0], taskID, e.ID)
	b = appendText(b, taskNamespace, e.Namespace)
	b = appendText(b, taskJob, job)
	b = appendText(b, taskGroup, e.Group)
	b = appendNumber(b, taskIndex, int64(e.Index))
	b = appendNumber(b, taskVersion, e.Version)
	b = appendText(b, taskRegion, region)
	b = appendText(b, taskNode, e.Node)
	b = appendTime(b, taskPlaced, placed)
	b = appendNumber(b, taskOwn, int64(protowire.EncodeBool(e.Local)))
	if a != nil {
		b = appendText(b, taskNodeID, a.NodeID)
		b = appendNumber(b, taskAttempt, int64(a.Attempt))
		b = appendNumber(b, taskRun, a.Run)
		b = appendNumber(b, taskEpoch, a.Epoch)
	}
	c.task = append(b, common.labels...)
}

// change adds a change to the piece.
func (c *encoder) change(x *change) {
	p := appendTime(c.part[:0], changeTime, x.time)
	p = appendNumber(p, changeState, int64(x.state))
	p = appendNumber(p, changeReason, int64(x.reason))
	p = appendText(p, changeMessage, x.message)
	p = appendNumber(p, changeRestarts, int64(x.restarts))
	p = appendNumber(p, changeDeclined, int64(protowire.EncodeBool(x.declined)))
	c.part = p
	c.task = protowire.AppendBytes(protowire.AppendTag(c.task, taskChanges, protowire.BytesType), p)
}

// extra adds fields in the encoding of the generated code.
func (c *encoder) extra(rec *nusav1.TaskRecord) error {
	raw, err := proto.Marshal(rec)
	c.task = append(c.task, raw...)
	return err
}

// piece returns the piece, valid until the next one begins. Event 0 leaves the record's event as it is.
func (c *encoder) piece(event uint64) []byte {
	b := protowire.AppendBytes(protowire.AppendTag(c.out[:0], storedTask, protowire.BytesType), c.task)
	if event != 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, storedEvent, protowire.VarintType), event)
	}
	c.out, c.task = b, c.task[:0]
	return b
}

func appendText(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

func appendNumber(b []byte, field protowire.Number, n int64) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(n))
}

// appendTime appends a Timestamp, which takes less than 128 bytes, so that its length is one byte.
func appendTime(b []byte, field protowire.Number, unixNano int64) []byte {
	b = append(protowire.AppendTag(b, field, protowire.BytesType), 0)
	at := len(b)
	unixNano = max(unixNano, 0)
	b = appendNumber(b, 1, unixNano/int64(time.Second))
	b = appendNumber(b, 2, unixNano%int64(time.Second))
	b[at-1] = byte(len(b) - at)
	return b
}

// decode returns the record that pieces make.
func decode(raw []byte) (*nusav1.StoredTask, error) {
	rec := &nusav1.StoredTask{}
	if err := proto.Unmarshal(raw, rec); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if rec.Task == nil {
		return nil, fmt.Errorf("%w: an empty record", errDamaged)
	}
	derive(rec.Task)
	return rec, nil
}

// derive sorts and bounds the changes of a record, and sets what follows from them.
func derive(rec *nusav1.TaskRecord) {
	changes := rec.Changes
	if len(changes) == 0 {
		return
	}
	rec.Changes = make([]*nusav1.TaskChange, 0, min(len(changes), maxChanges+1))
	for _, c := range changes {
		addChange(rec, c)
		rec.Restarts = max(rec.Restarts, c.Restarts)
		if state.AllocState(c.State) == state.Running && (rec.Started == nil || before(c.Time, rec.Started)) {
			rec.Started = c.Time
		}
	}
	last := rec.Changes[len(rec.Changes)-1]
	rec.State, rec.Reason, rec.Message, rec.Ended = last.State, last.Reason, last.Message, nil
	if ends(last.State) {
		rec.Ended = last.Time
	}
}

// ends reports whether an allocation with a state has ended. It has, if nobody saw its end.
func ends(s nusav1.AllocState) bool {
	return s == nusav1.AllocState_ALLOC_STATE_UNSPECIFIED || state.AllocState(s).Terminal()
}

func endOf(rec *nusav1.TaskRecord) int64 {
	if rec.GetEnded() == nil {
		return 0
	}
	return max(1, rec.GetEnded().AsTime().UnixNano())
}
