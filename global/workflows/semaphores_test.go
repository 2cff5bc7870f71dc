package workflows

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const licensed = `
name: sim
labels: {team: sea}
workflow:
  steps:
    a:
      semaphores: [{name: licenses}]
      groups: {main: {tasks: {main: {driver: process, config: {command: sleep}}}}}
    b:
      depends: a.succeeded
      semaphores: [{name: licenses, units: 2}]
      groups: {main: {tasks: {main: {driver: process, config: {command: sleep}}}}}
`

// lab is a term whose runs the test carries out.
type lab struct {
	*testing.T
	runs *Service
	sems *Semaphores
	b    *Book
}

// start begins a run.
func (l *lab) start(key string) *run {
	l.Helper()
	out, err := l.runs.Run(l.Context(), &nusav1.RunWorkflowRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "sim"}, IdempotencyKey: key})
	if err != nil {
		l.Fatal(err)
	}
	l.b.st.Lock()
	defer l.b.st.Unlock()
	return l.b.runs[state.JobKey{Namespace: "default", Name: out.GetName()}]
}

// decide decides until nothing is left to decide.
func (l *lab) decide() {
	l.Helper()
	for range 5 {
		for _, r := range l.b.look(time.Now().Add(time.Millisecond)) {
			if err := l.b.advance(l.Context(), r); err != nil {
				l.Fatal(err)
			}
		}
	}
}

// end stores that a step has succeeded.
func (l *lab) end(r *run, step string) {
	l.Helper()
	i, _ := r.def.graph.Index(step)
	_, err := l.b.term.Commit.Do(l.Context(), func(t *state.Tx) error {
		next := proto.CloneOf(r.recs[i][0])
		next.State, next.Ended = nusav1.StepState_STEP_STATE_SUCCEEDED, timestamppb.Now()
		return state.PutOther(t, r.stepKey(i, 0, false), next)
	})
	if err != nil {
		l.Fatal(err)
	}
}

func (l *lab) set(units int32) {
	l.Helper()
	if _, err := l.sems.Set(l.Context(), &nusav1.SetSemaphoreRequest{Name: "licenses", Units: units}); err != nil {
		l.Fatal(err)
	}
}

// want compares who holds the semaphore, and who waits for it, in order.
func (l *lab) want(holding, waiting string) {
	l.Helper()
	got, err := l.sems.Get(l.Context(), &nusav1.GetSemaphoreRequest{Name: "licenses"})
	if err != nil {
		l.Fatal(err)
	}
	text := func(all []*nusav1.SemaphoreStep) string {
		var out []string
		for _, s := range all {
			for name, key := range map[string]string{"1": "one", "2": "two", "3": "three", "4": "four"} {
				if s.GetRun() == "sim."+runID(key) {
					out = append(out, s.GetStep()+name)
				}
			}
		}
		return strings.Join(out, " ")
	}
	if h, w := text(got.GetHolding()), text(got.GetWaiting()); h != holding || w != waiting {
		l.Errorf("%q hold it, %q wait, want %q and %q", h, w, holding, waiting)
	}
	if int(got.GetHolders()) != len(got.GetHolding()) || int(got.GetWaiters()) != len(got.GetWaiting()) {
		l.Errorf("counts of %v", got)
	}
}

// lists compares the number of runs and of semaphores that lists with filters have.
func (l *lab) lists(what string, runs *nusav1.ListWorkflowRunsRequest, want int) {
	l.Helper()
	if out, err := l.runs.List(l.Context(), runs); err != nil || len(out.GetRuns()) != want {
		l.Errorf("%s: %v, %v, want %d runs", what, out, err, want)
	}
}

func newLab(t *testing.T) *lab {
	s, b := newService(t, licensed)
	b.st.Lock()
	b.st.GlobalLevel = state.StepNeedsLevel
	b.st.Unlock()
	return &lab{t, s, &Semaphores{Current: s.Current}, b}
}

// TestSemaphores: steps of three runs share a semaphore. The oldest gets it first, a later one does not overtake one
// that needs more, a run that is canceled leaves, and a semaphore that shrinks takes nothing from those that hold it.
func TestSemaphores(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.set(2)
	one, two, three := l.start("one"), l.start("two"), l.start("three")
	l.decide()
	l.want("a1 a2", "a3")
	running, canceled := nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_RUNNING, nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_CANCELED
	l.lists("running", &nusav1.ListWorkflowRunsRequest{States: []nusav1.WorkflowRunState{canceled, running}}, 3)
	l.lists("canceled", &nusav1.ListWorkflowRunsRequest{States: []nusav1.WorkflowRunState{canceled}}, 0)
	l.lists("either field", &nusav1.ListWorkflowRunsRequest{State: running, States: []nusav1.WorkflowRunState{canceled}}, 3)
	l.lists("labels", &nusav1.ListWorkflowRunsRequest{Labels: map[string]string{"team": "sea"}}, 3)
	l.lists("other labels", &nusav1.ListWorkflowRunsRequest{Labels: map[string]string{"team": "land"}}, 0)
	for states, want := range map[string]int{"free": 0, "full": 1, "free waiting": 1, "": 1} {
		out, err := l.sems.List(l.Context(), &nusav1.ListSemaphoresRequest{States: strings.Fields(states)})
		if err != nil || len(out.GetSemaphores()) != want {
			t.Errorf("semaphores, states %q: %v, %v", states, out, err)
		}
	}
	l.end(one, "a")
	l.decide()
	l.want("a2 a3", "b1")
	l.end(three, "a")
	l.decide() // b1 needs 2 units, and is older than b3
	l.want("a2", "b1 b3")
	st, err := l.runs.Get(l.Context(), &nusav1.GetWorkflowRunRequest{Run: &nusav1.JobRef{Namespace: "default", Name: one.key.Name}, Step: "b"})
	if err != nil || st.GetSteps()[0].GetMessage() != "waits for 2 of semaphore licenses: 1 of 2 units are held" {
		t.Errorf("the status of b: %v, %v", st, err)
	}
	if _, err := l.sems.Remove(l.Context(), &nusav1.RemoveSemaphoreRequest{Name: "licenses"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("remove a semaphore that is held: %v", err)
	}
	l.set(1) // b1 and b3 need 2: they stand in nobody's way
	l.start("four")
	l.decide()
	l.want("a2", "b1 b3 a4")
	if _, err := l.runs.Cancel(l.Context(), &nusav1.CancelWorkflowRequest{Run: &nusav1.JobRef{Namespace: "default", Name: one.key.Name}}); err != nil {
		t.Fatal(err)
	}
	l.decide()
	l.want("a2", "b3 a4")
	l.end(two, "a")
	l.decide()
	l.want("a4", "b3 b2")
}

// TestANewTermKnowsWhoHolds: a new active server knows from the records who holds what, and lets the others wait in
// the same order.
func TestANewTermKnowsWhoHolds(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.set(1)
	l.start("one")
	l.start("two")
	l.start("three")
	l.decide()
	l.want("a1", "a2 a3")
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	if err := st.Load(t.Context(), l.b.term.Store); err != nil {
		t.Fatal(err)
	}
	st.GlobalLevel = state.StepNeedsLevel
	next := New(api.NewTerm(api.TermConfig{Context: t.Context(), State: st, Store: l.b.term.Store, Commit: l.b.term.Commit, Log: l.b.term.Log}), l.b.schedules)
	if err := next.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(next.ready)
	l.b = next
	l.sems.Current = func() *Book { return next }
	l.want("a1", "")
	for _, r := range next.look(time.Now().Add(time.Millisecond)) {
		st.Lock()
		batch := r.batch()
		p := next.planOf(r, batch, time.Now(), "")
		queueWaits(next, r, batch, &p, nil)
		st.Unlock()
	}
	l.want("a1", "a2 a3")
}

// TestDataOfAStep: the job of a step prefers regions close to the one that has the data of a former step.
func TestDataOfAStep(t *testing.T) {
	t.Parallel()
	s, b := newService(t, strings.ReplaceAll(licensed, "semaphores: [{name: licenses, units: 2}]", "data: {from: a, size: 50GiB}"))
	l := &lab{t, s, &Semaphores{Current: s.Current}, b}
	b.st.Lock()
	b.st.GlobalLevel = state.StepNeedsLevel
	b.st.Unlock()
	l.set(1)
	r := l.start("one")
	l.decide()
	at, _ := r.def.graph.Index("b")
	b.st.Lock()
	if near := dataOf(b, r, at); near != nil {
		t.Errorf("before step a has a region: %v", near)
	}
	b.st.Unlock()
	ranIn := func(attempt int, at string) {
		t.Helper()
		k := r.childKey(0, 0, attempt)
		_, err := b.term.Commit.Do(t.Context(), func(t *state.Tx) error {
			return t.ChangeSlots([]region.Change{{Slot: region.Slot{Namespace: k.Namespace, Job: k.Name, Group: "main", To: 1, Region: at, State: region.Done, Desired: region.DesiredRun}}})
		})
		if err != nil {
			t.Fatal(err)
		}
		l.end(r, "a")
		l.decide()
		b.st.Lock()
		defer b.st.Unlock()
		near := b.st.Jobs[r.childKey(1, 0, attempt)].Record.Spec().GetRegions().GetNear()
		if len(near) != 1 || near[0].GetSelector().GetName() != at || near[0].GetDataBytes() != 50<<30 || near[0].GetWeight() != dataWeight {
			t.Errorf("after step a ran in %s, the job of b is near %v", at, near)
		}
	}
	ranIn(1, "oslo")
	l.end(r, "b")
	l.decide()
	if _, err := l.runs.Retry(t.Context(), &nusav1.RetryWorkflowRequest{Run: &nusav1.JobRef{Namespace: "default", Name: r.key.Name}, From: "a"}); err != nil {
		t.Fatal(err)
	}
	l.decide()
	ranIn(2, "rome")
}

// TestAStepThatWaitsForASemaphoreStandsInNobodysWay: of the steps that wait for room in their run, the next one starts
// if the first cannot.
func TestAStepThatWaitsForASemaphoreStandsInNobodysWay(t *testing.T) {
	t.Parallel()
	groups := "groups: {main: {tasks: {main: {driver: process, config: {command: sleep}}}}}"
	s, b := newService(t, "name: sim\nworkflow: {max_parallel: 1, steps: {a: {"+groups+"}, b: {semaphores: [{name: none}], "+groups+"}, c: {"+groups+"}}}\n")
	l := &lab{t, s, &Semaphores{Current: s.Current}, b}
	r := l.start("one")
	l.decide()
	l.end(r, "a")
	l.decide()
	b.st.Lock()
	defer b.st.Unlock()
	if state := r.recs[2][0].GetState(); state != nusav1.StepState_STEP_STATE_RUNNING {
		t.Errorf("step c is %s", state)
	}
}

// TestJobsOfStepsLeaveTheirWorkflowAsItIs: the rule about the data of a step is for one job. It must not stay in the
// workflow, which all runs of the version share.
func TestJobsOfStepsLeaveTheirWorkflowAsItIs(t *testing.T) {
	t.Parallel()
	_, b := newService(t, "name: work\nparameterized: {}\ngroups: {main: {tasks: {main: {driver: process, config: {command: sleep}}}}}\n")
	b.st.Lock()
	ref := b.st.Jobs[state.JobKey{Namespace: "default", Name: "work"}].Record
	b.st.Unlock()
	spec, err := job.Parse([]byte("name: sim\nworkflow: {steps: {a: {ref: work, regions: {allow: [{name: oslo}, {name: rome}]}}}}\n"), "job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	d, err := define(spec)
	if err != nil {
		t.Fatal(err)
	}
	before := proto.CloneOf(spec)
	weight := int32(dataWeight)
	_, err = childOf(d, ask{
		name: "sim.1.a", step: "a", ref: ref, values: map[string]string{}, began: &nusav1.WorkflowRun{Began: timestamppb.Now()},
		data: &nusav1.Near{Selector: &nusav1.RegionSelector{Name: "rome"}, Weight: &weight},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(spec, before) {
		t.Errorf("the job of a step has changed its workflow to %v", spec)
	}
}

// TestPlanOfLargeStepsFits: the plan of a run fits into a transaction, also if its steps have many groups.
func TestPlanOfLargeStepsFits(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("name: sim\nworkflow:\n  steps:\n")
	for i := range 30 {
		fmt.Fprintf(&text, "    s%d:\n      groups:\n", i)
		for g := range 12 {
			fmt.Fprintf(&text, "        g%d: {tasks: {main: {driver: process, config: {command: sleep}}}}\n", g)
		}
	}
	s, b := newService(t, text.String())
	l := &lab{t, s, &Semaphores{Current: s.Current}, b}
	b.st.Lock()
	b.st.GlobalLevel = state.StepNeedsLevel
	b.st.Unlock()
	r := l.start("one")
	l.decide()
	if n := len(r.jobs); n != 30 {
		t.Errorf("%d of 30 steps have begun", n)
	}
}
