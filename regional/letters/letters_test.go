package letters

import (
	"testing"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/state/retry"
)

func attempt(t *testing.T, message string, task *nusav1.TaskState) *state.Alloc {
	t.Helper()
	raw, err := proto.Marshal(&nusav1.Allocation{Tasks: map[string]*nusav1.TaskState{"main": task}})
	if err != nil {
		t.Fatal(err)
	}
	return &state.Alloc{State: state.Failed, Message: message, Tasks: raw}
}

// TestFailureOfEarlierAttempt: a task that never ran has no exit code, although its state says -1.
func TestFailureOfEarlierAttempt(t *testing.T) {
	failed := nusav1.AllocState_ALLOC_STATE_FAILED
	for _, c := range []struct {
		name string
		task *nusav1.TaskState
		want retry.Failure
	}{
		{"it ended by itself", &nusav1.TaskState{State: failed, ExitCode: 3}, retry.Failure{Category: retry.App, Task: "main", ExitCode: 3}},
		{"a signal ended it", &nusav1.TaskState{State: failed, ExitCode: -1, Signal: 11}, retry.Failure{Category: retry.App, Task: "main", ExitCode: -1, Signal: 11}},
		{"it did not start", &nusav1.TaskState{State: failed, ExitCode: -1, Reason: nusav1.Reason_REASON_START_FAILED}, retry.Failure{Category: retry.Start, Task: "main"}},
		{"the driver cannot", &nusav1.TaskState{State: failed, ExitCode: -1, Reason: nusav1.Reason_REASON_UNSUPPORTED}, retry.Failure{Category: retry.Config, Task: "main"}},
	} {
		if got := *failureOf(attempt(t, "", c.task)); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestSameEnd: the reported failure of the last attempt holds for earlier ones with the same end.
func TestSameEnd(t *testing.T) {
	last := attempt(t, "task main did not start: no such file", &nusav1.TaskState{})
	same, other, silent := *last, *last, *last
	other.Message, silent.Message = "task main exited with code 1", ""
	for name, c := range map[string]struct {
		a, last *state.Alloc
		want    bool
	}{"itself": {last, last, true}, "the same message": {&same, last, true}, "another message": {&other, last, false}, "no messages": {&silent, attempt(t, "", &nusav1.TaskState{}), false}} {
		if got := sameEnd(c.a, c.last); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
