package sim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// workflows makes calls about runs of workflows to the active global server.
type workflows struct{ schedules }

func (w workflows) do(call func(context.Context, nusav1.WorkflowsClient) error) error {
	return w.call(func(ctx context.Context, c *grpc.ClientConn) error { return call(ctx, nusav1.NewWorkflowsClient(c)) })
}

// begin submits a workflow and begins a run.
func (w workflows) begin(text string, params map[string]string) *nusav1.JobRef {
	w.t.Helper()
	spec, err := job.Parse([]byte(text), "")
	if err != nil {
		w.t.Fatal(err)
	}
	w.submit(spec)
	var r *nusav1.WorkflowRun
	err = w.do(func(ctx context.Context, c nusav1.WorkflowsClient) error {
		r, err = c.Run(ctx, &nusav1.RunWorkflowRequest{Job: &nusav1.JobRef{Name: spec.GetName()}, Parameters: params})
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return &nusav1.JobRef{Namespace: r.GetNamespace(), Name: r.GetName()}
}

func (w workflows) status(ref *nusav1.JobRef) (out *nusav1.WorkflowRunStatus, err error) {
	err = w.do(func(ctx context.Context, c nusav1.WorkflowsClient) error {
		out, err = c.Get(ctx, &nusav1.GetWorkflowRunRequest{Run: ref})
		return err
	})
	return out, err
}

// await waits until a run is in a state.
func (w workflows) await(ref *nusav1.JobRef, want nusav1.WorkflowRunState) (out *nusav1.WorkflowRunStatus) {
	w.t.Helper()
	w.f.Eventually(20*time.Minute, ref.GetName()+" is "+want.String(), func(context.Context) (err error) {
		if out, err = w.status(ref); err == nil && out.GetRun().GetState() != want {
			err = fmt.Errorf("%v", out)
		}
		return err
	})
	return out
}

// ends lists the steps of a run with their ends and attempts, in their order.
func ends(st *nusav1.WorkflowRunStatus) string {
	var out []string
	for _, s := range st.GetSteps() {
		name := s.GetStep()
		if s.Index != nil {
			name += fmt.Sprintf("[%d]", s.GetIndex())
		}
		out = append(out, fmt.Sprintf("%s %s %d", name, strings.ToLower(strings.TrimPrefix(s.GetState().String(), "STEP_STATE_")), s.GetAttempts()))
	}
	return strings.Join(out, ", ")
}

// work is the groups of a step that takes a time and exits with a code.
func work(takes string, code int) string {
	return fmt.Sprintf("groups: {main: {reschedule: {attempts: 0}, tasks: {main: {driver: process, restart: {attempts: 0}, config: {command: x}, env: {SIM_RUN_TIME: %s, SIM_EXIT_CODE: '%d'}}}}}", takes, code)
}

// TestNoStepTwiceAndNoneLostOverElections: while the active global server is killed again and again, each step
// of several runs has one job, which begins after the end of those on which it depends.
func TestNoStepTwiceAndNoneLostOverElections(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha", "beta"}, Agents: 2, Globals: 3}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		w := workflows{schedules{t, f}}
		text := "name: chain\nworkflow:\n  steps:\n    s0: {" + work("3s", 0) + "}\n"
		for i := range 12 {
			text += fmt.Sprintf("    s%d: {depends: s%d.succeeded && !s0.failed, %s}\n", i+1, i/2, work("7s", 0))
			text += fmt.Sprintf("    c%d: {depends: s%d.succeeded, %s}\n", i, i, work("5s", 0))
		}
		text += "    part: {depends: c3.succeeded, foreach: {items: [a, b, c, d, e], max_parallel: 2}, " + work("4s", 0) + "}\n"
		text += "    never: {depends: c3.failed, " + work("4s", 0) + "}\n    last: {depends: part.succeeded && never.skipped, " + work("1s", 0) + "}\n"
		var runs []*nusav1.JobRef
		for range 3 {
			runs = append(runs, w.begin(text, nil))
		}
		for range 3 {
			time.Sleep(9 * time.Second)
			restartActive(f)
		}
		for _, ref := range runs {
			st := w.await(ref, nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_SUCCEEDED)
			end := map[string]time.Time{}
			for _, s := range st.GetSteps() {
				if at := s.GetEnded().AsTime(); at.After(end[s.GetStep()]) {
					end[s.GetStep()] = at
				}
				if want := map[bool]int32{true: 0, false: 1}[s.GetStep() == "never"]; s.GetAttempts() != want {
					t.Errorf("%s: %d attempts: %v", s.GetStep(), s.GetAttempts(), s)
				}
			}
			for _, s := range st.GetSteps() {
				switch {
				case s.GetStep()[0] == 'c' && s.GetBegan().AsTime().Before(end["s"+s.GetStep()[1:]]), s.GetStep() == "last" && s.GetBegan().AsTime().Before(end["part"]):
					t.Errorf("%s began before the end of that on which it depends", s.GetStep())
				}
			}
		}
		begun := 0
		for instance, n := range f.Begun() {
			if strings.HasPrefix(instance.Job, "chain.") || strings.Contains(instance.Job, "/chain.") {
				if begun++; n != 1 {
					t.Errorf("%v ran %d times", instance, n)
				}
			}
		}
		if want := 3 * (1 + 12 + 12 + 5 + 1); begun != want {
			t.Errorf("%d jobs ran, want %d", begun, want)
		}
	})
}

// TestLifeOfAWorkflow: retry, timeout, when, approval, on_exit, cancel, retry from a step, a lost job, and
// same_region.
func TestLifeOfAWorkflow(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha", "beta"}, Agents: 2}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		w := workflows{schedules{t, f}}
		check := func(st *nusav1.WorkflowRunStatus, want string) {
			t.Helper()
			if got := ends(st); got != want {
				t.Errorf("the steps are\n%s, want\n%s\n%v", got, want, st)
			}
		}
		fails := w.begin("name: fails\nworkflow:\n  parameters: {size: {}}\n  on_exit: clean\n  steps:\n"+
			"    try: {retry: {limit: 2, backoff: 5s}, "+work("2s", 1)+"}\n    slow: {timeout: 5s, "+work("10m", 0)+"}\n    then: {depends: try.succeeded, "+work("1s", 0)+"}\n"+
			"    small: {when: int(params.size) < 10, "+work("1s", 0)+"}\n    wrong: {when: int(params.size + 'x') < 10, "+work("1s", 0)+"}\n    clean: {"+work("1s", 0)+"}\n",
			map[string]string{"size": "12"})
		st := w.await(fails, nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_FAILED)
		check(st, "clean succeeded 1, slow timed_out 1, small skipped 0, try failed 3, then skipped 0, wrong failed 0")
		if took := st.GetRun().GetEnded().AsTime().Sub(st.GetRun().GetBegan().AsTime()); took < 20*time.Second || took > time.Minute {
			t.Errorf("it took %s: three attempts of 2s and pauses of 5s and 10s", took)
		}

		gated := w.begin("name: gated\nworkflow:\n  same_region: true\n  on_exit: clean\n  steps:\n"+
			"    a: {"+work("1s", 0)+"}\n    b: {"+work("1s", 0)+"}\n    gate: {depends: a.succeeded, approval: true}\n    long: {depends: gate.succeeded, "+work("10m", 0)+"}\n    clean: {"+work("1s", 0)+"}\n", nil)
		f.Eventually(time.Minute, "the gate waits", func(context.Context) error {
			if st, err := w.status(gated); err != nil || !strings.Contains(ends(st), "gate approval 0") {
				return fmt.Errorf("%v, %w", st, err)
			}
			return nil
		})
		approve := func(step string) error {
			return w.do(func(ctx context.Context, c nusav1.WorkflowsClient) error {
				_, err := c.Approve(ctx, &nusav1.ApproveWorkflowRequest{Run: gated, Step: step, Reason: "tests"})
				return err
			})
		}
		if err := approve("long"); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("approve a step that waits for none: %v", err)
		}
		if err := approve("gate"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		retry := func(ref *nusav1.JobRef, from string) error {
			return w.do(func(ctx context.Context, c nusav1.WorkflowsClient) error {
				_, err := c.Retry(ctx, &nusav1.RetryWorkflowRequest{Run: ref, From: from})
				return err
			})
		}
		if err := retry(gated, "a"); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("retry of a run that has not ended: %v", err)
		}
		if err := w.do(func(ctx context.Context, c nusav1.WorkflowsClient) error {
			_, err := c.Cancel(ctx, &nusav1.CancelWorkflowRequest{Run: gated})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		st = w.await(gated, nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_CANCELED)
		check(st, "a succeeded 1, b succeeded 1, clean succeeded 1, gate succeeded 0, long canceled 1")
		for _, s := range st.GetSteps() {
			if s.GetJob() == "" {
				continue
			}
			if owners, err := f.Owners(t.Context(), s.GetJob(), "main"); err == nil && len(owners) > 0 && owners[0] != st.GetRun().GetRegion() {
				t.Errorf("%s ran in %v, not in %s", s.GetJob(), owners, st.GetRun().GetRegion())
			}
		}
		if err := retry(gated, "long"); err != nil {
			t.Fatal(err)
		}
		st = w.await(gated, nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_SUCCEEDED)
		check(st, "a succeeded 1, b succeeded 1, clean succeeded 2, gate succeeded 0, long succeeded 2")

		l := letters(w)
		before := l.list(fails.GetName() + "--try--r3")
		if len(before) != 1 || before[0].GetState() != nusav1.DeadLetterState_DEAD_LETTER_STATE_OPEN {
			t.Fatalf("the failed step has left %v", before)
		}
		if err := retry(fails, "try"); err != nil {
			t.Fatal(err)
		}
		w.await(fails, nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_FAILED)
		time.Sleep(time.Minute)
		after, again := l.get(before[0].GetId()), l.list(fails.GetName()+"--try--r6")
		if after.GetState() != nusav1.DeadLetterState_DEAD_LETTER_STATE_REDRIVEN || after.GetRedrivenAs() == "" || len(again) != 1 ||
			again[0].GetState() != nusav1.DeadLetterState_DEAD_LETTER_STATE_OPEN {
			t.Errorf("after a retry, the dead letter is %v; the last attempt has left %v", after, again)
		}
	})
}
