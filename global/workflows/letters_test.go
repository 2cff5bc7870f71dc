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

// TestRunAgain: which job runs a failed one again, after an operator has retried the workflow.
func TestRunAgain(t *testing.T) {
	spec := &nusav1.JobSpec{Name: "w", Workflow: &nusav1.Workflow{Steps: map[string]*nusav1.Step{
		"fetch": {Ref: "x"},
		"each":  {Ref: "x", Foreach: &nusav1.Foreach{Items: []string{"x", "y"}}},
		"train": {Inline: &nusav1.Workflow{Steps: map[string]*nusav1.Step{"fit": {Ref: "x"}, "save": {Ref: "x"}}}},
	}}}
	job.Default(spec)
	d, err := define(spec)
	if err != nil {
		t.Fatal(err)
	}
	b := &Book{runs: map[state.JobKey]*run{}, loaded: true}
	attempts := func(r *run, step string, item int, n int32) {
		i, known := r.def.graph.Index(step)
		if !known {
			t.Fatalf("no step %s", step)
		}
		r.set(i, item, &nusav1.WorkflowStepRecord{State: nusav1.StepState_STEP_STATE_RUNNING, Tries: 1, Attempts: n})
		b.runs[r.key] = r
	}
	r := fresh(d, "w.1")
	attempts(r, "fetch", 0, 3)
	attempts(r, "each", 0, 1)
	attempts(r, "each", 1, 2)
	attempts(r, "train", 0, 3)
	train, _ := d.graph.Index("train")
	var inner []string
	for n := range 3 { // the run of the second attempt is not known
		name := r.innerName(train, 0, n+1)
		inner = append(inner, name)
		if n != 1 {
			in := newRun(state.JobKey{Namespace: "default", Name: name}, d.inline[train], &nusav1.WorkflowRunRecord{Run: &nusav1.WorkflowRun{Workflow: "w", Parent: "w.1", ParentStep: "train"}})
			attempts(in, "fit", 0, 2)
		}
	}
	for name, want := range map[string]string{
		"w.1--fetch":           "w.1--fetch--r3",
		"w.1--fetch--r2":       "w.1--fetch--r3",
		"w.1--fetch--r3":       "",
		"w.1--each--i0":        "",
		"w.1--each--i1":        "w.1--each--i1--r2",
		"w.2--fetch":           "",
		"other":                "",
		inner[0] + "--fit":     inner[0] + "--fit--r2",
		inner[0] + "--fit--r2": inner[2] + "--fit--r2",
		inner[0] + "--save":    "", // it has not begun again
		inner[1] + "--fit":     "",
		inner[2] + "--fit--r2": "",
	} {
		if as, is := runAgain(b, state.JobKey{Namespace: "default", Name: name}); as.Name != want || is != (want != "") {
			t.Errorf("%s runs again as %q, want %q", name, as.Name, want)
		}
	}
}
