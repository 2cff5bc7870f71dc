package raftlog

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// FSM is the committed state as Raft sees it. It applies, it does not judge.
type FSM struct {
	mu      sync.Mutex
	view    *state.View
	changed chan struct{} // closed and replaced at every change
	// prediction are the outcomes of entries on their way, in the order of the log.
	predictions []prediction
	// indexWaiter are those who want the state of one index, see At.
	waiters []indexWaiter
	failed  error
	broken  chan struct{} // closed when failed is set
	hashing sync.Mutex    // held while a digest is computed
}

func NewFSM() *FSM {
	return &FSM{view: state.New().Snapshot(), changed: make(chan struct{}), broken: make(chan struct{})}
}

// View is the committed state.
func (f *FSM) View() *state.View {
	v, _ := f.Watch()
	return v
}

// Watch is the committed state and a channel that is closed when it is no
// longer the newest.
func (f *FSM) Watch() (*state.View, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.view, f.changed
}

// Broken is closed when the log holds what this build cannot read: the server
// must end rather than go on with another state than its peers.
func (f *FSM) Broken() <-chan struct{} { return f.broken }

// Err is why.
func (f *FSM) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// publish makes a view the committed one. mu is held.
func (f *FSM) publish(view *state.View) {
	f.view = view
	f.notifyWaiters(view)
	close(f.changed)
	f.changed = make(chan struct{})
}

// predict notes the outcome of an entry that is about to be proposed.
func (f *FSM) predict(x prediction) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.predictions = append(f.predictions, x)
}

// adoptPrediction takes over the outcome that was foreseen for an entry, if it is this
// one, after the state that it was foreseen from.
func (f *FSM) adoptPrediction(l *raft.Log) ([]state.Result, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.predictions) == 0 {
		return nil, false
	}
	x := f.predictions[0]
	if len(l.Data) == 0 || x.data != &l.Data[0] || x.index != l.Index || x.before != f.view {
		f.predictions = nil // nor will those that follow from it be
		return nil, false
	}
	f.predictions[0] = prediction{} // its views may go
	f.predictions = f.predictions[1:]
	f.publish(x.after)
	return x.results, true
}

func (f *FSM) fail(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed == nil {
		f.failed = err
		close(f.broken)
	}
	return err
}

// Apply answers with an applied, one result a command, or with an error after
// which nothing is applied any more. Called by Raft's one goroutine.
func (f *FSM) Apply(l *raft.Log) any {
	if err := f.Err(); err != nil {
		return err
	}
	if results, ok := f.adoptPrediction(l); ok {
		return Applied{results, true}
	}
	cmds, err := decodeEntry(l.Data)
	if err != nil {
		return f.fail(fmt.Errorf("log index %d: %w", l.Index, err))
	}
	st := f.View().Fork()
	results := applyCommands(st, l.Index, cmds)
	for _, r := range results {
		if errors.Is(r.Err, state.ErrUnknownCommand) {
			return f.fail(fmt.Errorf("log index %d: %w: run the build that wrote it", l.Index, r.Err))
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.publish(st.Snapshot())
	return Applied{Results: results}
}

// Snapshot costs nothing: a view never changes.
func (f *FSM) Snapshot() (raft.FSMSnapshot, error) {
	if err := f.Err(); err != nil {
		return nil, err
	}
	return snapshot{f.View()}, nil
}

// Restore replaces the state.
func (f *FSM) Restore(r io.ReadCloser) error {
	defer r.Close()
	st, err := readSnapshot(r)
	if err != nil {
		return f.fail(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.predictions = nil
	f.publish(st.Snapshot())
	return nil
}

type snapshot struct{ view *state.View }

func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if err := writeSnapshot(sink, s.view); err != nil {
		return errors.Join(fmt.Errorf("write a snapshot: %w", err), sink.Cancel())
	}
	return sink.Close()
}

func (snapshot) Release() {}
