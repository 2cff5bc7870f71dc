package raftlog

import (
	"github.com/nusa-scheduler/nusa/regional/state"
)

// speculativeState is the state as it will be once all that this master has proposed is
// committed, so that a plan follows what it is about in the same log entry and
// nobody waits twice for the disks. Each entry's outcome is foreseen: when Raft
// commits it where it was meant to be, the FSM takes that outcome over instead
// of working it out again. Raft's own entries may come between; then what was
// foreseen is void, entries are applied as on any other server, and ahead
// begins anew. Only for the goroutine that proposes.
type speculativeState struct {
	fsm *FSM
	st  *state.State
	// before is the state before the entry in the making, index that entry's.
	before *state.View
	index  uint64
	// results of the entry in the making.
	results []state.Result
}

// speculate starts from what is committed; last is the log's last index.
func (f *FSM) speculate(last uint64) *speculativeState {
	view := f.View()
	return &speculativeState{fsm: f, st: view.Fork(), before: view, index: last + 1}
}

// apply adds commands to the entry in the making and answers their results.
func (a *speculativeState) apply(cmds []state.Command) []state.Result {
	results := applyCommands(a.st, a.index, cmds)
	if a.results == nil {
		a.results = results
	} else {
		a.results = append(a.results, results...)
	}
	return results
}

// view is the state with all of it.
func (a *speculativeState) view() *state.View { return a.st.Snapshot() }

// closeEntry ends the entry, whose bytes are about to be proposed.
func (a *speculativeState) closeEntry(data []byte) {
	to := a.st.Snapshot()
	a.fsm.predict(prediction{index: a.index, data: &data[0], before: a.before, after: to, results: a.results})
	a.before, a.index, a.results = to, a.index+1, nil
}

// prediction is what an entry that this server has proposed makes of the state.
type prediction struct {
	index         uint64
	data          *byte // where the entry's bytes begin
	before, after *state.View
	results       []state.Result
}

// Applied is the FSM's answer to an entry.
type Applied struct {
	Results []state.Result
	// Predicted is false when the outcome had to be worked out.
	Predicted bool
}

// applyCommands applies an entry, or a part of it.
func applyCommands(st *state.State, index uint64, cmds []state.Command) []state.Result {
	switch len(cmds) {
	case 0:
		return nil
	case 1:
		return []state.Result{st.Apply(index, cmds[0])}
	}
	return st.Apply(index, state.Command{NowUnixNano: cmds[0].NowUnixNano, Batch: cmds}).Batch
}
