package regional

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/raftlog/logtest"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// followedLog is a log whose entries a second server applies as well.
type followedLog struct {
	*logtest.Log
	follower *raftlog.FSM
}

// Apply implements raftlog.Log. One goroutine of the sequencer calls it.
func (l followedLog) Apply(data []byte, timeout time.Duration) raft.ApplyFuture {
	l.follower.Apply(&raft.Log{Index: l.LastIndex() + 1, Data: bytes.Clone(data)})
	return l.Log.Apply(data, timeout)
}

// TestDenialsBesideOtherCommands: denials are committed in the same entries as other commands, and
// a follower then has the same state as the master.
func TestDenialsBesideOtherCommands(t *testing.T) {
	master, follower := raftlog.NewFSM(), raftlog.NewFSM()
	q := raftlog.NewSequencer(followedLog{logtest.New(master, 0, nil), follower}, master,
		func(*state.View) raftlog.Decision { return raftlog.Decision{} }, func([]state.Result) {})
	var denials []audit.Entry
	for i := range 64 {
		denials = append(denials, audit.Entry{Verb: "call", Kind: "method", Outcome: audit.Denied, Reason: fmt.Sprint(i)})
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 20 {
				id := fmt.Sprintf("n%d-%d", i, j)
				node := state.Node{ID: id, Name: id, Pool: "default", Capacity: state.Resources{CPUMilli: 1000, MemoryBytes: 1 << 30}}
				if _, err := q.Commit(ctx, state.Command{UpsertNode: &state.UpsertNode{Node: node}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		all.Go(func() {
			if err := commitDenials(ctx, q, denials); err != nil {
				t.Error(err)
			}
		})
	}
	ended := make(chan error, 1)
	go func() { ended <- q.Run(ctx) }()
	all.Wait()
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := follower.Err(); err != nil {
		t.Fatalf("the follower stops: %v", err)
	}
	view := follower.View()
	if size := view.Audit().Tree().Size; size != 128 || view.NodeCount() != 160 || view.Hash() != master.View().Hash() {
		t.Errorf("the follower has %d entries and %d nodes", size, view.NodeCount())
	}
}
