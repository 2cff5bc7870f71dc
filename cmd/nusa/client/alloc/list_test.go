package alloc

import (
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestFailingStartShowsItsReason: an allocation whose task cannot start shows the reason,
// like an ended allocation.
func TestFailingStartShowsItsReason(t *testing.T) {
	failing := map[string]*nusav1.TaskState{
		"a": {State: nusav1.AllocState_ALLOC_STATE_RUNNING},
		"b": {State: nusav1.AllocState_ALLOC_STATE_STARTING, Restarts: 2, ExitCode: -1, Message: "no such image"},
	}
	for _, c := range []struct {
		alloc *nusav1.Allocation
		want  string
	}{
		{&nusav1.Allocation{State: nusav1.AllocState_ALLOC_STATE_STARTING, Tasks: failing}, "task b, 2 restarts: no such image"},
		{&nusav1.Allocation{State: nusav1.AllocState_ALLOC_STATE_STARTING, Tasks: failing, Message: "declared"}, "declared"},
		{&nusav1.Allocation{State: nusav1.AllocState_ALLOC_STATE_STARTING}, ""},
		{&nusav1.Allocation{State: nusav1.AllocState_ALLOC_STATE_RUNNING, Tasks: failing}, ""},
	} {
		if got := reasonText(c.alloc); got != c.want {
			t.Errorf("%v: %q, want %q", c.alloc, got, c.want)
		}
	}
}

// TestExitTextOfTasks: a task that never started has no exit code.
func TestExitTextOfTasks(t *testing.T) {
	task := func(code, signal int32) *nusav1.Allocation {
		return &nusav1.Allocation{State: nusav1.AllocState_ALLOC_STATE_FAILED, Tasks: map[string]*nusav1.TaskState{
			"t": {State: nusav1.AllocState_ALLOC_STATE_FAILED, ExitCode: code, Signal: signal},
		}}
	}
	for _, c := range []struct {
		code, signal int32
		want         string
	}{{0, 0, "0"}, {3, 0, "3"}, {137, 9, "signal 9"}, {-1, 0, "-"}} {
		if got := exitText(task(c.code, c.signal)); got != c.want {
			t.Errorf("%d, %d: %q, want %q", c.code, c.signal, got, c.want)
		}
	}
}
