package raftlog

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/internal/notify"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// FSM holds the committed state. It applies commands and makes no decisions.
type FSM struct {
	mu      sync.Mutex
	view    *state.View
	changed notify.Signal
	// predictions are the predicted results of entries in flight, in the order of the log.
	predictions []prediction
	// waiters are the callers of At that wait for the state at an index.
	waiters []indexWaiter
	failed  error
	broken  chan struct{} // closed when failed is set
	hashing sync.Mutex    // held while a digest is computed
}

// NewFSM returns an FSM with an empty state.
func NewFSM() *FSM {
	return &FSM{view: state.New().Snapshot(), broken: make(chan struct{})}
}

// View returns the committed state.
func (f *FSM) View() *state.View {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.view
}

// Watch returns the committed state. The channel is closed when a newer state is committed.
func (f *FSM) Watch() (*state.View, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.view, f.changed.C()
}

// Broken returns a channel that is closed when this build cannot read an entry of the log
// or a snapshot. The server must then stop, because its state would differ from the state
// of the other servers.
func (f *FSM) Broken() <-chan struct{} { return f.broken }

// Err returns the reason why the FSM is broken. It is nil while the FSM works.
func (f *FSM) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// publish makes a view the committed view. mu is held.
func (f *FSM) publish(view *state.View) {
	f.view = view
	f.notifyWaiters(view)
	f.changed.Notify()
}

// predict stores the predicted result of the entry that is proposed next.
func (f *FSM) predict(x prediction) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.predictions = append(f.predictions, x)
}

// adoptPrediction publishes the predicted state of an entry and returns its results. It
// returns false when the next prediction is for other bytes, another index or another
// previous state.
func (f *FSM) adoptPrediction(l *raft.Log) ([]state.Result, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.predictions) == 0 {
		return nil, false
	}
	x := f.predictions[0]
	if len(l.Data) == 0 || x.data != &l.Data[0] || x.index != l.Index || x.before != f.view {
		f.predictions = nil // later predictions are based on this misprediction
		return nil, false
	}
	f.predictions[0] = prediction{} // releases the prediction's views to the garbage collector
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

// Apply returns an Applied with one result for each command, or an error. After an error
// Apply applies no further entry. Raft calls Apply from one goroutine.
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

// Snapshot returns the present view. A view never changes.
func (f *FSM) Snapshot() (raft.FSMSnapshot, error) {
	if err := f.Err(); err != nil {
		return nil, err
	}
	return snapshot{f.View()}, nil
}

// Restore replaces the state by the state in a snapshot.
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
