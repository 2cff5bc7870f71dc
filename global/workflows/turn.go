package workflows

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/schedules"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/steps"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// planShare of 8 is how much of the writes of a transaction the records of a plan may take, see flow.Decide, and
	// planBytes bounds about the bytes of its jobs, so that it fits into one transaction.
	planShare, planBytes = 6, 512 << 10
	// maxMessage bounds the message of a step or a run, in bytes.
	maxMessage = 512
)

// planOf returns what follows in a run. The lock is held.
func (b *Book) planOf(r *run, batch []int, now time.Time, region string) flow.Plan {
	s := r.snap
	s.OneFirst = s.OneFirst && region == ""
	return flow.Decide(&s, batch, now, flow.View{
		Job: func(i, item int) (steps.End, string) {
			if r.inner(i) {
				return innerResult(b, r, i, item)
			}
			return childResult(b, r, r.childKey(i, item, int(r.recs[i][item].GetAttempts())))
		},
		Has: func(i, item int) bool { return hasUnits(b, r, i, item) },
		When: func(i int) (bool, error) {
			v, known := r.when[i]
			if !known {
				r.asked = append(r.asked, i)
			}
			return v.holds, v.err
		},
	}, b.cost)
}

// truth is the value of a condition.
type truth struct {
	holds bool
	err   error
}

// errAsked: a plan needs values of conditions that are not known. It must not be carried out.
var errAsked = errors.New("the plan needs conditions that were not evaluated")

// evaluate evaluates the conditions that the latest plan asked for. asked: there were some. It may take a while,
// so the lock is not held; run.one is.
func (b *Book) evaluate(r *run) (asked bool) {
	b.st.Lock()
	missing := r.asked
	r.asked = nil
	b.st.Unlock()
	values := make([]truth, len(missing))
	for n, i := range missing {
		values[n].holds, values[n].err = r.def.when[i].Holds(r.params)
	}
	b.st.Lock()
	defer b.st.Unlock()
	for n, i := range missing {
		r.when[i] = values[n]
	}
	return len(missing) > 0
}

// result is what a transaction did for a run.
type result struct {
	plan flow.Plan
	// again are steps to look at again, and refused says why a job of them could not be stored.
	again   []int
	refused string
}

// turn makes one plan and carries it out. idle: nothing follows now.
func (b *Book) turn(ctx context.Context, r *run) (idle bool, err error) {
	b.st.Lock()
	now := time.Now()
	if b.runs[r.key] != r || r.forgetting || !r.live() {
		b.st.Unlock()
		return true, nil
	}
	if b.may() != nil {
		b.clock.Sooner(r, now.Add(notYet))
		b.st.Unlock()
		return true, nil
	}
	next := r.look(now)
	if now.Sub(r.checked) >= recheck {
		r.checked = now
		for _, at := range r.jobs {
			r.touched.add(at[0])
		}
	}
	batch, region := r.batch(), b.regionOf(r)
	p := b.planOf(r, batch, now, region)
	if len(r.asked) > 0 {
		r.touched.addAll(batch)
		b.st.Unlock()
		b.evaluate(r)
		return false, nil
	}
	if p.Idle() && region == "" {
		r.held.addAll(p.Held)
		queueWaits(b, r, batch, &p, nil)
		b.clock.Sooner(r, next)
		if len(r.jobs) > 0 {
			b.clock.Sooner(r, r.checked.Add(recheck))
		}
		idle = r.touched.empty() && (r.room() <= 0 || r.held.empty()) // what took the room may wait for a semaphore
		b.st.Unlock()
		return idle, nil
	}
	asks := b.asks(r, &p, region)
	b.st.Unlock()
	children := build(r.def, asks)
	var done result
	err = schedules.Recalling(ctx, b.term, func() error {
		_, err := b.term.Commit.Do(ctx, func(t *state.Tx) (err error) {
			done, err = b.take(t, r, batch, children)
			return err
		})
		return err
	})
	if asked := b.evaluate(r); asked && errors.Is(err, errAsked) {
		err = nil
		done = result{again: batch}
	}
	b.st.Lock()
	defer b.st.Unlock()
	if err != nil {
		r.touched.addAll(batch)
		return false, err
	}
	r.touched.addAll(done.plan.Left)
	r.touched.addAll(done.again)
	r.held.addAll(done.plan.Held)
	queueWaits(b, r, batch, &done.plan, done.again)
	r.refused = done.refused
	if r.refused != "" {
		b.clock.Sooner(r, now.Add(notYet))
		return true, nil
	}
	return false, nil
}

// take adds a plan to a transaction.
func (b *Book) take(t *state.Tx, r *run, batch []int, children map[string]child) (out result, err error) {
	if b.runs[r.key] != r || !r.live() {
		return out, nil
	}
	if m, changed := state.OtherOf(t, runKey(r.key)); changed && m != proto.Message(r.rec) {
		out.again = batch // an earlier request of the transaction steers the run
		return out, nil
	}
	now, region := time.Now(), b.regionOf(r)
	p := b.planOf(r, batch, now, region)
	if len(r.asked) > 0 {
		return out, errAsked
	}
	out.plan = p
	bytes, whole := 0, true
	for n, a := range p.Actions {
		if bytes > planBytes || n > 0 && t.Crowded() {
			for _, rest := range p.Actions[n:] {
				out.again = append(out.again, rest.Step)
			}
			whole = false
			break
		}
		size, err := b.act(t, r, a, region, children, now)
		switch code := status.Code(err); {
		case err == nil:
			bytes += size
		case a.Do == flow.Start && (code == codes.ResourceExhausted || code == codes.Unavailable):
			out.again, out.refused = append(out.again, a.Step), "no step starts now: "+status.Convert(err).Message()
		case a.Do == flow.Start && code != codes.Unknown: // the job is wrong
			why := flow.Action{Do: flow.Finish, Step: a.Step, Item: a.Item, End: steps.Failed, Why: status.Convert(err).Message()}
			if _, err := b.act(t, r, why, region, children, now); err != nil {
				return out, err
			}
		default:
			return out, err
		}
	}
	return out, b.note(t, r, &p, region, whole, now)
}

// note stores what a plan changes of the run. whole: all its actions were carried out.
func (b *Book) note(t *state.Tx, r *run, p *flow.Plan, region string, whole bool, now time.Time) error {
	next := proto.CloneOf(r.rec)
	if region != "" {
		next.Run.Region = region
	}
	switch {
	case !whole:
	case p.Ended:
		next.Run.State, next.Run.Message, next.Run.Ended = runStates[p.Outcome], clip(p.Why), timestamppb.New(now)
		t.Event("workflow.ended", r.key.String(), "%s%s", p.Outcome, prefixed(": ", p.Why))
	case p.Changes && p.Phase == flow.Exiting:
		next.Run.State, next.Outcome, next.Run.Message = nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_EXITING, runStates[p.Outcome], clip(p.Why)
	case p.Changes:
		next.Run.State = nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_RUNNING
	}
	if proto.Equal(next, r.rec) {
		return nil
	}
	return state.PutOther(t, runKey(r.key), next)
}

// act carries out an action. It returns about how many bytes it writes.
func (b *Book) act(t *state.Tx, r *run, a flow.Action, region string, children map[string]child, now time.Time) (int, error) {
	if a.Do == flow.Reset {
		return 0, b.reset(t, r, a.Step, a.Item)
	}
	var old *nusav1.WorkflowStepRecord
	if a.Item != flow.Whole {
		old = r.recs[a.Step][a.Item]
	}
	next := &nusav1.WorkflowStepRecord{
		Attempts: old.GetAttempts(), Tries: old.GetTries(), Began: old.GetBegan(), Approved: old.GetApproved(), Round: r.rec.GetRound(),
		Message: clip(a.Why), Until: stamp(a.Until),
	}
	size := 0
	switch a.Do {
	case flow.Start:
		next.State, next.Began = nusav1.StepState_STEP_STATE_RUNNING, timestamppb.New(now)
		next.Tries++
		if r.inner(a.Step) {
			n, err := startInner(b, t, r, a, region, next)
			if err != nil {
				return 0, err
			}
			size = n
			break
		}
		next.Attempts++
		c, err := b.child(r, a.Step, a.Item, int(next.GetAttempts()), region, children)
		if err != nil {
			return 0, err
		}
		if err := c.Submit(t, r.key.Namespace); err != nil {
			return 0, err
		}
		size = c.Size()
	case flow.Await:
		next.State, next.Began = nusav1.StepState_STEP_STATE_APPROVAL, timestamppb.New(now)
		t.Event("workflow.approval", r.key.String(), "step %s waits for an approval", r.def.graph.Steps[a.Step].Name)
	case flow.Stop:
		next.State, next.End = nusav1.StepState_STEP_STATE_STOPPING, endStates[a.End]
		why := a.Why
		if why == "" {
			why = "run " + r.key.Name + " was canceled"
		}
		if err := stopChild(b, t, r, a, why); err != nil {
			return 0, err
		}
	case flow.Retry:
		next.State = nusav1.StepState_STEP_STATE_BACKOFF
	case flow.Finish:
		next.State, next.Ended = endStates[a.End], timestamppb.New(now)
		switch {
		case old.GetAttempts() > 0 && r.inner(a.Step):
			takeWritten(b, r, a.Step, a.Item, next)
			size += len(next.GetOutput())
		case old.GetAttempts() > 0:
			if err := takeOutput(b, t, r, r.childKey(a.Step, a.Item, int(old.GetAttempts())), next); err != nil {
				return 0, err
			}
			size += len(next.GetOutput())
		}
		if old.GetApproved() && a.End == steps.Succeeded && old.GetAttempts() == 0 {
			next.Message = old.GetMessage() // who has approved it
		}
	}
	return size, state.PutOther(t, r.stepKey(a.Step, a.Item, a.Item == flow.Whole), next)
}

// reset makes an item ready to run again. The number of its attempts stays, so that no two have the same name.
func (b *Book) reset(t *state.Tx, r *run, i, item int) error {
	if r.whole[i] != nil && item == 0 {
		if err := state.DeleteOther(t, r.stepKey(i, item, true)); err != nil {
			return err
		}
	}
	old := r.recs[i][item]
	switch {
	case old == nil:
		return nil
	case old.GetAttempts() == 0:
		return state.DeleteOther(t, r.stepKey(i, item, false))
	}
	return state.PutOther(t, r.stepKey(i, item, false), &nusav1.WorkflowStepRecord{
		State: nusav1.StepState_STEP_STATE_PENDING, Attempts: old.GetAttempts(), Round: r.rec.GetRound(), Message: "is to run again",
	})
}

// jobResult is how a job of a step ended, and a text about it.
type jobResult struct {
	end steps.End
	why string
}

// childResult returns how the job of an active item ended, and a text about it. None: it has not. The lock is held.
func childResult(b *Book, r *run, k state.JobKey) (steps.End, string) {
	known, is := r.results[k.Name]
	if !is {
		known.end, known.why = b.endOfJob(k)
		if known.end != steps.None {
			r.results[k.Name] = known
		}
	}
	return known.end, known.why
}

// endOfJob is childResult for a job that is not known to have ended. The lock is held.
func (b *Book) endOfJob(k state.JobKey) (steps.End, string) {
	to, why, _ := schedules.RunState(b.st, k)
	switch to {
	case nusav1.JobRunState_JOB_RUN_STATE_COMPLETE:
		if b.answers(k) {
			return steps.None, ""
		}
		return steps.Succeeded, ""
	case nusav1.JobRunState_JOB_RUN_STATE_FAILED:
		return steps.Failed, why
	case nusav1.JobRunState_JOB_RUN_STATE_STOPPED:
		if why == schedules.Removed {
			return steps.Lost, why
		}
		return steps.Failed, "its job was stopped"
	}
	return steps.None, ""
}

// answers reports whether regions have yet to say that the slots of a job are done. They say so with its output.
// The lock is held.
func (b *Book) answers(k state.JobKey) bool {
	j := b.st.Jobs[k]
	if j == nil {
		return false
	}
	for s := range j.Slots.All() {
		if s.State != region.Done && s.Desired == region.DesiredRun && !s.Vacant {
			return true
		}
	}
	return false
}

// regionOf returns the region that decides about the other steps of a run, once it is known. Empty: it need
// not be noted, or is not known. The lock is held.
func (b *Book) regionOf(r *run) string {
	if !r.snap.OneFirst {
		return ""
	}
	for name := range r.jobs {
		k := state.JobKey{Namespace: r.key.Namespace, Name: name}
		if in := b.runs[k]; in != nil && in.rec.GetRun().GetRegion() != "" {
			return in.rec.GetRun().GetRegion()
		}
		j := b.st.Jobs[k]
		if j == nil {
			continue
		}
		for s := range j.Slots.All() {
			if s.State == region.Accepted || s.State == region.Done {
				return s.Region
			}
		}
	}
	return ""
}

// asks returns what the jobs that a plan starts are made from. The lock is held.
func (b *Book) asks(r *run, p *flow.Plan, region string) (out []ask) {
	for _, a := range p.Actions {
		if a.Do == flow.Start && !r.inner(a.Step) {
			out = append(out, b.ask(r, a.Step, a.Item, int(r.recs[a.Step][a.Item].GetAttempts())+1, region))
		}
	}
	return out
}

// ask returns what a job is made from. The lock is held.
func (b *Book) ask(r *run, i, item, attempt int, region string) ask {
	step := r.def.graph.Steps[i].Name
	a := ask{name: r.childName(i, item, attempt), step: step, index: i, attempt: attempt, began: r.rec.GetRun(), region: region}
	if a.region == "" {
		a.region = r.rec.GetRun().GetRegion()
	}
	a.data = dataOf(b, r, i)
	a.labels = map[string]string{job.LabelWorkflowRun: r.key.Name, job.LabelWorkflowStep: step}
	a.values = maps.Clone(r.params)
	own := maps.Clone(r.def.steps[i].GetMeta())
	if err := r.expand(own); err != nil {
		a.wrong = err
		return a
	}
	maps.Copy(a.values, own)
	a.values[job.ValueRun], a.values[job.ValueStep], a.values[job.ValueAttempt] = r.key.Name, step, strconv.Itoa(attempt)
	if r.items[i] != nil {
		a.values[job.ValueItem], a.values[job.ValueIndex] = r.items[i][item], strconv.Itoa(item)
	}
	if i == r.def.graph.OnExit {
		a.values[job.ValueState] = r.snap.Outcome.String()
	}
	if r.def.steps[i].GetPayload() {
		a.payload = payloadOf(b, r)
	}
	name := r.def.steps[i].GetRef()
	if name == "" {
		return a
	}
	k := state.JobKey{Namespace: r.key.Namespace, Name: name}
	j := b.st.Jobs[k]
	switch {
	case j == nil || j.Record == nil || j.Record.Stopped():
		a.wrong = status.Errorf(codes.FailedPrecondition, "job %s does not exist, or is stopped", k)
	default:
		a.ref = j.Record
	}
	return a
}

// child returns the job of an attempt, and makes it if it was not made before. The lock is held.
func (b *Book) child(r *run, i, item, attempt int, region string, made map[string]child) (*schedules.Child, error) {
	if c, ok := made[r.childName(i, item, attempt)]; ok && c.region == b.regionFor(r, region) {
		return c.job, c.err
	}
	return childOf(r.def, b.ask(r, i, item, attempt, region))
}

func (b *Book) regionFor(r *run, region string) string {
	if region != "" {
		return region
	}
	return r.rec.GetRun().GetRegion()
}

func clip(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), maxMessage)], "")
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}
