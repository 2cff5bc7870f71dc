package regional

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// fsm is the committed state as Raft sees it. It applies, it does not judge.
type fsm struct {
	// st is written by Raft's one goroutine only.
	st *state.State

	mu      sync.Mutex
	view    *state.View
	changed chan struct{} // closed and replaced at every change
	failed  error
	broken  chan struct{} // closed when failed is set
}

func newFSM() *fsm {
	st := state.New()
	return &fsm{st: st, view: st.Snapshot(), changed: make(chan struct{}), broken: make(chan struct{})}
}

// View is the committed state.
func (f *fsm) View() *state.View {
	v, _ := f.Watch()
	return v
}

// Watch is the committed state and a channel that is closed when it is no
// longer the newest.
func (f *fsm) Watch() (*state.View, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.view, f.changed
}

// Broken is closed when the log holds what this build cannot read: the server
// must end rather than go on with another state than its peers.
func (f *fsm) Broken() <-chan struct{} { return f.broken }

// Err is why.
func (f *fsm) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

func (f *fsm) publish() {
	view := f.st.Snapshot()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.view = view
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fsm) fail(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed == nil {
		f.failed = err
		close(f.broken)
	}
	return err
}

// Apply answers with a []state.Result, one a command, or with an error after
// which nothing is applied any more.
func (f *fsm) Apply(l *raft.Log) any {
	if err := f.Err(); err != nil {
		return err
	}
	cmds, err := decodeEntry(l.Data)
	if err != nil {
		return f.fail(fmt.Errorf("log index %d: %w", l.Index, err))
	}
	var results []state.Result
	switch len(cmds) {
	case 0:
	case 1:
		results = []state.Result{f.st.Apply(l.Index, cmds[0])}
	default:
		results = f.st.Apply(l.Index, state.Command{NowUnixNano: cmds[0].NowUnixNano, Batch: cmds}).Batch
	}
	for _, r := range results {
		if errors.Is(r.Err, state.ErrUnknownCommand) {
			return f.fail(fmt.Errorf("log index %d: %w: run the build that wrote it", l.Index, r.Err))
		}
	}
	f.publish()
	return results
}

// Snapshot costs nothing: a view never changes.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if err := f.Err(); err != nil {
		return nil, err
	}
	return snapshot{f.View()}, nil
}

// Restore replaces the state.
func (f *fsm) Restore(r io.ReadCloser) error {
	defer r.Close()
	st, err := readSnapshot(r)
	if err != nil {
		return f.fail(err)
	}
	f.st = st
	f.publish()
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
