package workflows

import (
	"container/heap"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/internal/alarms"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/steps"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// mostTouched bounds the touched steps that one plan looks at. A plan starts fewer.
const mostTouched = 256

// wholeItem is the item of a record about all items of a step.
const wholeItem = flow.Whole

// run is a run of a workflow. The state's lock guards its fields. Records are never changed in place.
type run struct {
	key state.JobKey
	def *definition
	// one lets one caller at a time change the run. It is locked before the state.
	one sync.Mutex

	rec    *nusav1.WorkflowRunRecord
	params map[string]string
	items  [][]string // by step; nil without foreach
	snap   flow.Snapshot
	// recs are the records of the items of each step, and whole those about all items.
	recs  [][]*nusav1.WorkflowStepRecord
	whole map[int]*nusav1.WorkflowStepRecord
	// size is the number of items of all steps, and bytes the size of their outputs. bad counts the steps that
	// failed, were lost or timed out. ended counts the steps that have ended.
	size, bytes, bad, ended int
	// tree is the number of items of the outermost run and of all runs inside it. nil: the run is not in a Book.
	tree *int
	// jobs are the active jobs, with the step and the item of each.
	jobs map[string][2]int
	// results has how those of them ended that have: a job that has ended does not run again.
	results map[string]jobResult
	// touched are the steps to look at, and held those that wait for room.
	touched, held set
	// times are when steps must be looked at. Some may be out of date.
	times moments
	// when has the values of the conditions `when` that were evaluated, by step: parameters do not change. asked
	// are the steps whose values the latest plan needs.
	when  map[int]truth
	asked []int
	// ranIn has the regions in which most instances of steps that have ended ran, as far as other steps asked.
	ranIn map[int]string
	// refused says why a job could not be stored at the latest try.
	refused string
	// checked is when all active jobs were looked at.
	checked time.Time
	// counted: Book.active counts the run if it is live. forgetting: the run is being removed. busy: plans are made for
	// it. missed: it was due meanwhile.
	counted, forgetting, busy, missed bool

	alarms.Alarm // when the loop must decide at the latest
	// pause is the time to the next try after an error.
	pause time.Duration
}

func newRun(k state.JobKey, def *definition, rec *nusav1.WorkflowRunRecord) *run {
	n := len(def.graph.Steps)
	r := &run{
		key: k, def: def, rec: rec, params: parameters(def.spec, rec.GetRun().GetParameters()), items: make([][]string, n),
		recs: make([][]*nusav1.WorkflowStepRecord, n), whole: map[int]*nusav1.WorkflowStepRecord{},
		when: map[int]truth{}, ranIn: map[int]string{}, jobs: map[string][2]int{}, results: map[string]jobResult{}, touched: newSet(n), held: newSet(n),
	}
	r.snap = flow.Snapshot{Graph: def.graph, Rules: make([]flow.Rule, n), Steps: make([]flow.Step, n), Open: n, MaxParallel: int(def.spec.GetWorkflow().GetMaxParallel())}
	if def.graph.OnExit >= 0 {
		r.snap.Open--
	}
	of := listsOf(r.params)
	for i := range n {
		r.snap.Rules[i] = def.rules[i]
		count := 1
		if def.rules[i].Items >= 0 {
			r.items[i] = of.of(def.steps[i].GetForeach())
			if r.items[i] == nil {
				r.items[i] = []string{}
			}
			r.snap.Rules[i].Items = len(r.items[i])
			count = max(1, len(r.items[i]))
		}
		if o, has := def.list[i]; has {
			r.snap.Rules[i].Wrong = notEnded(o.Step)
		}
		r.size += count
		r.snap.Steps[i].Items = make([]flow.Item, count)
		r.recs[i] = make([]*nusav1.WorkflowStepRecord, count)
	}
	r.touchAll()
	return r
}

// parameters returns the values of a run with the defaults of the workflow.
func parameters(spec *nusav1.JobSpec, given map[string]string) map[string]string {
	out := map[string]string{}
	for name, p := range spec.GetWorkflow().GetParameters() {
		out[name] = p.GetDefault()
	}
	for name, value := range given {
		out[name] = value
	}
	return out
}

// workflow returns the key of the run's workflow.
func (r *run) workflow() state.JobKey {
	return state.JobKey{Namespace: r.key.Namespace, Name: r.rec.GetRun().GetWorkflow()}
}

// live reports whether the run has not ended.
func (r *run) live() bool { return r.rec.GetRun().GetEnded() == nil }

func (r *run) touchAll() {
	for i := range r.snap.Steps {
		r.touched.add(i)
	}
}

var phases = map[nusav1.WorkflowRunState]flow.Phase{
	nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_CANCELING: flow.Canceling,
	nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_EXITING:   flow.Exiting,
	nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_RESETTING: flow.Resetting,
}

var outcomes = map[nusav1.WorkflowRunState]flow.Outcome{
	nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_SUCCEEDED: flow.Succeeded,
	nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_FAILED:    flow.Failed,
	nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_CANCELED:  flow.Canceled,
}

var runStates = map[flow.Outcome]nusav1.WorkflowRunState{
	flow.Succeeded: nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_SUCCEEDED,
	flow.Failed:    nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_FAILED,
	flow.Canceled:  nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_CANCELED,
}

// setRecord notes the record of the run.
func (r *run) setRecord(rec *nusav1.WorkflowRunRecord) {
	before := r.rec
	r.rec = rec
	if before.GetRound() != rec.GetRound() {
		clear(r.ranIn)
	}
	s := &r.snap
	s.Phase = phases[rec.GetRun().GetState()]
	s.Outcome, s.Why = outcomes[rec.GetOutcome()], rec.GetRun().GetMessage()
	s.OneFirst = r.sameRegion() && rec.GetRun().GetRegion() == ""
	if s.Phase == flow.Resetting {
		s.From, _ = r.def.graph.Index(rec.GetFrom())
		stale := flow.Stale(r.def.graph, s.From)
		for i := range s.Steps {
			s.Steps[i].Stale = stale[i] && r.isStale(i)
		}
	}
	if before.GetRun().GetState() != rec.GetRun().GetState() || before.GetRun().GetRegion() != rec.GetRun().GetRegion() {
		r.touchAll()
	}
}

// isStale reports whether a step has a record from before the latest retry.
func (r *run) isStale(i int) bool {
	if rec := r.whole[i]; rec != nil && rec.GetRound() < r.rec.GetRound() {
		return true
	}
	for _, rec := range r.recs[i][:len(r.snap.Steps[i].Items)] {
		if rec != nil && rec.GetRound() < r.rec.GetRound() {
			return true
		}
	}
	return false
}

var stages = map[nusav1.StepState]flow.Stage{
	nusav1.StepState_STEP_STATE_UNSPECIFIED: flow.Idle, nusav1.StepState_STEP_STATE_PENDING: flow.Idle, nusav1.StepState_STEP_STATE_APPROVAL: flow.Approval,
	nusav1.StepState_STEP_STATE_RUNNING: flow.Active, nusav1.StepState_STEP_STATE_STOPPING: flow.Stopping, nusav1.StepState_STEP_STATE_BACKOFF: flow.Backoff,
}

var endStates = map[steps.End]nusav1.StepState{
	steps.Succeeded: nusav1.StepState_STEP_STATE_SUCCEEDED, steps.Failed: nusav1.StepState_STEP_STATE_FAILED, steps.Skipped: nusav1.StepState_STEP_STATE_SKIPPED,
	steps.Lost: nusav1.StepState_STEP_STATE_LOST, steps.TimedOut: nusav1.StepState_STEP_STATE_TIMED_OUT, steps.Canceled: nusav1.StepState_STEP_STATE_CANCELED,
}

func endOf(s nusav1.StepState) steps.End {
	for end, of := range endStates {
		if of == s {
			return end
		}
	}
	return steps.None
}

// itemOf returns the state of an item by its record.
func itemOf(rec *nusav1.WorkflowStepRecord) flow.Item {
	it := flow.Item{Tries: int(rec.GetTries()), Approved: rec.GetApproved()}
	if rec.GetUntil() != nil {
		it.Until = rec.GetUntil().AsTime()
	}
	stage, open := stages[rec.GetState()]
	it.Stage = stage
	switch {
	case !open:
		it.Stage, it.End, it.Until = flow.Done, endOf(rec.GetState()), time.Time{}
	case stage == flow.Stopping:
		it.End = endOf(rec.GetEnd())
	}
	return it
}

// set notes the record of an item, or with wholeItem of all items.
func (r *run) set(i, item int, rec *nusav1.WorkflowStepRecord) {
	st := &r.snap.Steps[i]
	r.bytes -= len(r.recordOf(i, item).GetOutput())
	r.bytes += len(rec.GetOutput())
	if item == wholeItem {
		r.whole[i] = rec
		if rec == nil {
			delete(r.whole, i)
		}
		for at := range st.Items {
			if rec != nil || r.recs[i][at] == nil {
				r.setItem(i, at, itemOf(rec), 0)
			}
		}
	} else {
		r.recs[i][item] = rec
		if item < len(st.Items) {
			r.setItem(i, item, itemOf(rec), int(rec.GetAttempts()))
		}
	}
	r.summarize(i)
	r.touched.add(i)
}

// recordOf returns the record of an item, or with wholeItem of all items.
func (r *run) recordOf(i, item int) *nusav1.WorkflowStepRecord {
	if item == wholeItem {
		return r.whole[i]
	}
	return r.recs[i][item]
}

// summarize notes what the items of a step say about it.
func (r *run) summarize(i int) {
	st := &r.snap.Steps[i]
	was := st.End
	st.End = flow.EndOf(st.Items)
	st.Stale = r.snap.Phase == flow.Resetting && st.Stale && r.isStale(i)
	r.bad += one(st.End.Bad()) - one(was.Bad())
	r.ended += one(st.End != steps.None) - one(was != steps.None)
	if i != r.def.graph.OnExit {
		r.snap.Open += one(st.End == steps.None) - one(was == steps.None)
	}
	if was == steps.None && st.End != steps.None {
		r.touched.addAll(r.def.graph.Before[i])
	}
	if was != st.End {
		for _, j := range r.def.lists[i] {
			r.resolve(j)
		}
	}
}

func (r *run) setItem(i, item int, to flow.Item, attempts int) {
	st := &r.snap.Steps[i]
	from := st.Items[item]
	wasActive, wasBegun := flow.Count(from)
	active, begun := flow.Count(to)
	st.Active += active - wasActive
	r.snap.Active += active - wasActive
	r.snap.Begun += begun - wasBegun
	st.Items[item] = to
	switch name := r.childName(i, item, attempts); {
	case active == 1:
		r.jobs[name] = [2]int{i, item}
	case wasActive == 1:
		delete(r.jobs, name)
		delete(r.results, name)
	}
	if !to.Until.IsZero() {
		heap.Push(&r.times, moment{to.Until, i})
	}
}

// look touches the steps whose times have come, and returns when the next one does.
func (r *run) look(now time.Time) time.Time {
	for len(r.times) > 0 {
		if r.times[0].at.After(now) {
			return r.times[0].at
		}
		m, _ := heap.Pop(&r.times).(moment)
		r.touched.add(m.step)
	}
	return time.Time{}
}

// batch takes the steps to look at now.
func (r *run) batch() []int {
	out := r.touched.take(mostTouched)
	if room := r.room(); room > 0 {
		out = append(out, r.held.take(room)...)
	}
	return out
}

// room returns how many more items may be active.
func (r *run) room() int {
	if r.snap.OneFirst && r.snap.Active > 0 {
		return 0
	}
	return r.snap.MaxParallel - r.snap.Active
}

// messageOf describes a run for lists. The lock is held.
func messageOf(b *Book, r *run) *nusav1.WorkflowRun {
	src := r.rec.GetRun()
	out := &nusav1.WorkflowRun{
		Namespace: r.key.Namespace, Name: r.key.Name, Workflow: src.GetWorkflow(), State: src.GetState(), Message: src.GetMessage(), Began: src.GetBegan(), Ended: src.GetEnded(),
		Parameters: src.GetParameters(), Region: src.GetRegion(), Steps: int32(len(r.snap.Steps)), StepsEnded: int32(r.ended), Active: int32(r.snap.Active), StepsFailed: int32(r.bad),
		Trigger: src.GetTrigger(), Time: src.GetTime(), Parent: src.GetParent(), ParentStep: src.GetParentStep(),
		PayloadBytes: int32(len(b.payloads[r.key])),
	}
	if out.GetState() == nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_CANCELED || r.snap.Phase == flow.Exiting {
		out.StepsEnded = int32(r.over())
	}
	if r.live() && r.refused != "" {
		out.Message = r.refused
	}
	return out
}

// stamp returns a time as records have it.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// runOf returns the run to which the job of a step belongs.
func runOf(k state.JobKey) state.JobKey {
	mark := strings.IndexByte(k.Name, job.RunMark)
	if mark < 0 {
		return state.JobKey{}
	}
	id, _, _ := strings.Cut(k.Name[mark:], job.StepMark)
	return state.JobKey{Namespace: k.Namespace, Name: k.Name[:mark] + id}
}

// stepKey returns the key of the record of an item. whole: the record is about all items.
func (r *run) stepKey(i, item int, whole bool) string {
	name := r.key.String() + "/" + r.def.graph.Steps[i].Name
	if r.def.rules[i].Items >= 0 && !whole {
		name += "/" + strconv.Itoa(item)
	}
	return state.OtherKey(stepKind, name)
}

// jobPart returns the name of a step as names of jobs have it.
func jobPart(step string) string { return strings.ReplaceAll(step, "_", "-") }

// childName returns the name of the job of an attempt. No step name contains "--", so no two are the same.
func (r *run) childName(i, item, attempt int) string {
	if r.inner(i) {
		return r.innerName(i, item, attempt)
	}
	out := r.key.Name + job.StepMark + jobPart(r.def.graph.Steps[i].Name)
	if r.def.rules[i].Items >= 0 {
		out += fmt.Sprintf("%si%d", job.StepMark, item)
	}
	if attempt > 1 {
		out += fmt.Sprintf("%sr%d", job.StepMark, attempt)
	}
	return out
}

func (r *run) childKey(i, item, attempt int) state.JobKey {
	return state.JobKey{Namespace: r.key.Namespace, Name: r.childName(i, item, attempt)}
}

// checkStep refuses the name of a step that the run does not have.
func (r *run) checkStep(field, name string) error {
	if _, ok := r.def.graph.Index(name); !ok {
		return invalid(field, "run %s has no step %q: `nusa workflow status %s` shows its steps", r.key, name, r.key.Name)
	}
	return nil
}
