package regional

import (
	"github.com/nusa-scheduler/nusa/regional/state"
)

// ahead is the state as it will be once all that this master has proposed is
// committed, so that a plan follows what it is about in the same log entry and
// nobody waits twice for the disks. Each entry's outcome is foreseen: when Raft
// commits it where it was meant to be, the FSM takes that outcome over instead
// of working it out again. Raft's own entries may come between; then what was
// foreseen is void, entries are applied as on any other server, and ahead
// begins anew. Only for the goroutine that proposes.
type ahead struct {
	fsm *fsm
	st  *state.State
	// from is the state before the entry in the making, index that entry's.
	from  *state.View
	index uint64
	// results of the entry in the making.
	results []state.Result
}

// begin starts from what is committed; last is the log's last index.
func (f *fsm) begin(last uint64) *ahead {
	view := f.View()
	return &ahead{fsm: f, st: view.Fork(), from: view, index: last + 1}
}

// apply adds commands to the entry in the making and answers their results.
func (a *ahead) apply(cmds []state.Command) []state.Result {
	results := applyCommands(a.st, a.index, cmds)
	if a.results == nil {
		a.results = results
	} else {
		a.results = append(a.results, results...)
	}
	return results
}

// view is the state with all of it.
func (a *ahead) view() *state.View { return a.st.Snapshot() }

// seal ends the entry, whose bytes are about to be proposed.
func (a *ahead) seal(data []byte) {
	to := a.st.Snapshot()
	a.fsm.foresee(foreseen{index: a.index, data: &data[0], from: a.from, to: to, results: a.results})
	a.from, a.index, a.results = to, a.index+1, nil
}

// foreseen is what an entry that this server has proposed makes of the state.
type foreseen struct {
	index    uint64
	data     *byte // where the entry's bytes begin
	from, to *state.View
	results  []state.Result
}

// applied is the FSM's answer to an entry.
type applied struct {
	results []state.Result
	// foreseen is false when the outcome had to be worked out.
	foreseen bool
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
