package workflows

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/schedules"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/steps"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// pinned is a workflow that a run contains, as it was stored when the outermost run began.
type pinned struct {
	id  string
	def *definition
}

// contained returns the other workflows that a workflow contains, by name. The error names the wrong one.
func contained(b *Book, k state.JobKey, spec *nusav1.JobSpec) (map[string]pinned, error) {
	bytes := proto.Size(spec)
	specs, err := job.Contained(spec, func(name string) (*nusav1.JobSpec, error) {
		_, inner, err := b.workflow(state.JobKey{Namespace: k.Namespace, Name: name})
		if err != nil {
			return nil, err
		}
		if bytes += proto.Size(inner); bytes > job.MaxSize {
			return nil, fmt.Errorf("it has %d bytes with the workflows that it contains, at most %d are allowed", bytes, job.MaxSize)
		}
		return inner, nil
	})
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "workflow %s cannot run: %s", k, status.Convert(err).Message())
	}
	out := map[string]pinned{}
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		if err := checkPassed(specs, name); err != nil {
			return nil, err
		}
		if name == k.Name || strings.Contains(name, "/") {
			continue // it has the version of k, or of the workflow in which it is inline
		}
		p := pinned{id: specID(specs[name])}
		if p.def, err = b.definition(k.Namespace, p.id, specs[name]); err != nil {
			return nil, status.Error(codes.FailedPrecondition, err.Error())
		}
		out[name] = p
	}
	return out, nil
}

// checkPassed refuses steps that give another workflow what it does not know, or not what it needs.
func checkPassed(specs map[string]*nusav1.JobSpec, outer string) error {
	w := specs[outer].GetWorkflow()
	for _, name := range slices.Sorted(maps.Keys(w.GetSteps())) {
		s := w.GetSteps()[name]
		if s.GetWorkflow() == "" {
			continue
		}
		known := specs[s.GetWorkflow()].GetWorkflow().GetParameters()
		takes := specs[s.GetWorkflow()].GetParameterized()
		switch {
		case s.GetPayload() && (takes == nil || takes.GetPayload() == nusav1.Payload_PAYLOAD_FORBIDDEN):
			return status.Errorf(codes.FailedPrecondition, "step %s of workflow %s gives the payload to workflow %s, which takes none", name, outer, s.GetWorkflow())
		case !s.GetPayload() && takes.GetPayload() == nusav1.Payload_PAYLOAD_REQUIRED:
			return status.Errorf(codes.FailedPrecondition, "step %s of workflow %s gives no payload to workflow %s, which requires one: let the step have payload: true", name, outer, s.GetWorkflow())
		}
		for _, k := range slices.Sorted(maps.Keys(s.GetMeta())) {
			if known[k] == nil {
				return status.Errorf(codes.FailedPrecondition, "step %s of workflow %s gives %s to workflow %s, which has no such parameter", name, outer, k, s.GetWorkflow())
			}
		}
		for _, k := range slices.Sorted(maps.Keys(known)) {
			if _, given := s.GetMeta()[k]; known[k].Default == nil && !given && w.GetParameters()[k] == nil {
				return status.Errorf(codes.FailedPrecondition, "step %s of workflow %s does not give %s to workflow %s, which needs it: add it to meta", name, outer, k, s.GetWorkflow())
			}
		}
	}
	return nil
}

// inner reports whether a step runs another workflow.
func (r *run) inner(i int) bool {
	return r.def.steps[i].GetWorkflow() != "" || r.def.inline[i] != nil
}

// innerOf returns the name of the workflow that a step runs. Empty: none.
func (r *run) innerOf(i int) string {
	if r.def.inline[i] != nil {
		return job.InlineName(r.rec.GetRun().GetWorkflow(), r.def.graph.Steps[i].Name)
	}
	return r.def.steps[i].GetWorkflow()
}

// innerName returns the name of the run of an attempt of a step that runs another workflow.
func (r *run) innerName(i, item, attempt int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d\x00%d", r.key.Name, r.def.graph.Steps[i].Name, item, attempt))
	of := r.def.steps[i].GetWorkflow()
	if r.def.inline[i] != nil {
		of = r.def.spec.GetName()
	}
	return of + string(job.RunMark) + "s" + hex.EncodeToString(sum[:6])
}

// innerRun returns the run of the latest attempt of an item, or nil. The lock is held.
func innerRun(b *Book, r *run, i, item int) *run {
	return b.runs[r.childKey(i, item, int(r.recs[i][item].GetAttempts()))]
}

// outerOf returns the run whose step began a run, or nil. The lock is held.
func outerOf(b *Book, r *run) *run {
	name := r.rec.GetRun().GetParent()
	if name == "" {
		return nil
	}
	return b.runs[state.JobKey{Namespace: r.key.Namespace, Name: name}]
}

// rootKey returns the key of the outermost run.
func rootKey(namespace string, r *nusav1.WorkflowRunRecord, own state.JobKey) state.JobKey {
	if r.GetRoot() == "" {
		return own
	}
	return state.JobKey{Namespace: namespace, Name: r.GetRoot()}
}

// attemptIn returns which attempt of the outer run a run is. The lock is held.
func attemptIn(b *Book, outer, r *run) (i, item, attempt int, ok bool) {
	i, ok = outer.def.graph.Index(r.rec.GetRun().GetParentStep())
	if !ok {
		return 0, 0, 0, false
	}
	if at, active := outer.jobs[r.key.Name]; active {
		return at[0], at[1], int(outer.recs[at[0]][at[1]].GetAttempts()), true
	}
	for item, rec := range outer.recs[i] {
		for attempt := int(rec.GetAttempts()); attempt > 0; attempt-- {
			if outer.innerName(i, item, attempt) == r.key.Name {
				return i, item, attempt, true
			}
		}
	}
	return 0, 0, 0, false
}

// innerResult returns how the run of an item ended, and a text about it. The lock is held.
func innerResult(b *Book, r *run, i, item int) (steps.End, string) {
	in := innerRun(b, r, i, item)
	switch {
	case in == nil:
		return steps.Lost, "its run was removed"
	case in.live():
		return steps.None, ""
	}
	why := in.rec.GetRun().GetMessage()
	switch in.rec.GetRun().GetState() {
	case nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_SUCCEEDED:
		if _, _, err := in.written(); err != nil {
			return steps.Failed, "its run has no output: " + status.Convert(err).Message()
		}
		return steps.Succeeded, ""
	case nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_CANCELED:
		return steps.Failed, "its run was canceled" + prefixed(" ", why)
	}
	return steps.Failed, why
}

// passed returns the parameters of the run of an item.
func (r *run) passed(i, item int, known map[string]*nusav1.WorkflowParameter) (map[string]string, error) {
	given := map[string]string{}
	for k, v := range r.params {
		if known[k] != nil {
			given[k] = v
		}
	}
	text, index := "", ""
	if r.items[i] != nil {
		text, index = r.items[i][item], strconv.Itoa(item)
	}
	for _, k := range slices.Sorted(maps.Keys(r.def.steps[i].GetMeta())) {
		own := r.def.steps[i].GetMeta()[k]
		var err error
		if r.items[i] == nil {
			own, err = steps.Expand(own, r.outputOf)
		} else {
			own, err = job.WithItem(own, text, index, func(part string) (string, error) { return steps.Expand(part, r.outputOf) })
		}
		if err != nil {
			return nil, status.Error(codes.FailedPrecondition, err.Error())
		}
		given[k] = own
	}
	return given, nil
}

// startInner begins the run of an item, or lets the former one go on. next is the record of the item.
func startInner(b *Book, t *state.Tx, r *run, a flow.Action, region string, next *nusav1.WorkflowStepRecord) (int, error) {
	if old := r.recs[a.Step][a.Item]; r.resumes(a.Step, a.Item, old) {
		return 0, resume(b, t, r, a.Step, a.Item)
	}
	next.Attempts++
	return beginInner(b, t, r, a.Step, a.Item, int(next.GetAttempts()), region)
}

// stopChild stops the job or the run of an attempt.
func stopChild(b *Book, t *state.Tx, r *run, a flow.Action, why string) error {
	k := r.childKey(a.Step, a.Item, int(r.recs[a.Step][a.Item].GetAttempts()))
	if r.inner(a.Step) {
		return cancel(t, b.runs[k], why)
	}
	return schedules.Stop(t, k, why)
}

// beginInner adds the run of an attempt to a transaction. It returns about how many bytes it writes.
func beginInner(b *Book, t *state.Tx, r *run, i, item, attempt int, region string) (int, error) {
	name := r.innerOf(i)
	root := b.runs[rootKey(r.key.Namespace, r.rec, r.key)]
	id, def := r.rec.GetSpec(), r.def.inline[i]
	if def == nil {
		id = root.record().GetWorkflows()[name]
		def = b.defs[r.key.Namespace+"/"+id]
	}
	if def == nil || root == nil {
		return 0, status.Errorf(codes.FailedPrecondition, "the run has no workflow %s", name)
	}
	params, err := r.passed(i, item, def.spec.GetWorkflow().GetParameters())
	if err != nil {
		return 0, err
	}
	if err := checkParameters("parameters", def.spec, params); err != nil {
		return 0, err
	}
	if err := checkInnerPayload(b, r, i, def); err != nil {
		return 0, err
	}
	k, size := r.childKey(i, item, attempt), def.size(parameters(def.spec, params))
	_, changed := state.OtherOf(t, runKey(k))
	runs, all, tree := beginning(b, t, root)
	tree += root.total() + size
	switch {
	case changed || b.runs[k] != nil:
		return 0, status.Errorf(codes.AlreadyExists, "run %s exists already", k)
	case tree > maxSize:
		return 0, status.Errorf(codes.FailedPrecondition, "with it, run %s would have %d items of steps: at most %d are allowed", root.key, tree, maxSize)
	case len(b.runs)+runs >= mostRuns || b.steps+all+size > mostSteps:
		return 0, status.Error(codes.ResourceExhausted, "there are too many runs of workflows: lower history.count and history.age of workflows with many")
	}
	rec := &nusav1.WorkflowRunRecord{
		Spec: id, Root: root.key.Name, SameRegion: r.sameRegion(),
		Run: &nusav1.WorkflowRun{
			Workflow: name, State: nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_RUNNING, Parameters: params, Began: timestamppb.Now(),
			Parent: r.key.Name, ParentStep: r.def.graph.Steps[i].Name, Region: b.regionFor(r, region),
		},
	}
	n := proto.Size(rec)
	if err := state.CheckRoom(t, k, n); err != nil {
		return 0, err
	}
	t.Event("workflow.began", k.String(), "by step %s of run %s", rec.GetRun().GetParentStep(), r.key.Name)
	return n, state.PutOther(t, runKey(k), rec)
}

// beginning counts the runs that a transaction begins, with the items of their steps: of all, and of those inside the
// outermost run root, which may be nil. The lock is held.
func beginning(b *Book, t *state.Tx, root *run) (runs, all, tree int) {
	for name, m := range state.OthersOf(t, runKind) {
		namespace, id, _ := strings.Cut(name, "/")
		rec, _ := m.(*nusav1.WorkflowRunRecord)
		def := b.defs[namespace+"/"+rec.GetSpec()]
		if def == nil {
			def = b.compiled[namespace+"/"+rec.GetSpec()]
		}
		def = def.in(rec.GetRun().GetWorkflow())
		if def == nil || b.runs[state.JobKey{Namespace: namespace, Name: id}] != nil {
			continue
		}
		size := def.size(parameters(def.spec, rec.GetRun().GetParameters()))
		runs, all = runs+1, all+size
		if root != nil && namespace == root.key.Namespace && rec.GetRoot() == root.key.Name {
			tree += size
		}
	}
	return runs, all, tree
}

// record returns the record of a run, or nil.
func (r *run) record() *nusav1.WorkflowRunRecord {
	if r == nil {
		return nil
	}
	return r.rec
}

// total returns the number of items of a run, with those of the runs inside it.
func (r *run) total() int {
	if r.tree == nil {
		return r.size
	}
	return *r.tree
}

// grow notes that a run has more items.
func (r *run) grow(more int) {
	r.size += more
	if r.tree != nil {
		*r.tree += more
	}
}

// sameRegion reports whether all steps of a run run in one region.
func (r *run) sameRegion() bool {
	return r.def.spec.GetWorkflow().GetSameRegion() || r.rec.GetSameRegion()
}

// wakeOuter lets the outer run look at its step. The lock is held.
func wakeOuter(b *Book, r *run) {
	outer := outerOf(b, r)
	if outer == nil {
		return
	}
	if i, ok := outer.def.graph.Index(r.rec.GetRun().GetParentStep()); ok {
		outer.touched.add(i)
		b.clock.Sooner(outer, r.rec.GetRun().GetBegan().AsTime())
	}
}

// resumes reports whether the next attempt of an item is not a new run, but goes on with the former one, because
// of a retry from a step inside it.
func (r *run) resumes(i, item int, old *nusav1.WorkflowStepRecord) bool {
	return r.rec.GetResumeFrom() != "" && r.rec.GetFrom() == r.def.graph.Steps[i].Name && int(r.rec.GetResumeItem()) == item &&
		old.GetTries() == 0 && old.GetAttempts() > 0
}

// resume adds the retry of the run of an item to a transaction.
func resume(b *Book, t *state.Tx, r *run, i, item int) error {
	in := innerRun(b, r, i, item)
	if in == nil || in.live() {
		return status.Errorf(codes.FailedPrecondition, "the run of step %s was removed, or has not ended", r.def.graph.Steps[i].Name)
	}
	next, err := resetting(b, in, r.rec.GetResumeFrom())
	if err != nil {
		return err
	}
	return state.PutOther(t, runKey(in.key), next)
}

// resetting returns the record of a run that runs again from a step, which may be one of a run inside.
func resetting(b *Book, r *run, from string) (*nusav1.WorkflowRunRecord, error) {
	next := proto.CloneOf(r.rec)
	next.Run.State, next.Run.Message, next.Run.Ended = nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_RESETTING, "", nil
	next.Outcome, next.From, next.ResumeItem, next.ResumeFrom = nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_UNSPECIFIED, from, 0, ""
	next.Round++
	if head, rest, deeper := strings.Cut(from, "/"); deeper {
		i, item, in, err := inside(b, r, "from", head)
		if err != nil {
			return nil, err
		}
		if in.live() {
			return nil, status.Errorf(codes.FailedPrecondition, "run %s has not ended", in.key)
		}
		if _, err := resetting(b, in, rest); err != nil {
			return nil, err
		}
		next.From, next.ResumeItem, next.ResumeFrom = r.def.graph.Steps[i].Name, int32(item), rest
		return next, nil
	}
	return next, r.checkStep("from", from)
}

// inside returns the latest run of STEP or STEP[N]. The lock is held.
func inside(b *Book, r *run, field, head string) (i, item int, in *run, err error) {
	name, number, indexed := strings.Cut(strings.TrimSuffix(head, "]"), "[")
	if err := r.checkStep(field, name); err != nil {
		return 0, 0, nil, err
	}
	i, _ = r.def.graph.Index(name)
	if indexed {
		item, err = strconv.Atoi(number)
	}
	switch {
	case !r.inner(i):
		return 0, 0, nil, invalid(field, "step %s of run %s runs no other workflow", name, r.key)
	case err != nil || item < 0 || item >= len(r.snap.Steps[i].Items) || indexed != (r.items[i] != nil):
		return 0, 0, nil, invalid(field, "step %s of run %s has no item %q: name one as %s[0]", name, r.key, number, name)
	}
	in = innerRun(b, r, i, item)
	if in == nil {
		return 0, 0, nil, status.Errorf(codes.FailedPrecondition, "step %s of run %s has not begun", head, r.key)
	}
	return i, item, in, nil
}

// at returns the run and the step that a path such as "train/fit" names. The lock is held.
func at(b *Book, r *run, field, path string) (*run, string, error) {
	for {
		head, rest, deeper := strings.Cut(path, "/")
		if !deeper {
			return r, path, r.checkStep(field, path)
		}
		_, _, in, err := inside(b, r, field, head)
		if err != nil {
			return nil, "", err
		}
		r, path = in, rest
	}
}

// pathOf returns the outermost run of a run, and the path of the step that began the run. The lock is held.
func pathOf(b *Book, r *run) (root *run, path string) {
	for outer := outerOf(b, r); outer != nil; r, outer = outer, outerOf(b, outer) {
		head := r.rec.GetRun().GetParentStep()
		if i, item, _, ok := attemptIn(b, outer, r); ok && outer.items[i] != nil {
			head += fmt.Sprintf("[%d]", item)
		}
		path = head + prefixed("/", path)
	}
	return r, path
}
