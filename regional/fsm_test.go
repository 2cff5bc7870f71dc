package regional

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/regional/state"
)

func encoded(t *testing.T, cmds ...state.Command) []byte {
	t.Helper()
	var parts [][]byte
	for _, c := range cmds {
		raw, err := encodeCommand(&c)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, raw)
	}
	return joinEntry(parts)
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
			f := newFSM()
			if err, _ := f.Apply(&raft.Log{Index: 1, Data: data}).(error); !errors.Is(err, errFormat) {
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
	f := newFSM()
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
	g := newFSM()
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
	if err := newFSM().Restore(io.NopCloser(bytes.NewReader(bad))); !errors.Is(err, errFormat) {
		t.Errorf("a newer snapshot answers %v", err)
	}
}

// future is an entry that the test commits.
type future struct {
	raft.ApplyFuture
	data []byte
	done chan any // []state.Result or error
	resp any
}

func (f *future) Error() error {
	switch r := (<-f.done).(type) {
	case error:
		return r
	default:
		f.resp = r
		return nil
	}
}
func (f *future) Response() any { return f.resp }

func TestSequencerBatchesAndSettles(t *testing.T) {
	applied := make(chan *future, 64)
	var told [][]state.Result
	q := newSequencer(func(data []byte, _ time.Duration) raft.ApplyFuture {
		f := &future{data: data, done: make(chan any, 1)}
		applied <- f
		return f
	}, func(r []state.Result) { told = append(told, r) })
	var waiting []*proposal
	const n = 300 // more than one entry takes
	for i := range n {
		p, err := q.start(sample(fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, p)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- q.run(ctx) }()
	first, second := <-applied, <-applied // the second does not wait for the first
	index := uint64(0)
	for _, f := range []*future{first, second} {
		cmds, err := decodeEntry(f.data)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.data) > maxEntry+len(cmds)*5+1 {
			t.Errorf("an entry of %d bytes", len(f.data))
		}
		var rs []state.Result
		for range cmds {
			index++
			rs = append(rs, state.Result{Revision: index})
		}
		f.done <- rs
	}
	for i, p := range waiting {
		r, err := p.wait(ctx)
		if err != nil || r.Revision != uint64(i+1) {
			t.Fatalf("command %d: %+v, %v", i, r, err)
		}
	}
	// One is refused by the state, one is on its way when leadership is lost,
	// one never leaves the queue.
	refused, _ := q.start(sample("refused"))
	f := <-applied
	f.done <- []state.Result{{Err: state.ErrFull}}
	if _, err := refused.wait(ctx); !errors.Is(err, state.ErrFull) {
		t.Errorf("refused: %v", err)
	}
	flying, _ := q.start(sample("flying"))
	f = <-applied
	f.done <- error(raft.ErrLeadershipLost)
	if _, err := flying.wait(ctx); !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("flying: %v", err)
	}
	if err := <-ended; !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("run ended with %v", err)
	}
	if _, err := q.start(sample("late")); !errors.Is(err, ErrNotLeader) {
		t.Errorf("late: %v", err)
	}
	if len(told) != 3 {
		t.Errorf("told of %d entries, want 3", len(told))
	}
}

func TestSequencerIsBounded(t *testing.T) {
	q := newSequencer(nil, nil)
	for i := range queueLimit {
		if _, err := q.start(sample("x")); err != nil {
			t.Fatalf("command %d: %v", i, err)
		}
	}
	if _, err := q.start(sample("x")); !errors.Is(err, ErrQueueFull) {
		t.Errorf("one more: %v", err)
	}
}

// TestVerifierAnswersOnlyWhoAskedBefore: who asks during a round waits for the
// next one.
func TestVerifierAnswersOnlyWhoAskedBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	began, goOn := make(chan struct{}), make(chan error)
	v := newVerifier(func() error { began <- struct{}{}; return <-goOn })
	ended := make(chan error, 1)
	go func() { ended <- v.run(ctx) }()
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- v.wait(ctx) }()
	<-began
	go func() { second <- v.wait(ctx) }()
	for len(v.asked) == 0 { // until it is in the queue
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
