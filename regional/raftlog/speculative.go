package raftlog

import (
	"github.com/nusa-scheduler/nusa/regional/state"
)

// speculativeState is the state with all entries of this master, also those in
// flight, so that a decision follows its cause in the same log entry and waits
// for the disks only once. The result of each entry is predicted: when Raft
// commits the entry at the predicted index, the FSM adopts the result instead of
// computing it again. Raft may commit entries of its own in between; then the
// predictions are dropped, the entries are applied as on any other server, and a
// new speculative state begins. Only for the proposing goroutine.
type speculativeState struct {
	fsm *FSM
	st  *state.State
	// before is the state before the entry that is being filled; index is the index
	// of that entry.
	before *state.View
	index  uint64
	// results are those of the entry that is being filled.
	results []state.Result
}

// speculate returns a speculative state that begins as the committed state; last is
// the log's last index.
func (f *FSM) speculate(last uint64) *speculativeState {
	view := f.View()
	return &speculativeState{fsm: f, st: view.Fork(), before: view, index: last + 1}
}

// apply adds commands to the entry that is being filled and returns their results.
func (a *speculativeState) apply(cmds []state.Command) []state.Result {
	results := applyCommands(a.st, a.index, cmds)
	if a.results == nil {
		a.results = results
	} else {
		a.results = append(a.results, results...)
	}
	return results
}

// view returns the state with all entries applied.
func (a *speculativeState) view() *state.View { return a.st.Snapshot() }

// closeEntry ends the entry, whose bytes are data and which is proposed next, and
// predicts its result.
func (a *speculativeState) closeEntry(data []byte) {
	to := a.st.Snapshot()
	a.fsm.predict(prediction{index: a.index, data: &data[0], before: a.before, after: to, results: a.results})
	a.before, a.index, a.results = to, a.index+1, nil
}

// prediction is the result of an entry that this server proposed.
type prediction struct {
	index         uint64
	data          *byte // the first byte of the entry
	before, after *state.View
	results       []state.Result
}

// Applied is what FSM.Apply returns for an entry.
type Applied struct {
	Results []state.Result
	// Predicted says whether a predicted result was adopted.
	Predicted bool
}

// applyCommands applies all or some commands of an entry.
func applyCommands(st *state.State, index uint64, cmds []state.Command) []state.Result {
	switch len(cmds) {
	case 0:
		return nil
	case 1:
		return []state.Result{st.Apply(index, cmds[0])}
	}
	return st.Apply(index, state.Command{NowUnixNano: cmds[0].NowUnixNano, Batch: cmds}).Batch
}
