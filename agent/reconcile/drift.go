package reconcile

import (
	"cmp"
	"slices"
)

// RunID names one run of one task of one allocation.
type RunID struct {
	Alloc, Task string
	Run         int
}

// Seen is what a driver says about a run. A run about which the driver says nothing certain has no
// value.
type Seen int

// The values of Seen.
const (
	// Absent: the driver does not know the run.
	Absent Seen = iota
	// Alive: the run is starting or running.
	Alive
	// Over: the run has ended.
	Over
)

// Drift is a kind of difference between the records and what the drivers run.
type Drift string

// The kinds of differences.
const (
	// DriftUnknown: the agent has no allocation of the run.
	DriftUnknown Drift = "instance_unknown"
	// DriftExtra: the run is alive, and the records say that it has ended or that another run of
	// its task is up.
	DriftExtra Drift = "instance_extra"
	// DriftGone: the run is recorded as up, and is not alive.
	DriftGone Drift = "instance_gone"
)

// Difference is one difference between the records and what the drivers run.
type Difference struct {
	Kind Drift
	RunID
}

// Differences compares the records of allocations with what the drivers say about runs. Tasks that
// are being started or stopped have no differences, and neither have busy allocations, whose data is
// being removed. The result is sorted.
func Differences(known map[string]Actual, busy map[string]bool, seen map[RunID]Seen) []Difference {
	var out []Difference
	for id, s := range seen {
		act, there := known[id.Alloc]
		if busy[id.Alloc] {
			continue
		}
		if kind := driftOf(act, there, id, s); kind != "" {
			out = append(out, Difference{kind, id})
		}
	}
	slices.SortFunc(out, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Alloc, b.Alloc), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Run, b.Run))
	})
	return out
}

// driftOf returns the difference of one run, or "" if it has none.
func driftOf(act Actual, there bool, id RunID, s Seen) Drift {
	t := act.Tasks[id.Task]
	latest := t.Run == id.Run
	switch {
	case !there && s != Absent:
		return DriftUnknown
	case !there:
		return ""
	case t.Phase == Up && latest && s != Alive:
		return DriftGone
	case s == Alive && (t.Phase == Up && !latest || t.Phase == Ended):
		return DriftExtra
	}
	return ""
}

// Lasting returns the differences that an earlier comparison found, too. Only these are repaired.
func Lasting(earlier, later []Difference) []Difference {
	return slices.DeleteFunc(slices.Clone(later), func(d Difference) bool { return !slices.Contains(earlier, d) })
}
