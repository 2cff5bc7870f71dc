package workflows

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

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

// planCost bounds a plan of these tests, as with an embedded store.
const planCost = 384

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
	b := &Book{cost: planCost, st: &state.State{}}
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

// TestTheLineOfAWorkflowCountsItsRuns: the number of active runs that lists show follows beginnings, ends, retries
// and forgotten runs.
func TestTheLineOfAWorkflowCountsItsRuns(t *testing.T) {
	k := state.JobKey{Namespace: "default", Name: "tree"}
	st := state.New(state.Beginning{}, func() time.Duration { return 0 })
	st.Jobs[k], st.Templates.Lines[k] = &state.Job{Key: k}, ""
	b := &Book{cost: planCost, st: st, runs: map[state.JobKey]*run{}, byWorkflow: map[state.JobKey]map[string]*run{}, live: map[state.JobKey]int{}, trees: map[state.JobKey]*int{},
		defs: map[string]*definition{"default/tree": tree(t, 3)}, users: map[string]int{}}
	b.describe(k)
	put := func(name string, ended bool) {
		rec := &nusav1.WorkflowRunRecord{Spec: "tree", Run: &nusav1.WorkflowRun{Workflow: "tree"}}
		if ended {
			rec.Run.Ended = timestamppb.Now()
		}
		b.applyRun("default/"+name, rec)
	}
	for _, step := range []struct {
		do   func()
		line string
	}{
		{func() { put("tree.1", false) }, "1 run is active"},
		{func() { put("tree.2", true) }, "1 run is active"},
		{func() { put("tree.3", false); put("tree.3", false) }, "2 runs are active"},
		{func() { put("tree.1", true) }, "1 run is active"},
		{func() { put("tree.2", false) }, "2 runs are active"},
		{func() { b.applyRun("default/tree.3", nil) }, "1 run is active"},
		{func() { put("tree.2", true); b.applyRun("default/tree.2", nil); b.applyRun("default/tree.1", nil) }, "no run is active"},
	} {
		step.do()
		if got := st.Templates.Lines[k]; got != step.line {
			t.Errorf("got %q, want %q", got, step.line)
		}
	}
	if len(b.live) != 0 || b.active != 0 || len(b.runs) != 0 {
		t.Errorf("%v runs are counted, %d are active, %d are kept", b.live, b.active, len(b.runs))
	}
}

// TestSameRegionKeepsTheRulesOfAStep: same_region is no way around regions.allow.
func TestSameRegionKeepsTheRulesOfAStep(t *testing.T) {
	eu := map[string]string{"law": "eu"}
	allow := func(all ...*nusav1.RegionSelector) *nusav1.RegionsSpec { return &nusav1.RegionsSpec{Allow: all} }
	for _, c := range []struct {
		name       string
		job, group *nusav1.RegionsSpec
		want       string // what the job and the group may use; "": an error
	}{
		{"no rule", nil, nil, "[name:us] []"},
		{"the region", allow(&nusav1.RegionSelector{Name: "us"}), nil, "[name:us] []"},
		{"another region", allow(&nusav1.RegionSelector{Name: "berlin"}), nil, ""},
		{"labels", allow(&nusav1.RegionSelector{Labels: eu}), nil, "[name:us law:eu] []"},
		{"one of two", allow(&nusav1.RegionSelector{Name: "berlin"}, &nusav1.RegionSelector{Name: "us"}), nil, "[name:us] []"},
		{"a group's own rule", nil, allow(&nusav1.RegionSelector{Name: "berlin"}), ""},
		{"a group's own labels", nil, allow(&nusav1.RegionSelector{Labels: eu}), "[name:us] [name:us law:eu]"},
	} {
		spec := &nusav1.JobSpec{Regions: c.job, Groups: map[string]*nusav1.Group{"main": {Regions: c.group}}}
		text := func(r *nusav1.RegionsSpec) string {
			var out []string
			for _, s := range r.GetAllow() {
				out = append(out, "name:"+s.GetName())
				for k, v := range s.GetLabels() {
					out = append(out, k+":"+v)
				}
			}
			return fmt.Sprint(out)
		}
		err := pin(spec, "us")
		if got := text(spec.GetRegions()) + " " + text(spec.GetGroups()["main"].GetRegions()); err == nil && got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: %s, %v, want %s", c.name, got, err, c.want)
		}
	}
}
