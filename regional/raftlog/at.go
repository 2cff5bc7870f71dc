package raftlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

const (
	// maxIndexWaiters bounds the callers that wait for the state at an index.
	maxIndexWaiters = 4
	// digestWait is how long a server waits for the entry at an index to be applied.
	digestWait = 2 * time.Second
)

var (
	// ErrPast says that the state at an index no longer exists, because a later state has
	// replaced it.
	ErrPast = errors.New("past")
	// ErrBusy says that other comparisons of states are in progress. The caller may ask
	// again.
	ErrBusy = errors.New("busy")
)

// indexWaiter waits for the state at one index.
type indexWaiter struct {
	index uint64
	view  chan *state.View // has capacity one, and is closed without a view when no entry has the index
}

// notifyWaiters passes a view to the waiters of its index. mu is held.
func (f *FSM) notifyWaiters(view *state.View) {
	f.waiters = slices.DeleteFunc(f.waiters, func(a indexWaiter) bool {
		if view.Index() < a.index {
			return false
		}
		if view.Index() == a.index {
			a.view <- view
		}
		close(a.view)
		return true
	})
}

// At returns the state at exactly the given index. It waits until the entry with that index
// is applied. Errors: ErrPast, ErrBusy, or the error of ctx.
func (f *FSM) At(ctx context.Context, index uint64) (*state.View, error) {
	f.mu.Lock()
	switch {
	case f.view.Index() == index:
		defer f.mu.Unlock()
		return f.view, nil
	case f.view.Index() > index:
		defer f.mu.Unlock()
		return nil, fmt.Errorf("index %d is %w, this server is at %d", index, ErrPast, f.view.Index())
	case len(f.waiters) >= maxIndexWaiters:
		defer f.mu.Unlock()
		return nil, fmt.Errorf("%w: %d other comparisons of states wait", ErrBusy, maxIndexWaiters)
	}
	a := indexWaiter{index, make(chan *state.View, 1)}
	f.waiters = append(f.waiters, a)
	f.mu.Unlock()
	select {
	case v := <-a.view:
		if v == nil {
			return nil, fmt.Errorf("index %d is %w: no command has that index", index, ErrPast)
		}
		return v, nil
	case <-ctx.Done():
		f.mu.Lock()
		defer f.mu.Unlock()
		f.waiters = slices.DeleteFunc(f.waiters, func(x indexWaiter) bool { return x.view == a.view })
		return nil, ctx.Err()
	}
}

// Digest returns the hash of this server's state at an index. Digest reads a view, so it
// blocks no writer. Only one digest is computed at a time. Errors: ErrPast, ErrBusy, the
// error of ctx, or context.DeadlineExceeded when the index was not applied within
// digestWait.
func (f *FSM) Digest(ctx context.Context, index uint64) (*nusav1.StateDigest, error) {
	ctx, cancel := context.WithTimeout(ctx, digestWait)
	defer cancel()
	view, err := f.At(ctx, index)
	if err != nil {
		return nil, err
	}
	if !f.hashing.TryLock() {
		return nil, fmt.Errorf("%w: this server computes another comparison of states, ask again", ErrBusy)
	}
	defer f.hashing.Unlock()
	return &nusav1.StateDigest{Hash: view.Hash()}, nil
}
