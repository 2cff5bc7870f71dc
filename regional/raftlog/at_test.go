package raftlog

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestAtReturnsTheStateOfExactlyThatIndex: At returns the state of no earlier and no later
// index.
func TestAtReturnsTheStateOfExactlyThatIndex(t *testing.T) {
	f := NewFSM()
	entry := encoded(t, state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{ID: "n1", Name: "n1", Status: state.NodeReady}}})
	apply := func(index uint64) { f.Apply(&raft.Log{Index: index, Data: entry}) }
	apply(5)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if v, err := f.At(ctx, 5); err != nil || v.Index() != 5 {
		t.Errorf("the present index: %v, %v", v, err)
	}
	if _, err := f.At(ctx, 4); !errors.Is(err, ErrPast) {
		t.Errorf("an earlier index: %v", err)
	}
	type result struct {
		v   *state.View
		err error
	}
	ask := func(index uint64) chan result {
		c := make(chan result, 1)
		f.mu.Lock()
		before := len(f.waiters)
		f.mu.Unlock()
		go func() { v, err := f.At(ctx, index); c <- result{v, err} }()
		for waiting := 0; waiting == before; {
			f.mu.Lock()
			waiting = len(f.waiters)
			f.mu.Unlock()
		}
		return c
	}
	hit, missed := ask(7), ask(8)
	apply(6)
	apply(7)
	apply(9) // index 8 is an entry of Raft's own
	if a := <-hit; a.err != nil || a.v.Index() != 7 {
		t.Errorf("an index that is applied: %v", a)
	}
	if a := <-missed; !errors.Is(a.err, ErrPast) {
		t.Errorf("an index without a command: %v", a)
	}
	gone, stop := context.WithCancel(ctx)
	stop()
	if _, err := f.At(gone, 99); !errors.Is(err, context.Canceled) || len(f.waiters) != 0 {
		t.Errorf("a caller whose context ended: %v, %d wait", err, len(f.waiters))
	}
}
