package workflows

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/steps"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// fanOut is a run in which part runs once for each text in the output of list, and merge gets what they wrote.
func fanOut(t testing.TB) *run {
	t.Helper()
	spec := &nusav1.JobSpec{Name: "fan", Workflow: &nusav1.Workflow{Steps: map[string]*nusav1.Step{
		"list":  {Ref: "x"},
		"part":  {Ref: "x", Depends: "list.succeeded", Foreach: &nusav1.Foreach{Output: "list.files"}},
		"merge": {Ref: "x", Depends: "part.succeeded", Meta: map[string]string{"all": "${steps.part.output}"}},
	}}}
	job.Default(spec)
	if err := job.Validate(spec); err != nil {
		t.Fatal(err)
	}
	d, err := define(spec)
	if err != nil {
		t.Fatal(err)
	}
	return fresh(d, "fan.1")
}

// record is what a step or an item stores.
type record struct {
	step, item int
	rec        *nusav1.WorkflowStepRecord
}

// driveWith is drive, with what jobs write. It returns the records that it stored.
func driveWith(t testing.TB, r *run, write func(step string, item int) string) (out []record) {
	t.Helper()
	view := flow.View{Job: func(int, int) (steps.End, string) { return steps.Succeeded, "" }}
	for range 100 {
		p := flow.Decide(&r.snap, r.batch(), time.Unix(0, 0), view, planCost)
		for _, a := range p.Actions {
			next := &nusav1.WorkflowStepRecord{State: endStates[a.End], Round: r.rec.GetRound(), Message: a.Why}
			if a.Item >= 0 {
				next.Attempts = r.recs[a.Step][a.Item].GetAttempts()
			}
			switch a.Do {
			case flow.Start:
				next.State, next.Attempts = nusav1.StepState_STEP_STATE_RUNNING, next.GetAttempts()+1
			case flow.Finish:
				if a.Item >= 0 {
					next.Output = write(r.def.graph.Steps[a.Step].Name, a.Item)
				}
			case flow.Reset:
				next.State = nusav1.StepState_STEP_STATE_PENDING
				if r.whole[a.Step] != nil { // see Book.reset
					r.set(a.Step, wholeItem, nil)
					out = append(out, record{a.Step, wholeItem, nil})
				}
			}
			r.set(a.Step, a.Item, next)
			out = append(out, record{a.Step, a.Item, next})
		}
		r.touched.addAll(p.Left)
		if p.Changes {
			r.setRecord(&nusav1.WorkflowRunRecord{Run: &nusav1.WorkflowRun{Workflow: "fan", State: nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_RUNNING}, Round: r.rec.GetRound()})
		}
		if p.Ended {
			return out
		}
	}
	t.Fatal("the run does not end")
	return nil
}

// TestItemsAreTheOutputOfAStep: with each retry of the step that lists the items, their number follows its
// output. A later server, which reads the records in any order, knows the same.
func TestItemsAreTheOutputOfAStep(t *testing.T) {
	t.Parallel()
	r, stored := fanOut(t), map[[2]int]record{}
	list, _ := r.def.graph.Index("list")
	part, _ := r.def.graph.Index("part")
	merge, _ := r.def.graph.Index("merge")
	for round, files := range []string{`["a", "b", 3]`, `["x"]`, `["a", "b", "c", {"d": 1}]`, `[]`, `7`, `["z"]`} {
		if round > 0 {
			r.setRecord(&nusav1.WorkflowRunRecord{Run: &nusav1.WorkflowRun{Workflow: "fan", State: nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_RESETTING}, Round: int32(round), From: "list"})
		}
		for _, rec := range driveWith(t, r, func(step string, item int) string {
			if step == "list" {
				return `{"files": ` + files + `}`
			}
			return fmt.Sprintf("%s%d", step, item)
		}) {
			stored[[2]int{rec.step, rec.item}] = rec
		}
		want, _ := job.ItemsOfOutput(files)
		if strings.Join(r.items[part], " ") != strings.Join(want, " ") || r.size != 2+max(1, len(want)) {
			t.Fatalf("round %d: items %q of %s, %d in all", round, r.items[part], files, r.size)
		}
		if bad := files == "7"; bad != (r.snap.Steps[part].End == steps.Failed) || r.snap.Steps[merge].End == steps.Succeeded == bad {
			t.Fatalf("round %d: part %s, merge %s", round, r.snap.Steps[part].End, r.snap.Steps[merge].End)
		}
		if len(want) > 0 {
			values := map[string]string{"all": "${steps.part.output}", "first": "<${steps.list.output.files}>"}
			if err := r.expand(values); err != nil || strings.Count(values["all"], "part") != len(want) || values["first"] != "<"+files+">" {
				t.Fatalf("round %d: %q, %v", round, values, err)
			}
		}
	}
	if n := r.recs[part][0].GetAttempts(); n != 4 {
		t.Errorf("the first item has %d attempts, not one for each list that is not empty", n)
	}
	for seed := range uint64(20) {
		later, all := fresh(r.def, "fan.1"), []record{}
		for _, rec := range stored {
			if rec.rec != nil {
				all = append(all, rec)
			}
		}
		rnd := rand.New(rand.NewPCG(seed, 1))
		rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		later.setRecord(r.rec)
		for _, rec := range all {
			if rec.item < 0 || later.hasRoom(rec.step, rec.item) {
				later.set(rec.step, rec.item, rec.rec)
			}
		}
		if !reflect.DeepEqual(later.snap.Steps[list].End, r.snap.Steps[list].End) || later.size != r.size || later.ended != r.ended || later.snap.Open != r.snap.Open ||
			fmt.Sprint(later.snap.Steps[part].Items) != fmt.Sprint(r.snap.Steps[part].Items) {
			t.Fatalf("seed %d: a later server knows %+v, want %+v", seed, later.snap.Steps, r.snap.Steps)
		}
	}
}

// TestMissingOutputs: the reason names the step and what it lacks.
func TestMissingOutputs(t *testing.T) {
	t.Parallel()
	r := fanOut(t)
	list, _ := r.def.graph.Index("list")
	expect := func(want string) {
		t.Helper()
		err := r.expand(map[string]string{"v": "${steps.list.output.files}"})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	end := func(s nusav1.StepState, output string) {
		r.set(list, 0, &nusav1.WorkflowStepRecord{State: s, Output: output, Attempts: 1})
	}
	expect("which has not ended")
	end(nusav1.StepState_STEP_STATE_FAILED, "")
	expect("which has none: it failed")
	end(nusav1.StepState_STEP_STATE_SUCCEEDED, "")
	expect("it wrote none to $NUSA_OUTPUT")
	end(nusav1.StepState_STEP_STATE_SUCCEEDED, "x")
	expect("no JSON object")
	end(nusav1.StepState_STEP_STATE_SUCCEEDED, `{"file": 1}`)
	expect("has no key files")
	end(nusav1.StepState_STEP_STATE_SUCCEEDED, `{"files": "${NUSA_X}"}`)
	expect("${NUSA_")
	if r.bytes == 0 {
		t.Error("the bytes of outputs are not counted")
	}
	b := &Book{runs: map[state.JobKey]*run{r.key: r}, outputs: map[state.JobKey][]output{}}
	applyOutput(b, "default/fan.1--list/main/0", &nusav1.WorkflowOutputRecord{Group: "main", Output: "x"})
	if got := unclaimed(b); len(got) != 1 {
		t.Errorf("the output of an attempt that has ended: %q is to be removed", got)
	}
	applyOutput(b, "default/fan.1--list/main/0", nil)
	if len(b.outputs) != 0 {
		t.Error("a removed output is known")
	}
}
