package reconcile

import (
	"testing"
	"time"
)

// TestFailures: the end of an allocation says why it failed, so that a retry policy can decide about it.
func TestFailures(t *testing.T) {
	now := time.Unix(100, 0)
	ended := func(end TaskActual) Actual {
		end.Phase, end.Run, end.Finished = Ended, 1, now
		return Actual{Accepted: true, Started: now.Add(-time.Minute), Tasks: map[string]TaskActual{"main": end}}
	}
	for name, c := range map[string]struct {
		act  Actual
		max  time.Duration
		want Failure
	}{
		"exit code":      {ended(TaskActual{ExitCode: 3}), 0, Failure{Category: CategoryApp, Task: "main", ExitCode: 3}},
		"signal":         {ended(TaskActual{ExitCode: 139, Signal: 11}), 0, Failure{Category: CategoryApp, Task: "main", Signal: 11}},
		"memory":         {ended(TaskActual{ExitCode: 137, Signal: 9, Category: CategoryOOM}), 0, Failure{Category: CategoryOOM, Task: "main", Signal: 9}},
		"no start":       {ended(TaskActual{ExitCode: -1, Reason: ReasonStartFailed}), 0, Failure{Category: CategoryStart, Task: "main"}},
		"no command":     {ended(TaskActual{Reason: ReasonStartFailed, Final: true, Category: CategoryConfig}), 0, Failure{Category: CategoryConfig, Task: "main", Permanent: true}},
		"no image":       {ended(TaskActual{Reason: ReasonUnsupported, Category: CategoryImage}), 0, Failure{Category: CategoryImage, Task: "main", Permanent: true}},
		"no driver":      {ended(TaskActual{Reason: ReasonUnsupported}), 0, Failure{Category: CategoryConfig, Task: "main", Permanent: true}},
		"host restarted": {ended(TaskActual{ExitCode: -1, Reason: ReasonHostRebooted}), 0, Failure{Category: CategoryNodeLost, Task: "main"}},
		"time is over": {Actual{Accepted: true, Started: now.Add(-time.Minute), Tasks: map[string]TaskActual{"main": {Phase: Up, Run: 1}}},
			time.Second, Failure{Category: CategoryTimeout}},
	} {
		a := Alloc{ID: "a", Batch: true, MaxRuntime: c.max, Tasks: []Task{{Name: "main"}}}
		var got *Failure
		for _, do := range Make(Input{Now: now, Allocs: []Alloc{a}, Actual: map[string]Actual{"a": c.act}}).Actions {
			if do.Kind == Close || do.Kind == End {
				got = do.Failure
			}
		}
		if got == nil || *got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
