package wire

import (
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// MaxReports bounds a full set of reports: the allocations of one node.
const MaxReports = 10_000

// The generated code would need a deep stack for reports, and build maps of tasks
// only for their bytes to be put together again. So they are read off the wire
// here, and a test holds this to what the generated code reads.

// ReadReports is an encoded AllocReports.
func ReadReports(raw []byte) (b link.Batch[state.AllocReport], err error) {
	reports := 0
	s := fieldScanner{rest: raw}
	for s.next() {
		if s.num == 3 {
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
		case 1:
			b.Full = s.v != 0
		case 2:
			b.Last = s.v != 0
		case 3:
			r, err := readReport(s.b)
			if err != nil {
				return b, err
			}
			b.Items = append(b.Items, link.Item[state.AllocReport]{Key: r.ID, Value: r})
		case 4:
			b.Removed = append(b.Removed, string(s.b))
		case 5:
			p := fieldScanner{rest: s.b}
			for p.next() {
				switch p.num {
				case 1:
					b.Position.Epoch = strings.ToValidUTF8(string(p.b), "?") // it is told again
				case 2:
					b.Position.Sequence = p.v
				}
			}
			if p.err != nil {
				return b, p.err
			}
		}
	}
	return b, s.err
}

// readReport is an encoded AllocReport.
func readReport(raw []byte) (r state.AllocReport, err error) {
	var tasks []reportedTask
	s := fieldScanner{rest: raw}
	for s.next() {
		switch s.num {
		case 1:
			r.ID = string(s.b)
		case 2:
			r.State = state.AllocState(int32(s.v))
		case 3:
			r.Declined = s.v != 0
		case 4:
			r.Reason = ReasonFromProto(nusav1.Reason(int32(s.v)))
		case 5:
			r.Message = strings.ToValidUTF8(string(s.b), "?")
		case 6:
			t, err := readTask(s.b)
			if err != nil {
				return r, err
			}
			tasks = append(tasks, t)
		}
	}
	r.Tasks, r.Restarts, r.Down = encodeTasks(tasks)
	r.Down = r.Down && r.State == state.Running
	return r, s.err
}

// reportedTask is one of a report's: its encoded name and state, and what of that counts
// here.
type reportedTask struct {
	name     string
	entry    []byte
	restarts int32
	state    nusav1.AllocState
}

func readTask(entry []byte) (reportedTask, error) {
	name, value, err := mapEntry(entry)
	if err != nil {
		return reportedTask{}, Malformed(err)
	}
	t := reportedTask{name: name, entry: entry}
	s := fieldScanner{rest: value}
	for s.next() {
		switch s.num {
		case 1:
			t.state = nusav1.AllocState(int32(s.v))
		case 4:
			t.restarts = int32(s.v)
		}
	}
	return t, s.err
}

// encodeTasks are the task states of a report as the state's opaque bytes: those
// of an Allocation, equal if they are. With them come how often tasks were
// restarted, and whether one has ended: of an allocation that runs it is to be
// restarted.
func encodeTasks(tasks []reportedTask) (raw []byte, restarts int32, down bool) {
	slices.SortFunc(tasks, func(a, b reportedTask) int { return strings.Compare(a.name, b.name) })
	size := 0
	for _, t := range tasks {
		size += protowire.SizeTag(fieldAllocationTasks) + protowire.SizeBytes(len(t.entry))
	}
	if size > 0 {
		raw = make([]byte, 0, size) // the message's own bytes would keep all of it
	}
	for _, t := range tasks {
		raw = protowire.AppendBytes(protowire.AppendTag(raw, fieldAllocationTasks, protowire.BytesType), t.entry)
		restarts += t.restarts
		switch t.state {
		case nusav1.AllocState_ALLOC_STATE_RUNNING, nusav1.AllocState_ALLOC_STATE_COMPLETE:
		default:
			down = true
		}
	}
	return raw, restarts, down
}

// fieldAllocationTasks is the number of Allocation.tasks.
const fieldAllocationTasks = 16
