package regional

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// reports has the log take what the agent says about its allocations. What it
// says next waits for that, it does not: an acknowledgement travels with what is
// sent anyway, such as the grant of the next lease. Only an agent that leaves
// waits for one, and by then all that it runs has ended.
func (ss *agentSession) reports(ctx context.Context, raw []byte) error {
	b, err := readReports(raw)
	if err != nil {
		return err
	}
	change, whole, err := ss.inbox.Add(b, func(func(string) bool) {})
	if err != nil || !whole {
		return err
	}
	for _, cmd := range agentReports(ss.l.s.fsm.View(), ss.node.id, change) {
		if err := ss.landed(ctx); err != nil {
			return err
		}
		if ss.flying, err = ss.l.begin(ctx, state.Command{AgentReports: cmd}); err != nil {
			return ss.reportError(err)
		}
	}
	ss.mu.Lock()
	ss.owed = state.Position(change.Position)
	ss.mu.Unlock()
	if !ackAwaited(change) {
		return nil
	}
	if err := ss.landed(ctx); err != nil {
		return err
	}
	return ss.later(func() error { return nil })
}

// landed waits until the agent's last reports are committed.
func (ss *agentSession) landed(ctx context.Context) error {
	p := ss.flying
	if p == nil {
		return nil
	}
	ss.flying = nil
	_, err := p.wait(ctx)
	return ss.reportError(err)
}

func (ss *agentSession) reportError(err error) error {
	if err == nil || errors.Is(err, state.ErrStalePosition) { // a later session of the node has said more
		return nil
	}
	return fmt.Errorf("commit reports of node %s: %w", ss.node.id, err)
}

// ackAwaited says that the agent may be waiting for the acknowledgement.
func ackAwaited(c link.Change[state.AllocReport]) bool {
	return c.Full || len(c.Removed) > 0 || slices.ContainsFunc(c.Upserts, func(i link.Item[state.AllocReport]) bool { return i.Value.State.Terminal() })
}

// agentReports is a change as commands that each fit an entry. What a full set
// does not mention has ended, and is released with the last of them.
func agentReports(view *state.View, node string, change link.Change[state.AllocReport]) []*state.AgentReports {
	const perReport = 192 // bytes besides what varies, roughly
	next := func() *state.AgentReports {
		return &state.AgentReports{NodeID: node, Position: state.Position(change.Position), More: true}
	}
	cmd, size := next(), 0
	var out []*state.AgentReports
	room := func(n int) {
		if size > 0 && size+n > maxEntry {
			out, cmd, size = append(out, cmd), next(), 0
		}
		size += n
	}
	cmd.Reports = make([]state.AllocReport, 0, min(len(change.Upserts), maxEntry/perReport))
	for _, item := range change.Upserts {
		r := item.Value
		room(perReport + len(r.ID) + len(r.Reason) + len(r.Message) + len(r.Tasks))
		cmd.Reports = append(cmd.Reports, r)
	}
	if change.Full {
		mentioned := make(map[string]bool, len(change.Upserts))
		for _, item := range change.Upserts {
			mentioned[item.Key] = true
		}
		for _, id := range view.Unmentioned(node, func(id string) bool { return mentioned[id] }) {
			room(len(id) + 8)
			cmd.Released = append(cmd.Released, id)
		}
	}
	cmd.More = false
	return append(out, cmd)
}

// The generated code would need a deep stack for reports, and build maps of tasks
// only for their bytes to be put together again. So they are read off the wire
// here, and a test holds this to what the generated code reads.

// readReports is an encoded AllocReports.
func readReports(raw []byte) (b link.Batch[state.AllocReport], err error) {
	reports := 0
	s := scan{rest: raw}
	for s.next() {
		if s.num == 3 {
			reports++
		}
	}
	if reports > maxReports {
		return b, status.Errorf(codes.ResourceExhausted, "a message has %d reports, at most %d are read", reports, maxReports)
	}
	b.Items = make([]link.Item[state.AllocReport], 0, reports)
	s = scan{rest: raw}
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
			p := scan{rest: s.b}
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
	var tasks []task
	s := scan{rest: raw}
	for s.next() {
		switch s.num {
		case 1:
			r.ID = string(s.b)
		case 2:
			r.State = state.AllocState(int32(s.v))
		case 3:
			r.Declined = s.v != 0
		case 4:
			r.Reason = reasonFromWire(nusav1.Reason(int32(s.v)))
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
	r.Tasks, r.Restarts, r.Down = storeTasks(tasks)
	r.Down = r.Down && r.State == state.Running
	return r, s.err
}

// task is one of a report's: its encoded name and state, and what of that counts
// here.
type task struct {
	name     string
	entry    []byte
	restarts int32
	state    nusav1.AllocState
}

func readTask(entry []byte) (task, error) {
	name, value, err := mapItem(entry)
	if err != nil {
		return task{}, malformed(err)
	}
	t := task{name: name, entry: entry}
	s := scan{rest: value}
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

// storeTasks are the task states of a report as the state's opaque bytes: those
// of an Allocation, equal if they are. With them come how often tasks were
// restarted, and whether one has ended: of an allocation that runs it is to be
// restarted.
func storeTasks(tasks []task) (raw []byte, restarts int32, down bool) {
	slices.SortFunc(tasks, func(a, b task) int { return strings.Compare(a.name, b.name) })
	size := 0
	for _, t := range tasks {
		size += protowire.SizeTag(tasksField) + protowire.SizeBytes(len(t.entry))
	}
	if size > 0 {
		raw = make([]byte, 0, size) // the message's own bytes would keep all of it
	}
	for _, t := range tasks {
		raw = protowire.AppendBytes(protowire.AppendTag(raw, tasksField, protowire.BytesType), t.entry)
		restarts += t.restarts
		switch t.state {
		case nusav1.AllocState_ALLOC_STATE_RUNNING, nusav1.AllocState_ALLOC_STATE_COMPLETE:
		default:
			down = true
		}
	}
	return raw, restarts, down
}

// tasksField is the number of Allocation.tasks.
const tasksField = 16

// scan reads the fields of an encoded message one after the other: the value of
// a varint or of 64 bits, or the bytes of what has a length. Others it skips.
type scan struct {
	rest []byte
	num  protowire.Number
	v    uint64
	b    []byte
	err  error
}

func (s *scan) next() bool {
	for s.err == nil && len(s.rest) > 0 {
		num, kind, n := protowire.ConsumeTag(s.rest)
		if n >= 0 {
			s.num, s.rest = num, s.rest[n:]
			switch kind {
			case protowire.VarintType:
				s.v, n = protowire.ConsumeVarint(s.rest)
			case protowire.Fixed64Type:
				s.v, n = protowire.ConsumeFixed64(s.rest)
			case protowire.BytesType:
				s.b, n = protowire.ConsumeBytes(s.rest)
			default:
				n = protowire.ConsumeFieldValue(num, kind, s.rest)
			}
			if n >= 0 {
				s.rest = s.rest[n:]
				if kind == protowire.VarintType || kind == protowire.Fixed64Type || kind == protowire.BytesType {
					return true
				}
				continue
			}
		}
		s.err = malformed(protowire.ParseError(n))
	}
	return false
}

func malformed(err error) error {
	return status.Errorf(codes.Internal, "decode a message of the agent: %v", err)
}
