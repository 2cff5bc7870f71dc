package reconcile

import (
	"fmt"
	"testing"
)

// TestDifferences: each phase of a task, with each statement of its driver. A task that is being
// started or stopped has no difference.
func TestDifferences(t *testing.T) {
	const a, latest, earlier, later = "a", 2, 1, 3
	run := func(n int) RunID { return RunID{Alloc: a, Task: "web", Run: n} }
	for _, phase := range []Phase{Waiting, Unknown, Launching, Up, Closing, Ended} {
		want := map[RunID]map[Seen]Drift{}
		switch phase {
		case Up:
			want[run(latest)] = map[Seen]Drift{Absent: DriftGone, Over: DriftGone}
			want[run(earlier)] = map[Seen]Drift{Alive: DriftExtra}
			want[run(later)] = map[Seen]Drift{Alive: DriftExtra}
		case Ended:
			for _, n := range []int{earlier, latest, later} {
				want[run(n)] = map[Seen]Drift{Alive: DriftExtra}
			}
		}
		known := map[string]Actual{a: {Accepted: true, Tasks: map[string]TaskActual{"web": {Phase: phase, Run: latest}}}}
		for _, n := range []int{earlier, latest, later} {
			for _, s := range []Seen{Absent, Alive, Over} {
				got := Differences(known, nil, map[RunID]Seen{run(n): s})
				expected := []Difference{}
				if k := want[run(n)][s]; k != "" {
					expected = append(expected, Difference{k, run(n)})
				}
				if fmt.Sprint(got) != fmt.Sprint(expected) {
					t.Errorf("phase %d, run %d of %d, seen %d: %v, want %v", phase, n, latest, s, got, expected)
				}
			}
		}
	}
}

// TestDifferencesOfUnknownAllocations: a run without an allocation is a difference, unless the data
// of its allocation is being removed. Only lasting differences count.
func TestDifferencesOfUnknownAllocations(t *testing.T) {
	seen := map[RunID]Seen{{"x", "web", 1}: Alive, {"w", "web", 1}: Over, {"v", "web", 1}: Absent, {"u", "web", 1}: Alive}
	out := Differences(nil, map[string]bool{"u": true}, seen)
	if fmt.Sprint(out) != "[{instance_unknown {w web 1}} {instance_unknown {x web 1}}]" {
		t.Errorf("%v", out)
	}
	if got := Lasting(out[:1], out); len(got) != 1 || got[0] != out[0] {
		t.Errorf("lasting: %v", got)
	}
}
