package reconcile

import (
	"fmt"
	"strings"
)

// Limits are the resources of a task, as its driver gets them.
type Limits struct {
	CPUMilli, MemoryBytes, DiskBytes int64
}

// RefusedLimits are limits that a driver could not give to a run.
type RefusedLimits struct {
	Limits  Limits
	Message string
}

// LimitsState says whether the runs of an allocation have the limits of its order.
type LimitsState int

// The states.
const (
	LimitsUnknown LimitsState = iota
	LimitsApplied
	LimitsRefused
)

// mustResize reports whether the driver must change the limits of a task's latest run. Limits that the
// driver refused are not tried again: the region replaces the allocation.
func (a Alloc) mustResize(t Task, ta TaskActual) bool {
	if !a.Resized || ta.Phase != Up || ta.Resizing || ta.refused(t) {
		return false
	}
	return ta.Limits == nil || *ta.Limits != t.Limits
}

func (t TaskActual) refused(task Task) bool {
	return t.RefusedLimits != nil && t.RefusedLimits.Limits == task.Limits
}

// LimitsOf returns whether the runs of a resized allocation have the limits of its order. If a driver
// refused the limits, message says why. A task that does not run gets its limits when it starts.
func LimitsOf(a Alloc, act Actual) (state LimitsState, message string) {
	if !a.Resized || !act.Accepted {
		return LimitsUnknown, ""
	}
	state = LimitsApplied
	for _, t := range a.Tasks {
		ta := act.Tasks[t.Name]
		switch {
		case !ta.live() && ta.Phase != Unknown:
		case ta.refused(t):
			return LimitsRefused, fmt.Sprintf("task %s: %s", t.Name, ta.RefusedLimits.Message)
		case ta.Limits == nil || *ta.Limits != t.Limits:
			state = LimitsUnknown
		}
	}
	return state, ""
}

// Resized returns the task after its driver changed the limits of the latest run.
func (t TaskActual) Resized(to Limits) TaskActual {
	t.Limits, t.RefusedLimits, t.Resizing = &to, nil, false
	return t
}

// NotResized returns the task after its driver refused to change the limits of the latest run.
func (t TaskActual) NotResized(to Limits, why string) TaskActual {
	t.RefusedLimits, t.Resizing = &RefusedLimits{to, why}, false
	return t
}

// resizeMessage says what changes, such as "cpu 100m to 200m".
func resizeMessage(ta TaskActual, t Task) string {
	if ta.Limits == nil {
		return "the limits of the run are not known"
	}
	return ta.Limits.Changes(t.Limits)
}

// Changes says how other limits differ, such as "cpu 100m to 200m, memory 64 MiB to no limit".
func (l Limits) Changes(to Limits) string {
	var parts []string
	add := func(name string, from, to int64, text func(int64) string) {
		if from != to {
			parts = append(parts, fmt.Sprintf("%s %s to %s", name, text(from), text(to)))
		}
	}
	milli := func(n int64) string { return orNone(n, fmt.Sprintf("%dm", n)) }
	mebi := func(n int64) string { return orNone(n, fmt.Sprintf("%g MiB", float64(n)/(1<<20))) }
	add("cpu", l.CPUMilli, to.CPUMilli, milli)
	add("memory", l.MemoryBytes, to.MemoryBytes, mebi)
	add("disk", l.DiskBytes, to.DiskBytes, mebi)
	return strings.Join(parts, ", ")
}

func orNone(n int64, text string) string {
	if n == 0 {
		return "no limit"
	}
	return text
}
