package workflows

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/steps"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// tree returns a workflow in which each step lets two others start.
func tree(t testing.TB, n int) *definition {
	t.Helper()
	spec := &nusav1.JobSpec{Name: "tree", Workflow: &nusav1.Workflow{Steps: map[string]*nusav1.Step{}}}
	for i := range n {
		s := &nusav1.Step{Ref: "work"}
		if i > 0 {
			s.Depends = fmt.Sprintf("s%d.succeeded", (i-1)/2)
		}
		spec.Workflow.Steps[fmt.Sprintf("s%d", i)] = s
	}
	job.Default(spec)
	d, err := define(spec)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// drive carries a run out without a store: jobs succeed at once. It returns the number of jobs, and how many
// steps the plans looked at.
func drive(t testing.TB, r *run) (jobs, looked int) {
	t.Helper()
	view := flow.View{Job: func(int, int) (steps.End, string) { return steps.Succeeded, "" }}
	for {
		batch := r.batch()
		looked += len(batch)
		p := flow.Decide(&r.snap, batch, time.Unix(0, 0), view, planCost)
		for _, a := range p.Actions {
			next := &nusav1.WorkflowStepRecord{State: endStates[a.End], Attempts: 1, Tries: 1}
			if a.Do == flow.Start {
				next.State = nusav1.StepState_STEP_STATE_RUNNING
				jobs++
			}
			r.set(a.Step, a.Item, next)
		}
		r.touched.addAll(p.Left)
		r.held.addAll(p.Held)
		if p.Ended {
			return jobs, looked
		}
	}
}

func fresh(d *definition, name string) *run {
	return newRun(state.JobKey{Namespace: "default", Name: name}, d, &nusav1.WorkflowRunRecord{Run: &nusav1.WorkflowRun{Workflow: "tree"}})
}

// TestAnEndCostsItsSuccessors: in a run of 10,000 steps the plans look at a few steps for each end, not at all.
func TestAnEndCostsItsSuccessors(t *testing.T) {
	t.Parallel()
	const n = 10_000
	r := fresh(tree(t, n), "tree.1")
	jobs, looked := drive(t, r)
	if jobs != n || r.ended != n || r.snap.Active != 0 || len(r.jobs) != 0 {
		t.Errorf("%d jobs, %d steps have ended, %d are active", jobs, r.ended, r.snap.Active)
	}
	if looked > 12*n {
		t.Errorf("the plans looked at %d steps for %d jobs", looked, jobs)
	}
}

// BenchmarkStep is one step of a run of 10,000: its start, its end, and the decisions between them.
func BenchmarkStep(b *testing.B) {
	d := tree(b, 10_000)
	left, i := 0, 0
	b.ReportAllocs()
	for b.Loop() {
		if left == 0 {
			i++
			left, _ = drive(b, fresh(d, fmt.Sprintf("tree.%d", i)))
		}
		left--
	}
}

// BenchmarkThousandRuns makes 1,000 runs of 20 steps, and drives them to their ends.
func BenchmarkThousandRuns(b *testing.B) {
	d := tree(b, 20)
	b.ReportAllocs()
	for b.Loop() {
		runs := make([]*run, 1000)
		for i := range runs {
			runs[i] = fresh(d, fmt.Sprintf("tree.%d", i))
		}
		for _, r := range runs {
			drive(b, r)
		}
	}
}

// TestTheSizeOfARunIsKnownBeforeItIsMade: many steps that share a long list make far more items than a run may
// have. To learn that takes no memory for them.
func TestTheSizeOfARunIsKnownBeforeItIsMade(t *testing.T) {
	const n, items = 2000, 1000
	spec := &nusav1.JobSpec{Name: "wide", Workflow: &nusav1.Workflow{
		Steps: map[string]*nusav1.Step{}, Parameters: map[string]*nusav1.WorkflowParameter{"list": {}},
	}}
	for i := range n {
		spec.Workflow.Steps[fmt.Sprintf("s%d", i)] = &nusav1.Step{Ref: "work", Foreach: &nusav1.Foreach{Parameter: "list"}}
	}
	spec.Workflow.Steps["alone"] = &nusav1.Step{Ref: "work"}
	job.Default(spec)
	d, err := define(spec)
	if err != nil {
		t.Fatal(err)
	}
	params := map[string]string{"list": "[" + strings.Repeat(`"",`, items-1) + `""]`}
	if got := d.size(params); got != n*items+1 {
		t.Errorf("%d items, want %d", got, n*items+1)
	}
	if got := d.size(map[string]string{"list": "[]"}); got != n+1 {
		t.Errorf("%d items with an empty list, want %d", got, n+1)
	}
	if allocs := testing.AllocsPerRun(1, func() { d.size(params) }); allocs > 2*items {
		t.Errorf("%.0f allocations for %d steps with the same list of %d items", allocs, n, items)
	}
}

// TestAPlanEvaluatesNoCondition: a condition of a hostile workflow may take long, and a plan is made under the
// lock. So a plan asks for the values that it needs, and they are evaluated without the lock, once in a run.
func TestAPlanEvaluatesNoCondition(t *testing.T) {
	spec := &nusav1.JobSpec{Name: "tree", Workflow: &nusav1.Workflow{
		Parameters: map[string]*nusav1.WorkflowParameter{"to": {}},
		Steps: map[string]*nusav1.Step{
			"odd":  {Ref: "work", When: `params.to == "odd"`},
			"bad":  {Ref: "work", When: `int(params.to) > 3`},
			"last": {Ref: "work", Depends: "odd.skipped && bad.failed", When: `params.to == "even"`},
		},
	}}
	job.Default(spec)
	d, err := define(spec)
	if err != nil {
		t.Fatal(err)
	}
	r := newRun(state.JobKey{Namespace: "default", Name: "tree.1"}, d, &nusav1.WorkflowRunRecord{Run: &nusav1.WorkflowRun{
		Workflow: "tree", Parameters: map[string]string{"to": "even"},
	}})
	b := &Book{st: &state.State{}}
	plan := func() flow.Plan {
		b.st.Lock()
		defer b.st.Unlock()
		return b.planOf(r, []int{0, 1, 2}, time.Unix(0, 0), "")
	}
	when, asks := d.when, 0
	for {
		d.when = nil // a plan that evaluates a condition fails
		p := plan()
		d.when = when
		if len(r.asked) == 0 {
			got := fmt.Sprint(p.Actions)
			if want := "[finish step 0 failed: when: type conversion error from 'string' to 'int' finish step 1 skipped: when is false start step 2]"; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			break
		}
		if asks++; !b.evaluate(r) || asks > 2 {
			t.Fatalf("%d plans asked for conditions", asks)
		}
	}
	d.when = nil
	if plan(); len(r.asked) > 0 || asks != 2 {
		t.Errorf("%d plans asked, and one after them for %v", asks, r.asked)
	}
}
