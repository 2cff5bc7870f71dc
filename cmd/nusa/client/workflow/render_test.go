package workflow

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	running, succeeded, failed   = nusav1.StepState_STEP_STATE_RUNNING, nusav1.StepState_STEP_STATE_SUCCEEDED, nusav1.StepState_STEP_STATE_FAILED
	pending, skipped, approval   = nusav1.StepState_STEP_STATE_PENDING, nusav1.StepState_STEP_STATE_SKIPPED, nusav1.StepState_STEP_STATE_APPROVAL
	runRuns, runFailed, runEnded = nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_RUNNING, nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_FAILED, nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_SUCCEEDED
)

// TestRendering shows every table from fixed messages, plain and in colour.
func TestRendering(t *testing.T) {
	at := func(d time.Duration) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2026, 11, 23, 10, 30, 0, 0, time.Local).Add(d))
	}
	index := func(n int32) *int32 { return &n }
	etl := &nusav1.WorkflowRun{
		Namespace: "default", Name: "etl.3f9a01bc", Workflow: "etl", State: runRuns, Began: at(0), Steps: 5, StepsEnded: 2, Active: 2, StepsFailed: 1,
		Parameters: map[string]string{"day": "monday", "size": "large"}, Region: "jakarta", Trigger: nusav1.JobRunTrigger_JOB_RUN_TRIGGER_DISPATCH,
	}
	nightly := &nusav1.WorkflowRun{
		Namespace: "default", Name: "nightly.20261123-013000", Workflow: "nightly", State: runFailed, Message: "step load failed", Began: at(0), Ended: at(90 * time.Second),
		Steps: 2, StepsEnded: 2, StepsFailed: 1, Trigger: nusav1.JobRunTrigger_JOB_RUN_TRIGGER_SCHEDULE, Time: timestamppb.New(time.Date(2026, 11, 23, 1, 30, 0, 0, time.UTC)),
	}
	inner := &nusav1.WorkflowRun{
		Namespace: "default", Name: "train.s1f2e3d4c5b6a", Workflow: "train", State: runEnded, Began: at(0), Ended: at(3 * time.Second), Steps: 1, StepsEnded: 1,
		Parent: "etl.3f9a01bc", ParentStep: "train", Output: `{"model":"m7"}`,
	}
	all := &nusav1.WorkflowRunStatus{Run: etl, Steps: []*nusav1.StepStatus{
		{Step: "fetch", State: succeeded, Attempts: 2, Job: "etl.3f9a01bc--fetch--r2", Began: at(0), Ended: at(1500 * time.Millisecond), Output: `{"files": ["a", "b"]}`},
		{Step: "part", Index: index(0), Item: "a", State: failed, Attempts: 1, Job: "etl.3f9a01bc--part--i0", Began: at(0), Ended: at(time.Second), Message: "exit code 1"},
		{Step: "part", Index: index(1), Item: "b", State: running, Attempts: 1, Job: "etl.3f9a01bc--part--i1", Began: at(0)},
		{Step: "train", State: running, Attempts: 1, Run: "train.s1f2e3d4c5b6a", Began: at(0)},
		{Step: "gate", State: approval, Began: at(0), Message: "waits for an approval"},
		{Step: "report", State: pending},
	}}
	in := map[string]*nusav1.WorkflowRunStatus{"train.s1f2e3d4c5b6a": {Run: inner, Steps: []*nusav1.StepStatus{
		{Step: "fit", State: succeeded, Attempts: 1, Job: "train.s1f2e3d4c5b6a--fit", Began: at(0), Ended: at(3 * time.Second)},
	}}}
	graph := &nusav1.WorkflowGraph{Run: etl, Steps: []*nusav1.GraphStep{
		{Name: "fetch", State: succeeded}, {Name: "part", After: []string{"fetch"}, State: running, Items: 2, ItemsEnded: 1},
		{Name: "train", After: []string{"fetch"}, State: running, Workflow: "train", Run: "train.s1f2e3d4c5b6a"},
		{Name: "report", After: []string{"part", "train"}, State: pending}, {Name: "again", After: []string{"report"}, State: skipped, Workflow: "etl2"},
		{Name: "clean", State: pending, OnExit: true},
	}}
	innerGraph := &nusav1.WorkflowGraph{Run: inner, Steps: []*nusav1.GraphStep{{Name: "fit", State: succeeded}}}
	states := &cli.States{}
	sample.Render(t, []sample.Rendering{
		sample.Of("workflow list", func(w *term.Screen) {
			writeRuns(w, &nusav1.ListWorkflowRunsResponse{Runs: []*nusav1.WorkflowRun{etl, nightly}}, "")
		}),
		sample.Of("workflow list, none", func(w *term.Screen) { writeRuns(w, &nusav1.ListWorkflowRunsResponse{}, "") }),
		sample.Of("workflow status", func(w *term.Screen) { write(w, all, in, states) }),
		sample.Of("workflow status of a run of a schedule, no steps", func(w *term.Screen) { write(w, &nusav1.WorkflowRunStatus{Run: nightly}, nil, states) }),
		sample.Of("workflow status of a run inside another", func(w *term.Screen) { write(w, in["train.s1f2e3d4c5b6a"], nil, states) }),
		sample.Of("workflow graph", func(w *term.Screen) { draw(w, graph) }),
		sample.Of("workflow graph of a run inside another", func(w *term.Screen) { draw(w, innerGraph) }),
	})
}
