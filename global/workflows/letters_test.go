package workflows

import (
	"testing"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestOnlyTheLastAttemptLeavesADeadLetter: an attempt that is tried again does not, whichever state its step is in.
func TestOnlyTheLastAttemptLeavesADeadLetter(t *testing.T) {
	spec := &nusav1.JobSpec{Name: "w", Workflow: &nusav1.Workflow{Steps: map[string]*nusav1.Step{
		"a_b":  {Ref: "x", Retry: &nusav1.StepRetry{Limit: 1}},
		"once": {Ref: "x"},
		"late": {Ref: "x", Retry: &nusav1.StepRetry{Limit: 1, On: []nusav1.RetryReason{nusav1.RetryReason_RETRY_REASON_TIMED_OUT}}},
		"each": {Ref: "x", Retry: &nusav1.StepRetry{Limit: 1}, Foreach: &nusav1.Foreach{Items: []string{"x", "y"}}},
	}}}
	job.Default(spec)
	d, err := define(spec)
	if err != nil {
		t.Fatal(err)
	}
	const running, backoff, failed = nusav1.StepState_STEP_STATE_RUNNING, nusav1.StepState_STEP_STATE_BACKOFF, nusav1.StepState_STEP_STATE_FAILED
	for _, c := range []struct {
		step       string
		item       int
		state      nusav1.StepState
		tries, all int32
		job        string
		again      bool
	}{
		{"a_b", 0, running, 1, 1, "w.1--a-b", true},
		{"a_b", 0, backoff, 1, 1, "w.1--a-b", true},
		{"a_b", 0, running, 2, 2, "w.1--a-b", true},
		{"a_b", 0, running, 2, 2, "w.1--a-b--r2", false},
		{"a_b", 0, failed, 2, 2, "w.1--a-b--r2", false},
		{"a_b", 0, running, 1, 3, "w.1--a-b--r3", true}, // after a retry by a caller
		{"once", 0, running, 1, 1, "w.1--once", false},
		{"late", 0, running, 1, 1, "w.1--late", false},
		{"each", 1, running, 1, 1, "w.1--each--i1", true},
		{"each", 1, failed, 2, 2, "w.1--each--i1--r2", false},
		{"once", 0, running, 1, 1, "w.1--none", false},
		{"once", 0, running, 1, 1, "w.2--once", false},
		{"once", 0, running, 1, 1, "other", false},
	} {
		r := fresh(d, "w.1")
		b := &Book{runs: map[state.JobKey]*run{r.key: r}}
		i, _ := d.graph.Index(c.step)
		r.set(i, c.item, &nusav1.WorkflowStepRecord{State: c.state, Tries: c.tries, Attempts: c.all})
		k := state.JobKey{Namespace: "default", Name: c.job}
		if _, known := retried(b, k); known == job.OfStep(c.job) {
			t.Errorf("%s: known before the runs are read: %v", c.job, known)
		}
		b.loaded = true
		if again, known := retried(b, k); again != c.again || !known {
			t.Errorf("%s, %s after %d tries: again %v, known %v", c.job, c.state, c.tries, again, known)
		}
	}
}
