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

// encoded is an entry of commands, however large.
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

// TestEntriesSurviveTheWire: what is applied from bytes is what was meant, and
// equal commands have equal bytes whatever the order of a map.
func TestEntriesSurviveTheWire(t *testing.T) {
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
		t.Errorf("state from bytes differs from the state meant: %+v", back)
	}
	for range 20 {
		if !bytes.Equal(encoded(t, cmds...), encoded(t, cmds...)) {
			t.Fatal("equal commands have different bytes")
		}
	}
}

func TestUnreadableEntriesStopTheServer(t *testing.T) {
	good := encoded(t, sample("n1"))
	newer := append([]byte{formatVersion + 1}, good[1:]...)
	for name, data := range map[string][]byte{"newer": newer, "empty": {}, "cut": good[:len(good)-3], "garbage": {formatVersion, 3, 0xc1, 0xc1, 0xc1}} {
		t.Run(name, func(t *testing.T) {
			f := NewFSM()
			if err, _ := f.Apply(&raft.Log{Index: 1, Data: data}).(error); !errors.Is(err, ErrFormat) {
				t.Errorf("applying answers %v", err)
			}
			select {
			case <-f.Broken():
			default:
				t.Error("the server would go on")
			}
			if err, _ := f.Apply(&raft.Log{Index: 2, Data: good}).(error); err == nil || f.View().NodeCount() != 0 {
				t.Error("a later entry was applied")
			}
		})
	}
}

// sink is a snapshot on its way to nowhere.
type sink struct {
	bytes.Buffer
	cancelled bool
}

func (s *sink) ID() string    { return "s" }
func (s *sink) Close() error  { return nil }
func (s *sink) Cancel() error { s.cancelled = true; return nil }

func TestSnapshotAndRestore(t *testing.T) {
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
		t.Error("a restore is not seen as a change")
	}
	bad := append([]byte{formatVersion + 1}, s.Bytes()[1:]...)
	if err := NewFSM().Restore(io.NopCloser(bytes.NewReader(bad))); !errors.Is(err, ErrFormat) {
		t.Errorf("a newer snapshot answers %v", err)
	}
}

// fakeLog is a log whose entries the test commits, through an FSM.
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

// commit applies the entry as it is, or as another server reads it.
func (f *future) commit(asRead bool) {
	data := f.data
	if asRead {
		data = bytes.Clone(data)
	}
	f.resp = f.log.fsm.Apply(&raft.Log{Index: f.index, Data: data})
	f.done <- nil
}

func (f *future) Error() error  { return <-f.done }
func (f *future) Response() any { return f.resp }

func nothingToDo(*state.View) Decision { return Decision{} }

func TestSequencerBatchesAndSettles(t *testing.T) {
	fsm := NewFSM()
	log := newFakeLog(fsm)
	var told [][]state.Result
	q := NewSequencer(log, fsm, nothingToDo, func(r []state.Result) { told = append(told, r) })
	var waiting []*Proposal
	const n = maxBatch + 50 // more than one entry takes
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
	first, second := <-log.applied, <-log.applied // the second does not wait for the first
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
	// One is refused by the state, one is on its way when leadership is lost,
	// one never leaves the queue.
	refused, _ := q.Propose(state.Command{RemoveNode: &state.RemoveNode{ID: "unknown"}})
	(<-log.applied).commit(false)
	if _, err := refused.Wait(ctx); !errors.Is(err, state.ErrUnknownNode) {
		t.Errorf("refused: %v", err)
	}
	flying, _ := q.Propose(sample("flying"))
	(<-log.applied).done <- raft.ErrLeadershipLost
	if _, err := flying.Wait(ctx); !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("flying: %v", err)
	}
	if err := <-ended; !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("run ended with %v", err)
	}
	if _, err := q.Propose(sample("late")); !errors.Is(err, ErrNotLeader) {
		t.Errorf("late: %v", err)
	}
	if len(told) != 3 {
		t.Errorf("told of %d entries, want 3", len(told))
	}
}

// TestSequencerFollowsWhatRaftDoes: an entry of Raft's own between ours, or one
// that comes back as other bytes, voids what was foreseen; nothing is lost, the
// state is that of a server which only reads the log, and the sequencer soon
// foresees again.
func TestSequencerFollowsWhatRaftDoes(t *testing.T) {
	fsm, reader := NewFSM(), NewFSM()
	log := newFakeLog(fsm)
	q := NewSequencer(log, fsm, func(v *state.View) Decision {
		var d Decision // cordons every node, one command each
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
	foreseen := 0
	for i := range 60 {
		if i%7 == 3 {
			log.last.Add(1) // a new server, say
		}
		p, err := q.Propose(sample(fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		for settled := false; !settled; {
			select {
			case f := <-log.applied:
				reader.Apply(&raft.Log{Index: f.index, Data: bytes.Clone(f.data)})
				f.commit(i%11 == 5)
				if f.resp.(Applied).Predicted {
					foreseen++
				}
			case o := <-p.done:
				if o.err != nil || !o.result.Changed {
					t.Fatalf("command %d: %+v", i, o)
				}
				settled = true
			}
		}
	}
	cancel()
	for open := true; open; {
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
			t.Errorf("nothing was decided about node %s", n.ID)
		}
	}
	if fsm.View().NodeCount() != 60 || fsm.View().Hash() != reader.View().Hash() {
		t.Errorf("%d nodes; state %x, a reader of the log has %x", fsm.View().NodeCount(), fsm.View().Hash(), reader.View().Hash())
	}
	if foreseen < 30 {
		t.Errorf("only %d entries came as foreseen", foreseen)
	}
}

// TestNothingSettlesAfterAFailure: a decision behind an entry that fails was
// about a state that never came.
func TestNothingSettlesAfterAFailure(t *testing.T) {
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
	q.Wake() // a second decision, nothing to propose
	<-polls
	fu.done <- raft.ErrLeadershipLost
	<-p.done
	<-ended
	close(called)
	for n := range called {
		if n > f.View().NodeCount() {
			t.Errorf("settled called for a state of %d nodes, committed are %d", n, f.View().NodeCount())
		}
	}
}

func TestSequencerIsBounded(t *testing.T) {
	f := NewFSM()
	q := NewSequencer(newFakeLog(f), f, nothingToDo, nil)
	for i := range queueLimit {
		if _, err := q.Propose(sample("x")); err != nil {
			t.Fatalf("command %d: %v", i, err)
		}
	}
	if _, err := q.Propose(sample("x")); !errors.Is(err, ErrQueueFull) {
		t.Errorf("one more: %v", err)
	}
	// Large commands fill it sooner.
	q = NewSequencer(newFakeLog(f), f, nothingToDo, nil)
	large := state.Command{SubmitLocalJob: &state.SubmitLocalJob{Job: state.Job{Spec: make([]byte, 1<<20)}}}
	full := 0
	for range queueBytes>>20 + 1 {
		if _, err := q.Propose(large); errors.Is(err, ErrQueueFull) {
			full++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if full == 0 || full > 2 {
		t.Errorf("%d of %d commands of 1 MiB were refused", full, queueBytes>>20+1)
	}
}

// TestVerifierAnswersOnlyWhoAskedBefore: who asks during a round waits for the
// next one.
func TestVerifierAnswersOnlyWhoAskedBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	began, goOn := make(chan struct{}), make(chan error)
	v := NewVerifier(func() error { began <- struct{}{}; return <-goOn })
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- v.Wait(ctx) }()
	<-began
	go func() { second <- v.Wait(ctx) }()
	for len(v.requests) == 0 { // until it is in the queue
		select {
		case err := <-second:
			t.Fatalf("answered by a round that began before it asked: %v", err)
		default:
		}
	}
	goOn <- nil
	if err := <-first; err != nil {
		t.Errorf("first: %v", err)
	}
	<-began
	select {
	case err := <-second:
		t.Errorf("answered by a round that began before it asked: %v", err)
	default:
	}
	goOn <- raft.ErrLeadershipLost
	if err := <-second; !errors.Is(err, ErrNotLeader) {
		t.Errorf("second: %v", err)
	}
	if err := <-ended; !errors.Is(err, ErrNotLeader) {
		t.Errorf("run ended with %v", err)
	}
}
