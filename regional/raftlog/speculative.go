package raftlog

import (
	"github.com/nusa-scheduler/nusa/regional/state"
)

// speculativeState is the state after all entries of this master, including the entries in
// flight. It lets a decision be in the same log entry as the commands that caused the
// decision, so that both wait for the disks only once. The result of each entry is
// predicted. When Raft commits the entry at the predicted index, the FSM adopts the
// prediction instead of computing the result again. Raft may commit entries of its own in
// between. The FSM then drops the predictions and applies the entries as on any other
// server, and a new speculative state begins. Only the proposing goroutine uses a
// speculativeState.
type speculativeState struct {
	fsm *FSM
	st  *state.State
	// before is the state before the entry that is being filled. index is the index of that
	// entry.
	before *state.View
	index  uint64
	// results are the results of the commands in the entry that is being filled.
	results []state.Result
}

// speculate returns a speculative state that equals the committed state. last is the log's
// last index.
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

// view returns the state after all entries.
func (a *speculativeState) view() *state.View { return a.st.Snapshot() }

// closeEntry ends the entry that is being filled and predicts its result. data are the
// entry's bytes. The caller proposes them next.
func (a *speculativeState) closeEntry(data []byte) {
	to := a.st.Snapshot()
	a.fsm.predict(prediction{index: a.index, data: &data[0], before: a.before, after: to, results: a.results})
	a.before, a.index, a.results = to, a.index+1, nil
}

// prediction is the predicted result of an entry that this server proposed.
type prediction struct {
	index         uint64
	data          *byte // the first byte of the entry
	before, after *state.View
	results       []state.Result
}

// Applied is the result of FSM.Apply for an entry.
type Applied struct {
	Results []state.Result
	// Predicted reports whether a predicted result was adopted.
	Predicted bool
}

// applyCommands applies some or all commands of an entry.
func applyCommands(st *state.State, index uint64, cmds []state.Command) []state.Result {
	switch len(cmds) {
	case 0:
		return nil
	case 1:
		return []state.Result{st.Apply(index, cmds[0])}
	}
	return st.Apply(index, state.Command{NowUnixNano: cmds[0].NowUnixNano, Batch: cmds}).Batch
}
