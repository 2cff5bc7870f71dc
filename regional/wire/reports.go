package wire

import (
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/state/retry"
)

// maxOutput bounds an output, in bytes. An agent sends no larger one.
const maxOutput = 16 << 10

// MaxReports bounds a full set of reports. A node has fewer allocations.
const MaxReports = 10_000

// ReadReports decodes an AllocReports. The error is a gRPC status: ResourceExhausted for
// more than MaxReports.
//
// ReadReports does not use the generated code. That code would need a deep stack in each
// agent's goroutine, and would decode the states of tasks only to encode them again.
// TestReadReportsEqualsGeneratedCode compares the two.
func ReadReports(raw []byte) (b link.Batch[state.AllocReport], err error) {
	reports := 0
	s := fieldScanner{rest: raw}
	for s.next() {
		if s.num == reportsReports {
			reports++
		}
	}
	if reports > MaxReports {
		return b, status.Errorf(codes.ResourceExhausted, "a message has %d reports, at most %d are read", reports, MaxReports)
	}
	b.Items = make([]link.Item[state.AllocReport], 0, reports)
	s = fieldScanner{rest: raw}
	for s.next() {
		switch s.num {
		case reportsFull:
			b.Full = s.v != 0
		case reportsLast:
			b.Last = s.v != 0
		case reportsReports:
			r, err := readReport(s.b)
			if err != nil {
				return b, err
			}
			b.Items = append(b.Items, link.Item[state.AllocReport]{Key: r.ID, Value: r})
		case reportsRemoved:
			b.Removed = append(b.Removed, string(s.b))
		case reportsPosition:
			if b.Position, err = readPosition(b.Position, s.b); err != nil {
				return b, err
			}
		}
	}
	return b, s.err
}

// readPosition decodes a Position into p. A field that the encoding lacks keeps its value.
func readPosition(p link.Position, raw []byte) (link.Position, error) {
	s := fieldScanner{rest: raw}
	for s.next() {
		switch s.num {
		case positionEpoch:
			p.Epoch = strings.ToValidUTF8(string(s.b), "?") // the epoch is sent back in a message, so it must be UTF-8
		case positionSequence:
			p.Sequence = s.v
		}
	}
	return p, s.err
}

// readReport decodes an AllocReport.
func readReport(raw []byte) (r state.AllocReport, err error) {
	var tasks []reportedTask
	index := uint64(0)
	var output []byte
	s := fieldScanner{rest: raw}
	for s.next() {
		switch s.num {
		case reportID:
			r.ID = string(s.b)
		case reportState:
			r.State = state.AllocState(int32(s.v))
		case reportDeclined:
			r.Declined = s.v != 0
		case reportReason:
			r.Reason = ReasonFromProto(nusav1.Reason(int32(s.v)))
		case reportMessage:
			r.Message = strings.ToValidUTF8(string(s.b), "?")
		case reportTasks:
			t, err := readTask(s.b)
			if err != nil {
				return r, err
			}
			tasks = append(tasks, t)
		case reportOutput:
			if len(s.b) <= maxOutput && utf8.Valid(s.b) {
				output = s.b
			}
		case reportFailure:
			if r.Failure, err = readFailure(s.b); err != nil {
				return r, err
			}
		case reportIndex:
			index = s.v
		case reportLimits:
			r.Limits = limitsFromProto(nusav1.LimitsState(int32(s.v)))
		}
	}
	if r.Limits != 0 {
		r.Order = index
	}
	r.Tasks, r.Restarts, r.Down = encodeTasks(tasks, output)
	r.Down = r.Down && r.State == state.Running
	return r, s.err
}

// limitsFromProto returns 0 for a state that says nothing yet.
func limitsFromProto(s nusav1.LimitsState) state.Limits {
	switch s {
	case nusav1.LimitsState_LIMITS_STATE_APPLIED:
		return state.LimitsApplied
	case nusav1.LimitsState_LIMITS_STATE_REFUSED:
		return state.LimitsRefused
	}
	return 0
}

// readFailure decodes a Failure.
func readFailure(raw []byte) (*retry.Failure, error) {
	f := &retry.Failure{Category: retry.App}
	s := fieldScanner{rest: raw}
	for s.next() {
		switch s.num {
		case failureCategory:
			f.Category = CategoryFromProto(nusav1.FailureCategory(int32(s.v)))
		case failureTask:
			f.Task = strings.ToValidUTF8(string(s.b), "?")
		case failureExitCode:
			f.ExitCode = int32(s.v)
		case failureSignal:
			f.Signal = int32(s.v)
		case failurePermanent:
			f.Permanent = s.v != 0
		}
	}
	return f, s.err
}

// reportedTask is one task in a report.
type reportedTask struct {
	name     string
	entry    []byte // the encoded entry of AllocReport.tasks
	restarts int32
	state    nusav1.AllocState
}

// readTask decodes an entry of AllocReport.tasks.
func readTask(entry []byte) (reportedTask, error) {
	name, value, err := mapEntry(entry)
	if err != nil {
		return reportedTask{}, Malformed(err)
	}
	t := reportedTask{name: name, entry: entry}
	s := fieldScanner{rest: value}
	for s.next() {
		switch s.num {
		case taskState:
			t.state = nusav1.AllocState(int32(s.v))
		case taskRestarts:
			t.restarts = int32(s.v)
		}
	}
	return t, s.err
}

// encodeTasks returns the task states of a report as the state stores them: an encoded
// Allocation with the tasks sorted by name, so that equal tasks have equal bytes, and the output. It also
// returns the number of restarts, and whether a task is down. A task is down when it is
// neither running nor complete.
func encodeTasks(tasks []reportedTask, output []byte) (raw []byte, restarts int32, down bool) {
	slices.SortFunc(tasks, func(a, b reportedTask) int { return strings.Compare(a.name, b.name) })
	size := 0
	for _, t := range tasks {
		size += protowire.SizeTag(allocTasks) + protowire.SizeBytes(len(t.entry))
	}
	if len(output) > 0 {
		size += protowire.SizeTag(allocOutput) + protowire.SizeBytes(len(output))
	}
	if size > 0 {
		raw = make([]byte, 0, size) // a copy, because a slice of the message would keep the whole message in memory
	}
	for _, t := range tasks {
		raw = protowire.AppendBytes(protowire.AppendTag(raw, allocTasks, protowire.BytesType), t.entry)
		restarts += t.restarts
		switch t.state {
		case nusav1.AllocState_ALLOC_STATE_RUNNING, nusav1.AllocState_ALLOC_STATE_COMPLETE:
		default:
			down = true
		}
	}
	if len(output) > 0 {
		raw = protowire.AppendBytes(protowire.AppendTag(raw, allocOutput, protowire.BytesType), output)
	}
	return raw, restarts, down
}
