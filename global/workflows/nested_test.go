package workflows

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/golden"
	"github.com/nusa-scheduler/nusa/job/steps"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// begin begins a run.
func (x *term) begin(name string, params map[string]string) (*nusav1.WorkflowRun, error) {
	r, err := x.flows.Run(context.Background(), &nusav1.RunWorkflowRequest{Job: &nusav1.JobRef{Namespace: "default", Name: name}, Parameters: params})
	synctest.Wait()
	return r, err
}

func (x *term) approve(run, step string, reject bool) error {
	_, err := x.flows.Approve(context.Background(), &nusav1.ApproveWorkflowRequest{Run: &nusav1.JobRef{Namespace: "default", Name: run}, Step: step, Reject: reject})
	synctest.Wait()
	return err
}

func (x *term) get(run string) *nusav1.WorkflowRunStatus {
	x.t.Helper()
	st, err := x.flows.Get(context.Background(), &nusav1.GetWorkflowRunRequest{Run: &nusav1.JobRef{Namespace: "default", Name: run}})
	if err != nil {
		x.t.Fatal(err)
	}
	return st
}

// tree describes a run with the runs inside it.
func (x *term) tree(run, indent string) string {
	st := x.get(run)
	var out strings.Builder
	word := func(s fmt.Stringer, prefix string) string {
		return strings.ToLower(strings.TrimPrefix(s.String(), prefix))
	}
	if indent == "" {
		indent = "  "
		fmt.Fprintf(&out, "%s%s%s\n", indent, word(st.GetRun().GetState(), "WORKFLOW_RUN_STATE_"), prefixed(": ", st.GetRun().GetMessage()))
	}
	for _, s := range st.GetSteps() {
		name := s.GetStep()
		if s.Index != nil {
			name += fmt.Sprintf("[%d]", s.GetIndex())
		}
		fmt.Fprintf(&out, "%s  %s %s %d%s\n", indent, name, word(s.GetState(), "STEP_STATE_"), s.GetAttempts(), prefixed(": ", s.GetMessage()))
		if s.GetRun() != "" {
			in := x.get(s.GetRun()).GetRun()
			for _, k := range slices.Sorted(maps.Keys(in.GetParameters())) {
				fmt.Fprintf(&out, "%s    %s=%s\n", indent, k, in.GetParameters()[k])
			}
			out.WriteString(x.tree(s.GetRun(), indent+"  "))
		}
	}
	return out.String()
}

// TestStoriesOfWorkflowsInsideOthers tells what becomes of steps that run another workflow.
func TestStoriesOfWorkflowsInsideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := elect(t, store.NewMemory())
		defer func() { x.stop() }()
		var out strings.Builder
		say := func(title, run string) {
			time.Sleep(time.Minute)
			synctest.Wait()
			fmt.Fprintf(&out, "%s\n%s", title, x.tree(run, ""))
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		x.submit("name: inner\nworkflow: {parameters: {day: {}, part: {default: all}}, steps: {look: {approval: true}, then: {depends: look.succeeded, approval: true}}}\n")
		x.submit("name: outer\nworkflow: {parameters: {day: {default: monday}, secret: {default: x}}, steps: {sub: {workflow: inner, retry: {limit: 1, backoff: 0s}}, last: {depends: sub.succeeded, approval: true}}}\n")
		x.submit("name: each\nworkflow: {parameters: {day: {default: monday}}, steps: {sub: {workflow: inner, foreach: {items: [eu, us], max_parallel: 1}, meta: {part: 'the ${item} of ${item_index}'}}}}\n")
		x.submit("name: deep\nworkflow: {steps: {top: {workflow: outer}}}\n")
		x.submit("name: inline\nworkflow: {parameters: {day: {default: monday}}, steps: {sub: {foreach: {items: [eu, us]}, meta: {part: '${item}'}, inline: {parameters: {size: {default: small}}, steps: {look: {approval: true, when: 'params.part == \"eu\"'}, more: {depends: look.succeeded, inline: {steps: {last: {workflow: inner}}}}}}}}}\n")
		r, err := x.begin("outer", nil)
		must(err)
		say("the step runs the other workflow, with the parameters that it knows", r.GetName())
		must(x.approve(r.GetName(), "sub/look", true))
		say("its run fails, and the step is tried again with a new run", r.GetName())
		must(x.approve(r.GetName(), "sub/look", false))
		must(x.approve(r.GetName(), "sub/then", true))
		say("the last attempt fails, too", r.GetName())
		retry := func(run, from string) error {
			_, err := x.flows.Retry(t.Context(), &nusav1.RetryWorkflowRequest{Run: &nusav1.JobRef{Namespace: "default", Name: run}, From: from})
			synctest.Wait()
			return err
		}
		in := x.get(r.GetName()).GetSteps()[0].GetRun()
		err = retry(in, "then")
		fmt.Fprintf(&out, "a retry of the inner run: %s\n", strings.NewReplacer(r.GetName(), "outer.RUN", in, "inner.RUN").Replace(status.Convert(err).Message()))
		must(retry(r.GetName(), "sub/then"))
		must(x.approve(r.GetName(), "sub/then", false))
		must(x.approve(r.GetName(), "last", false))
		say("a retry from a step of the inner run goes on with it", r.GetName())
		r, err = x.begin("each", nil)
		must(err)
		must(x.approve(r.GetName(), "sub[0]/look", false))
		must(x.approve(r.GetName(), "sub[0]/then", false))
		say("a run for each item", r.GetName())
		_, err = x.flows.Cancel(t.Context(), &nusav1.CancelWorkflowRequest{Run: &nusav1.JobRef{Namespace: "default", Name: r.GetName()}})
		must(err)
		say("a cancel reaches the runs inside", r.GetName())
		canceledSteps(x, &out, say)
		_, err = x.begin("deep", nil)
		must(err)
		r, err = x.begin("inline", map[string]string{"day": "friday"})
		must(err)
		must(x.approve(r.GetName(), "sub[0]/look", false))
		must(x.approve(r.GetName(), "sub[0]/more/last/look", true))
		say("an inline workflow has the parameters of the outer one", r.GetName())
		for name, text := range map[string]string{
			"unknown": "steps: {a: {workflow: none}}", "missing": "steps: {a: {workflow: inner}}",
			"typo": "steps: {a: {workflow: inner, meta: {day: x, dya: y}}}",
		} {
			x.submit("name: " + name + "\nworkflow: {" + text + "}\n")
		}
		x.submit("name: inner\nworkflow: {steps: {a: {workflow: outer}}}\n")
		for _, name := range []string{"unknown", "outer"} {
			_, err = x.begin(name, nil)
			fmt.Fprintf(&out, "run %s: %s\n", name, status.Convert(err).Message())
		}
		x.submit("name: inner\nworkflow: {parameters: {day: {}}, steps: {look: {approval: true}}}\n")
		for _, name := range []string{"missing", "typo"} {
			_, err = x.begin(name, nil)
			fmt.Fprintf(&out, "run %s: %s\n", name, status.Convert(err).Message())
		}
		golden.File(t, "testdata/nested.txt", out.String())
	})
}

// canceledSteps tells what becomes of the steps of a canceled run that had not begun.
func canceledSteps(x *term, out *strings.Builder, say func(title, run string)) {
	x.submit("name: exits\nworkflow: {steps: {a: {approval: true}, b: {depends: a.failed, approval: true}, c: {depends: b.succeeded, workflow: inner, meta: {day: x}, foreach: {items: [x, y]}}, bye: {workflow: inner, meta: {day: x}}}, on_exit: bye}\n")
	r, err := x.begin("exits", nil)
	ref := &nusav1.JobRef{Namespace: "default", Name: r.GetName()}
	must := func(err error) {
		x.t.Helper()
		if err != nil {
			x.t.Fatal(err)
		}
	}
	tell := func(title string) {
		x.t.Helper()
		say(title, ref.GetName())
		g, err := x.flows.Graph(x.t.Context(), &nusav1.GetWorkflowGraphRequest{Run: ref})
		must(err)
		fmt.Fprintf(out, "  %d of %d steps have ended; graph:", g.GetRun().GetStepsEnded(), g.GetRun().GetSteps())
		for _, s := range g.GetSteps() {
			fmt.Fprintf(out, " %s %s %d/%d", s.GetName(), strings.ToLower(strings.TrimPrefix(s.GetState().String(), "STEP_STATE_")), s.GetItemsEnded(), s.GetItems())
		}
		out.WriteString("\n")
	}
	cancel := func() {
		x.t.Helper()
		_, err := x.flows.Cancel(x.t.Context(), &nusav1.CancelWorkflowRequest{Run: ref})
		must(err)
	}
	must(err)
	must(x.approve(ref.GetName(), "a", true))
	cancel()
	tell("a canceled run has no pending steps, while on_exit runs")
	must(x.approve(ref.GetName(), "bye/look", true))
	tell("and after its end")
	_, err = x.flows.Retry(x.t.Context(), &nusav1.RetryWorkflowRequest{Run: ref, From: "a"})
	must(err)
	tell("a retry makes them pending again")
	cancel()
	time.Sleep(time.Minute)
	must(x.approve(ref.GetName(), "bye/look", true))
	tell("a canceled retry")
}

// TestApprovalOfAWrongStep: the error names the steps that wait for an approval.
func TestApprovalOfAWrongStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := elect(t, store.NewMemory())
		defer func() { x.stop() }()
		x.submit("name: inner\nworkflow: {steps: {look: {approval: true}}}\n")
		x.submit("name: outer\nworkflow: {steps: {sub: {workflow: inner}, gate: {approval: true}, door: {approval: true}, last: {depends: gate.succeeded, approval: true}}}\n")
		r, err := x.begin("outer", nil)
		if err != nil {
			t.Fatal(err)
		}
		refused := func(step, want string) {
			t.Helper()
			if err := x.approve(r.GetName(), step, false); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", step, err, want)
			}
		}
		refused("gaet", `has no step "gaet": those that wait are `)
		refused("last", "does not wait for an approval: those that wait are ")
		refused("gaet", "door")
		refused("gaet", "gate")
		refused("sub/then", `has no step "then": those that wait are look`)
		for _, step := range []string{"sub/look", "gate", "door", "last"} {
			if err := x.approve(r.GetName(), step, false); err != nil {
				t.Fatal(err)
			}
		}
		refused("gate", "does not wait for an approval: `nusa workflow status "+r.GetName()+"` shows its steps")
	})
}

// nest is a random workflow: a step without inner waits for an approval.
type nest struct {
	name  string
	steps []nestStep
}

type nestStep struct {
	inner   *nest
	inline  bool
	on      int // the step that it depends on; -1: none
	end     steps.End
	retries int
}

func randomNests(r *rand.Rand) []*nest {
	all := make([]*nest, 4)
	for k := range slices.Backward(all) {
		n := &nest{name: fmt.Sprintf("w%d", k)}
		for i := range 1 + r.IntN(3) {
			s := nestStep{on: r.IntN(i+1) - 1, end: []steps.End{steps.Succeeded, steps.Succeeded, steps.Failed, steps.Skipped}[r.IntN(4)]}
			if s.on >= 0 && s.end == steps.Skipped && n.steps[s.on].inner == nil && n.steps[s.on].on < 0 {
				s.end = steps.Succeeded // it would be a step that never starts
			}
			if k < len(all)-1 && r.IntN(2) == 0 {
				s.inner, s.retries, s.inline = all[k+1+r.IntN(len(all)-k-1)], r.IntN(2), r.IntN(3) == 0
			}
			n.steps = append(n.steps, s)
		}
		all[k] = n
	}
	return all
}

func (n *nest) text() string {
	return fmt.Sprintf("name: %s\nworkflow: %s\n", n.name, n.stepsText())
}

func (n *nest) stepsText() string {
	var b strings.Builder
	b.WriteString("{steps: {")
	for i, s := range n.steps {
		fmt.Fprintf(&b, "s%d: {", i)
		if s.on >= 0 {
			fmt.Fprintf(&b, "depends: s%d.%s || s%d.%s, ", s.on, s.end, s.on, steps.Succeeded)
		}
		switch {
		case s.inner == nil:
			b.WriteString("approval: true")
		case s.inline:
			b.WriteString("inline: " + s.inner.stepsText())
		default:
			b.WriteString("workflow: " + s.inner.name)
		}
		if s.retries > 0 {
			fmt.Fprintf(&b, ", retry: {limit: %d, backoff: 1s}", s.retries)
		}
		b.WriteString("}, ")
	}
	return b.String() + "}}"
}

// granted says how the approval of a step ends, by the path of the step with the attempts.
func granted(path string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(path))
	return h.Sum32()%3 > 0
}

// ends carries a run out without servers: it notes how each run ends, by its path, and returns whether it succeeds.
func (n *nest) ends(path string, runs map[string]bool) bool {
	of := make([]steps.End, len(n.steps))
	for i, s := range n.steps {
		if s.on >= 0 && of[s.on] != s.end && of[s.on] != steps.Succeeded {
			of[i] = steps.Skipped
			continue
		}
		of[i] = steps.Failed
		for try := 1; try <= 1+s.retries && of[i] == steps.Failed; try++ {
			at := fmt.Sprintf("%s/s%d.%d", path, i, try)
			if s.inner == nil && granted(at) || s.inner != nil && s.inner.ends(at, runs) {
				of[i] = steps.Succeeded
			}
		}
	}
	ok := true
	for i, end := range of {
		ok = ok && (end != steps.Failed || n.handles(i, of))
	}
	runs[path] = ok
	return ok
}

// handles reports whether a step that depends on another one was not skipped.
func (n *nest) handles(i int, of []steps.End) bool {
	for j, s := range n.steps {
		if s.on == i && of[j] != steps.Skipped {
			return true
		}
	}
	return false
}

// TestWorkflowsInsideOthersEndAsTheOracleSays: random workflows run inside each other, with retries. Approvals come in
// any order, and other servers become active in the middle. Each run must end as the oracle says, and no attempt
// may begin twice or be missing.
func TestWorkflowsInsideOthersEndAsTheOracleSays(t *testing.T) {
	t.Parallel()
	inside := 0
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) { inside += nestedRun(t, seed) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if inside < 100 {
		t.Errorf("%d runs inside others: the test sees too little", inside)
	}
}

func nestedRun(t *testing.T, seed uint64) int {
	r := rand.New(rand.NewPCG(seed, 7))
	nests := randomNests(r)
	want := map[string]bool{}
	nests[0].ends("", want)
	mem := store.NewMemory()
	x := elect(t, mem)
	defer func() { x.stop() }()
	for _, n := range slices.Backward(nests) {
		x.submit(n.text())
	}
	root, err := x.begin("w0", nil)
	if err != nil {
		t.Fatal(err)
	}
	for turn := 0; x.get(root.GetName()).GetRun().GetEnded() == nil; turn++ {
		if turn > 500 {
			t.Fatalf("the run does not end:\n%s", x.tree(root.GetName(), ""))
		}
		waiting := x.waiting(root.GetName(), "")
		if len(waiting) > 0 {
			w := waiting[r.IntN(len(waiting))]
			if err := x.approve(w.run, w.step, !granted(w.path)); err != nil {
				t.Fatal(err)
			}
		}
		if r.IntN(4) == 0 {
			x.stop()
			x = elect(t, mem)
		}
		time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
		synctest.Wait()
	}
	got := map[string]bool{}
	x.ended(root.GetName(), "", got)
	if fmt.Sprint(got) != fmt.Sprint(want) || len(x.book.runs) != len(want) {
		t.Errorf("%d runs ended as %v\nwant %v\n%s", len(x.book.runs), got, want, x.tree(root.GetName(), ""))
	}
	return len(want) - 1
}

// wait is a step that waits for an approval.
type wait struct{ run, step, path string }

// waiting returns the steps that wait for an approval, in a run and inside it.
func (x *term) waiting(run, path string) (out []wait) {
	for _, s := range x.get(run).GetSteps() {
		at := fmt.Sprintf("%s/%s.%d", path, s.GetStep(), max(1, s.GetAttempts()))
		if s.GetState() == nusav1.StepState_STEP_STATE_APPROVAL {
			out = append(out, wait{run, s.GetStep(), at})
		}
		if s.GetRun() != "" && s.GetState() == nusav1.StepState_STEP_STATE_RUNNING {
			out = append(out, x.waiting(s.GetRun(), at)...)
		}
	}
	return out
}

// ended notes how a run and all attempts inside it ended, by their paths.
func (x *term) ended(run, path string, out map[string]bool) {
	st := x.get(run)
	out[path] = st.GetRun().GetState() == nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_SUCCEEDED
	x.book.st.Lock()
	r := x.book.runs[state.JobKey{Namespace: "default", Name: run}]
	inner := map[string]string{}
	for _, s := range st.GetSteps() {
		i, _ := r.def.graph.Index(s.GetStep())
		for attempt := 1; r.inner(i) && attempt <= int(s.GetAttempts()); attempt++ {
			inner[fmt.Sprintf("%s/%s.%d", path, s.GetStep(), attempt)] = r.childName(i, 0, attempt)
		}
	}
	x.book.st.Unlock()
	for at, name := range inner {
		x.ended(name, at, out)
	}
}

// TestAnInnerRunIsForgottenWithItsOuterOne, and not before, whatever the history of its workflow says.
func TestAnInnerRunIsForgottenWithItsOuterOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := elect(t, store.NewMemory())
		defer func() { x.stop() }()
		x.submit("name: inner\nworkflow: {history: {age: 1m}, parameters: {go: {default: 'no'}}, steps: {a: {ref: x, when: 'params.go != \"no\"'}}}\n")
		x.submit("name: outer\nworkflow: {history: {age: 1h}, steps: {sub: {workflow: inner}}}\n")
		r, err := x.begin("outer", nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		in := x.get(r.GetName()).GetSteps()[0].GetRun()
		if st := x.get(in).GetRun(); st.GetParent() != r.GetName() || st.GetState() != nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_SUCCEEDED {
			t.Errorf("%v", st)
		}
		time.Sleep(40 * time.Minute)
		synctest.Wait()
		if _, err := x.flows.Get(t.Context(), &nusav1.GetWorkflowRunRequest{Run: &nusav1.JobRef{Name: in}}); status.Code(err) != codes.NotFound {
			t.Errorf("after the end of the outer run: %v", err)
		}
		if len(x.book.runs) != 0 || len(x.book.defs) != 0 || len(x.book.trees) != 0 || x.book.steps != 0 {
			t.Errorf("left: %d runs, %d definitions, %d trees, %d steps", len(x.book.runs), len(x.book.defs), len(x.book.trees), x.book.steps)
		}
	})
}

// TestRunsThatBeginTogetherAreCountedTogether: the bound of the items of a run also holds for runs inside it that
// begin in one transaction.
func TestRunsThatBeginTogetherAreCountedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := elect(t, store.NewMemory())
		defer func() { x.stop() }()
		text := "name: inner\nworkflow:\n  parameters: {list: {default: '[" + strings.TrimSuffix(strings.Repeat("\"x\",", 450), ",") + "]'}}\n  steps:\n    look: {approval: true}\n"
		for i := range 9 {
			text += fmt.Sprintf("    m%d: {depends: look.succeeded, ref: x, foreach: {parameter: list}}\n", i)
		}
		x.submit(text)
		x.submit("name: outer\nworkflow: {steps: {sub: {workflow: inner, foreach: {items: [a, b, c, d, e]}}}}\n")
		r, err := x.begin("outer", nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		x.book.st.Lock()
		n := x.book.runs[state.JobKey{Namespace: "default", Name: r.GetName()}].total()
		x.book.st.Unlock()
		if n != 5+2*4051 {
			t.Errorf("the run has %d items with those inside, want 5 and two times 4051", n)
		}
		if s := x.get(r.GetName()).GetSteps()[2]; s.GetState() != nusav1.StepState_STEP_STATE_FAILED || !strings.Contains(s.GetMessage(), "would have 12158 items of steps: at most 10000") {
			t.Errorf("the third: %v", s)
		}
	})
}
