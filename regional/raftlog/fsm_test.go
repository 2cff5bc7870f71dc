package raftlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// encoded returns an entry with the commands, of any size.
func encoded(t testing.TB, cmds ...state.Command) []byte {
	t.Helper()
	entry := []byte{formatVersion}
	for _, c := range cmds {
		var w entryWriter
		w.add(&c)
		entry = append(entry, w.finish()[1:]...)
	}
	return entry
}

func sample(name string) state.Command {
	return state.Command{NowUnixNano: 5, UpsertNode: &state.UpsertNode{Node: state.Node{
		ID: name, Name: name, Pool: "default", Labels: map[string]string{"b": "2", "a": "1"},
		Capacity: state.Resources{CPUMilli: 1000, MemoryBytes: 1 << 30},
		Drivers:  []state.Driver{{Name: "process", Healthy: true}}, Inventory: []byte{0, 1, 255},
	}}}
}

// TestDecodedEntryEqualsItsCommands also checks that equal commands have equal bytes, in
// whatever order a map is read.
func TestDecodedEntryEqualsItsCommands(t *testing.T) {
	cmds := []state.Command{{NowUnixNano: 1, Bootstrap: &state.Bootstrap{ClusterID: "c", Region: "r"}}, sample("n1")}
	back, err := decodeEntry(encoded(t, cmds...))
	if err != nil {
		t.Fatal(err)
	}
	want, got := state.New(), state.New()
	for i := range cmds {
		want.Apply(uint64(i+1), cmds[i])
		got.Apply(uint64(i+1), back[i])
	}
	if want.Hash() != got.Hash() {
		t.Errorf("the state of the decoded commands differs: %+v", back)
	}
	for range 20 {
		if !bytes.Equal(encoded(t, cmds...), encoded(t, cmds...)) {
			t.Fatal("equal commands have different bytes")
		}
	}
}

func TestUnreadableEntryStopsTheServer(t *testing.T) {
	good := encoded(t, sample("n1"))
	newer := append([]byte{formatVersion + 1}, good[1:]...)
	for name, data := range map[string][]byte{"newer": newer, "empty": {}, "cut": good[:len(good)-3], "garbage": {formatVersion, 3, 0xc1, 0xc1, 0xc1}} {
		t.Run(name, func(t *testing.T) {
			f := NewFSM()
			if err, _ := f.Apply(&raft.Log{Index: 1, Data: data}).(error); !errors.Is(err, ErrFormat) {
				t.Errorf("Apply returns %v", err)
			}
			select {
			case <-f.Broken():
			default:
				t.Error("the FSM is not broken")
			}
			if err, _ := f.Apply(&raft.Log{Index: 2, Data: good}).(error); err == nil || f.View().NodeCount() != 0 {
				t.Error("a later entry was applied")
			}
		})
	}
}

// sink is a snapshot sink in memory.
type sink struct {
	bytes.Buffer
	cancelled bool
}

func (s *sink) ID() string    { return "s" }
func (s *sink) Close() error  { return nil }
func (s *sink) Cancel() error { s.cancelled = true; return nil }

func TestRestoredStateEqualsTheSnapshot(t *testing.T) {
	f := NewFSM()
	f.Apply(&raft.Log{Index: 1, Data: encoded(t, state.Command{NowUnixNano: 1, Bootstrap: &state.Bootstrap{ClusterID: "c", Region: "r"}})})
	for i := range 100 {
		f.Apply(&raft.Log{Index: uint64(i + 2), Data: encoded(t, sample(fmt.Sprintf("n%d", i)))})
	}
	snap, err := f.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	before := f.View().Hash()
	f.Apply(&raft.Log{Index: 200, Data: encoded(t, sample("later"))})
	var s sink
	if err := snap.Persist(&s); err != nil || s.cancelled {
		t.Fatalf("persist: %v, cancelled %v", err, s.cancelled)
	}
	g := NewFSM()
	_, changed := g.Watch()
	if err := g.Restore(io.NopCloser(bytes.NewReader(s.Bytes()))); err != nil {
		t.Fatal(err)
	}
	if g.View().Hash() != before {
		t.Error("the restored state is not the one of the snapshot")
	}
	select {
	case <-changed:
	default:
		t.Error("a restore does not notify watchers")
	}
	bad := append([]byte{formatVersion + 1}, s.Bytes()[1:]...)
	if err := NewFSM().Restore(io.NopCloser(bytes.NewReader(bad))); !errors.Is(err, ErrFormat) {
		t.Errorf("a newer snapshot: %v", err)
	}
}

// fakeLog is a log whose entries the test commits through an FSM.
type fakeLog struct {
	fsm     *FSM
	last    atomic.Uint64
	applied chan *future
}

func newFakeLog(f *FSM) *fakeLog { return &fakeLog{fsm: f, applied: make(chan *future, 64)} }

func (l *fakeLog) LastIndex() uint64 { return l.last.Load() }

func (l *fakeLog) Apply(data []byte, _ time.Duration) raft.ApplyFuture {
	f := &future{log: l, index: l.last.Add(1), data: data, done: make(chan error, 1)}
	l.applied <- f
	return f
}

// future is an entry that the test commits.
type future struct {
	raft.ApplyFuture
	log   *fakeLog
	index uint64
	data  []byte
	done  chan error
	resp  any
}

// commit applies the entry. If copied is true it applies a copy of the bytes, like another
// server.
func (f *future) commit(copied bool) {
	data := f.data
	if copied {
		data = bytes.Clone(data)
	}
	f.resp = f.log.fsm.Apply(&raft.Log{Index: f.index, Data: data})
	f.done <- nil
}

func (f *future) Error() error  { return <-f.done }
func (f *future) Response() any { return f.resp }

func noDecision(*state.View) Decision { return Decision{} }

// TestBatchInsideAnEntry: a master of an earlier build wrote a batch beside other commands, and the
// batch changed nothing there. The same holds on each server that reads the entry.
func TestBatchInsideAnEntry(t *testing.T) {
	entryOf := func(reason string) state.Command {
		return state.Command{NowUnixNano: 5, Audit: &state.AuditEntry{Outcome: "denied", Reason: reason}}
	}
	entry := encoded(t, state.Command{Batch: []state.Command{entryOf("in the batch")}}, entryOf("beside the batch"))
	f, g := NewFSM(), NewFSM()
	for _, server := range []*FSM{f, g} {
		applied, ok := server.Apply(&raft.Log{Index: 1, Data: bytes.Clone(entry)}).(Applied)
		if !ok || server.Err() != nil || len(applied.Results) != 2 || !errors.Is(applied.Results[0].Err, state.ErrNestedBatch) || applied.Results[1].Err != nil {
			t.Fatalf("%+v, %v", applied, server.Err())
		}
	}
	if f.View().Audit().Tree().Size != 1 || f.View().Hash() != g.View().Hash() {
		t.Errorf("%d entries", f.View().Audit().Tree().Size)
	}
	if _, err := NewSequencer(newFakeLog(f), f, noDecision, nil).Propose(state.Command{Batch: []state.Command{entryOf("")}}); !errors.Is(err, ErrBatch) {
		t.Errorf("a proposed batch: %v", err)
	}
}

func TestSequencerReturnsTheOutcomeOfEachCommand(t *testing.T) {
	fsm := NewFSM()
	log := newFakeLog(fsm)
	var committed [][]state.Result
	q := NewSequencer(log, fsm, noDecision, func(r []state.Result) { committed = append(committed, r) })
	var waiting []*Proposal
	const n = maxBatch + 50 // more than fit an entry
	for i := range n {
		p, err := q.Propose(sample(fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, p)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- q.Run(ctx) }()
	first, second := <-log.applied, <-log.applied // the second entry does not wait for the first
	for _, f := range []*future{first, second} {
		cmds, err := decodeEntry(f.data)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.data) > MaxEntryBytes+len(cmds)*5+1 {
			t.Errorf("an entry of %d bytes", len(f.data))
		}
		f.commit(false)
	}
	for i, p := range waiting {
		if r, err := p.Wait(ctx); err != nil || !r.Changed {
			t.Fatalf("command %d: %+v, %v", i, r, err)
		}
	}
	if got := fsm.View().NodeCount(); got != n {
		t.Errorf("%d nodes, want %d", got, n)
	}
	// The state refuses one command, one command is in flight when leadership is lost, and
	// one command is proposed after that.
	refused, _ := q.Propose(state.Command{RemoveNode: &state.RemoveNode{ID: "unknown"}})
	(<-log.applied).commit(false)
	if _, err := refused.Wait(ctx); !errors.Is(err, state.ErrUnknownNode) {
		t.Errorf("refused: %v", err)
	}
	inFlight, _ := q.Propose(sample("in-flight"))
	(<-log.applied).done <- raft.ErrLeadershipLost
	if _, err := inFlight.Wait(ctx); !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("in flight: %v", err)
	}
	if err := <-ended; !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("run ended with %v", err)
	}
	if _, err := q.Propose(sample("late")); !errors.Is(err, ErrNotLeader) {
		t.Errorf("late: %v", err)
	}
	if len(committed) != 3 {
		t.Errorf("results of %d entries, want 3", len(committed))
	}
}

// TestSequencerRecoversFromMispredictions: an entry of Raft's own in between, or an entry
// with other bytes, causes a misprediction. No command is lost. The state equals that of a
// server that only reads the log. Later results are predicted again.
func TestSequencerRecoversFromMispredictions(t *testing.T) {
	fsm, reader := NewFSM(), NewFSM()
	log := newFakeLog(fsm)
	q := NewSequencer(log, fsm, func(v *state.View) Decision {
		var d Decision // cordons every node, with one command for each
		for n := range v.Nodes() {
			if !n.Cordoned {
				d.Commands = append(d.Commands, state.Command{CordonNode: &state.CordonNode{ID: n.ID, Cordon: true}})
			}
		}
		return d
	}, func([]state.Result) {})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- q.Run(ctx) }()
	predicted := 0
	for i := range 60 {
		if i%7 == 3 {
			log.last.Add(1) // an entry of Raft's own, for example for a new server
		}
		p, err := q.Propose(sample(fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		waiting := true
		for waiting {
			select {
			case f := <-log.applied:
				reader.Apply(&raft.Log{Index: f.index, Data: bytes.Clone(f.data)})
				f.commit(i%11 == 5)
				if f.resp.(Applied).Predicted {
					predicted++
				}
			case <-p.done:
				o := p.outcome
				if o.err != nil || !o.result.Changed {
					t.Fatalf("command %d: %+v", i, o)
				}
				waiting = false
			}
		}
	}
	cancel()
	open := true
	for open {
		select {
		case f := <-log.applied:
			reader.Apply(&raft.Log{Index: f.index, Data: bytes.Clone(f.data)})
			f.commit(false)
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			open = false
		}
	}
	for n := range fsm.View().Nodes() {
		if !n.Cordoned {
			t.Errorf("no decision was made about node %s", n.ID)
		}
	}
	if fsm.View().NodeCount() != 60 || fsm.View().Hash() != reader.View().Hash() {
		t.Errorf("%d nodes; state %x, a reader of the log has %x", fsm.View().NodeCount(), fsm.View().Hash(), reader.View().Hash())
	}
	if predicted < 30 {
		t.Errorf("only %d results were predicted", predicted)
	}
}

// TestDecisionAfterAFailedEntryIsNotCommitted: the decision was made from a state that
// includes an entry that was never committed.
func TestDecisionAfterAFailedEntryIsNotCommitted(t *testing.T) {
	f := NewFSM()
	log := newFakeLog(f)
	called := make(chan int, 64)
	polls := make(chan int, 64)
	q := NewSequencer(log, f, func(v *state.View) Decision {
		n := v.NodeCount()
		polls <- n
		return Decision{OnCommitted: func() { called <- n }}
	}, func([]state.Result) {})
	ended := make(chan error, 1)
	go func() { ended <- q.Run(context.Background()) }()
	q.Wake()
	for <-polls != 0 {
	}
	p, _ := q.Propose(sample("x"))
	<-polls
	fu := <-log.applied
	q.Wake() // a second decision, without commands
	<-polls
	fu.done <- raft.ErrLeadershipLost
	<-p.done
	<-ended
	close(called)
	for n := range called {
		if n > f.View().NodeCount() {
			t.Errorf("OnCommitted called for a state of %d nodes, committed are %d", n, f.View().NodeCount())
		}
	}
}

func TestQueueIsBounded(t *testing.T) {
	f := NewFSM()
	q := NewSequencer(newFakeLog(f), f, noDecision, nil)
	for i := range maxQueued {
		if _, err := q.Propose(sample("x")); err != nil {
			t.Fatalf("command %d: %v", i, err)
		}
	}
	if _, err := q.Propose(sample("x")); !errors.Is(err, ErrQueueFull) {
		t.Errorf("one more: %v", err)
	}
	// Large commands fill the queue sooner.
	q = NewSequencer(newFakeLog(f), f, noDecision, nil)
	large := state.Command{SubmitLocalJob: &state.SubmitLocalJob{Job: state.Job{Spec: make([]byte, 1<<20)}}}
	full := 0
	for range maxQueuedBytes>>20 + 1 {
		if _, err := q.Propose(large); errors.Is(err, ErrQueueFull) {
			full++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if full == 0 || full > 2 {
		t.Errorf("%d of %d commands of 1 MiB were refused", full, maxQueuedBytes>>20+1)
	}
}

// TestCallDuringAVerificationWaitsForTheNext: the running verification may have begun
// before another master was elected, so it proves nothing for this call.
func TestCallDuringAVerificationWaitsForTheNext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	began, proceed := make(chan struct{}), make(chan error)
	v := NewVerifier(func() error { began <- struct{}{}; return <-proceed })
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- v.Wait(ctx) }()
	<-began
	go func() { second <- v.Wait(ctx) }()
	for len(v.requests) == 0 { // until the call waits
		select {
		case err := <-second:
			t.Fatalf("verified by a round that began before the call: %v", err)
		default:
		}
	}
	proceed <- nil
	if err := <-first; err != nil {
		t.Errorf("first: %v", err)
	}
	<-began
	select {
	case err := <-second:
		t.Errorf("verified by a round that began before the call: %v", err)
	default:
	}
	proceed <- raft.ErrLeadershipLost
	if err := <-second; !errors.Is(err, ErrNotLeader) {
		t.Errorf("second: %v", err)
	}
	if err := <-ended; !errors.Is(err, ErrNotLeader) {
		t.Errorf("run ended with %v", err)
	}
}
