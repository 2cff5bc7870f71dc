package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/nusa-scheduler/nusa/global/region"
)

// planner makes one plan. Its parts share the plan and the evaluator.
type planner struct {
	snap    Snapshot
	eval    *evaluator
	place   *placer
	move    *mover
	reclaim *reclaimer
	take    *taker
	drain   *drainer
	back    *returner
	explain *explainer
	plan    *Plan
	so      *soFar
}

func newPlanner(s Snapshot) *planner {
	plan := &Plan{}
	eval := newEvaluator(s)
	place := &placer{eval: eval, plan: plan, held: maps.Clone(s.Held)}
	move := &mover{eval: eval, plan: plan}
	explain := &explainer{eval: eval, plan: plan}
	reclaim := &reclaimer{eval: eval, place: place, move: move, explain: explain, plan: plan,
		reserved: map[*Job][][]*work{}, decided: map[*Job][][]*work{}}
	take := &taker{eval: eval, place: place, reclaim: reclaim, explain: explain, plan: plan,
		took: map[*Job]bool{}, refused: map[*Job][]*work{}}
	so := &soFar{plan: plan}
	return &planner{
		snap: s, eval: eval, place: place, move: move, reclaim: reclaim, take: take, explain: explain, plan: plan, so: so,
		drain: &drainer{eval: eval, place: place, reclaim: reclaim, plan: plan, so: so}, back: &returner{eval: eval, plan: plan, so: so},
	}
}

// MakePlan makes a plan. Its cost grows with the number of jobs that need work, times the number of
// regions. Quiet jobs add only little.
func MakePlan(s Snapshot) Plan {
	plan, _ := MakePlanWithRoom(s)
	return plan
}

// MakePlanWithRoom returns the plan of a snapshot, and the room that the plan leaves.
func MakePlanWithRoom(s Snapshot) (Plan, Room) {
	p := newPlanner(s)
	p.planAll()
	return *p.plan, Room{p.eval.regions, p.eval.ledger}
}

// maxExpected bounds the actions, and the explanations, for which a plan makes room before it is made.
const maxExpected = 1024

// planAll decides all jobs.
func (p *planner) planAll() {
	p.assume()
	jobs := jobsWithWork(p.snap.Jobs, p.eval.regions)
	if len(jobs) > 0 {
		p.plan.Actions = slices.Grow(p.snap.Memory[:0], min(expected(jobs), maxExpected))
		p.plan.Groups = make([]GroupExplanation, 0, min(len(jobs), maxExpected))
	}
	for _, j := range jobs {
		if len(j.Movable) == 0 {
			p.reclaim.reserveReclaimed(j)
		}
	}
	for _, j := range jobs {
		if len(j.Movable) > 0 {
			p.take.takeOver(j)
		}
		if len(j.Movable) > 0 && !p.take.took[j] {
			p.reclaim.reserveReclaimed(j)
		}
	}
	for _, j := range jobs {
		if p.beyond(j) {
			p.plan.Undecided = append(p.plan.Undecided, j)
			continue
		}
		if !p.take.took[j] {
			p.decide(j)
		}
		p.take.explainRefused(j)
	}
	for _, j := range jobs {
		p.reclaim.reclaim(j)
	}
	for _, j := range jobs {
		p.plan.Actions = append(p.plan.Actions, shares(j, p.eval.regions, p.plan.Actions)...) // last, because each slot changes once
	}
	for _, j := range jobs {
		p.plan.Actions = j.fillVacant(p.plan.Actions)
	}
}

// expected returns how many actions jobs need if they are new: one for each region.
func expected(jobs []*Job) (n int) {
	for _, j := range jobs {
		for i := range j.Groups {
			n += max(1, j.Groups[i].Regions.SpreadMin)
		}
	}
	return n
}

// beyond reports whether the plan leaves a job undecided: see Snapshot.MaxVerdicts. All later jobs
// are left undecided too, because a less urgent job must not take the room of this job.
func (p *planner) beyond(j *Job) bool {
	most := p.snap.MaxVerdicts
	if most <= 0 {
		return false
	}
	effort := p.eval.effort()
	return len(p.plan.Undecided) > 0 || effort >= most || effort+p.eval.nearEffort(j) > most
}

// assume charges regions for the slots that their reports do not include yet, and for the slots
// that will return to them.
func (p *planner) assume() {
	p.eval.ledger.chargeAll(p.eval.regions, p.snap.Given)
	if p.snap.Charged {
		return
	}
	for i := range p.snap.Jobs {
		j := &p.snap.Jobs[i]
		for k := range j.Slots {
			p.eval.ledger.chargeAll(p.eval.regions, ChargesOf(j, &j.Slots[k]))
		}
	}
}

// jobsWithWork returns the jobs that are not quiet. The most urgent job comes first.
func jobsWithWork(jobs []Job, regions regionList) []*Job {
	var out []*Job
	for i := range jobs {
		if jobs[i].Explain || !jobs[i].quiet(regions) || jobs[i].leaves(regions) {
			out = append(out, &jobs[i])
		}
	}
	slices.SortFunc(out, func(a, b *Job) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Revision, b.Revision),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// decide plans one job: first its existing slots, then its unowned instances.
func (p *planner) decide(j *Job) {
	p.so.first = len(p.plan.Actions)
	stages, ends := rolloutStages(p.eval.regions, p.eval.now, j)
	p.plan.RolloutStages, p.plan.RegionEnds = append(p.plan.RolloutStages, stages...), append(p.plan.RegionEnds, ends...)
	for i := range j.Slots {
		_, waits := slices.BinarySearchFunc(stages, j.Slots[i].Region, func(s RolloutStage, name string) int { return cmp.Compare(s.Region, name) })
		p.act(j, &j.Slots[i], waits)
	}
	if j.Stopped {
		return
	}
	for i, set := range j.sets() {
		works := p.reclaim.worksOf(j, i)
		if works == nil {
			works = p.eval.newWorks(j, set)
		}
		p.placeWorks(j, works)
		if j.Type != System {
			p.drain.drain(j, works)
			p.back.failback(j, works)
		}
		for _, w := range works {
			if w.n > 0 || len(w.given) > 0 || j.Explain {
				p.explain.explain(w)
			}
		}
		p.reclaim.noteDecided(j, works)
	}
}

// placeWorks places one set of groups, and moves instances for latency.
func (p *planner) placeWorks(j *Job, works []*work) {
	switch {
	case j.Type == System:
		for _, w := range works {
			p.place.placeSystem(w)
			p.move.stay(w, "a system job runs wherever it can")
		}
	case len(works) == 1:
		p.placeGroup(works[0])
	default:
		if s := p.reclaim.pendingRevoke(works); s != nil {
			p.reclaim.wait(works, s)
		} else {
			p.place.placeSet(works)
		}
		for _, w := range works {
			p.move.stay(w, "colocated groups are not moved for latency")
		}
	}
}

// placeGroup places a group that is not colocated with another one.
func (p *planner) placeGroup(w *work) {
	if w.n == 0 && !w.job.Explain && len(w.breached) == 0 {
		return
	}
	if p.place.lead(w) {
		return
	}
	p.eval.evaluate(w)
	better := p.move.better(w)
	p.place.share(w)
	p.place.hold(w)
	p.move.moveAway(w, better)
}

// act adds the action that an existing slot needs, if any. waits: the region of the slot must not
// begin with the new version yet. The part of the slot that is out of range is stopped even then.
func (p *planner) act(j *Job, s *region.Slot, waits bool) {
	at := p.eval.regions.of(s)
	kind, reason, why := j.correct(s, at)
	if waits && j.restarts(s, at) {
		kind = ""
		if !s.System && s.To > j.group(s.Group).Count {
			kind, reason, why = Stop, ReasonOutOfRange, fmt.Sprintf("count is %d", j.group(s.Group).Count)
		}
	}
	if blocked := j.blocked(s, at, kind); blocked != "" {
		p.plan.RolloutStages = append(p.plan.RolloutStages, RolloutStage{Namespace: j.Namespace, Job: j.Name, Region: s.Region, Why: blocked})
		kind = ""
		if !s.Vacant && s.To > j.group(s.Group).Count {
			kind, reason, why = Stop, ReasonOutOfRange, fmt.Sprintf("count is %d", j.group(s.Group).Count)
		}
	}
	a := Action{
		Kind: kind, Namespace: j.Namespace, Job: j.Name, Group: s.Group, From: s.From, To: s.To,
		Region: s.Region, JobVersion: s.JobVersion, Run: j.Run, Slot: *s, System: s.System, Reason: reason, Why: why,
	}
	outside := false
	if g := j.group(s.Group); g != nil && !s.System {
		outside = s.To > g.Count && s.From < g.Count
	}
	switch {
	case kind == "":
		return
	case kind == Update:
		g := j.group(s.Group)
		a.JobVersion, a.Bound, a.StopTime = j.Version, g.Bound, g.StopTime
		if outside {
			a.To = j.group(s.Group).Count
			a.Why += fmt.Sprintf(", and stop %s: count is %d", region.FormatRange(a.To, s.To), a.To)
		}
	case kind == Stop && reason == ReasonOutOfRange && outside:
		a.From = j.group(s.Group).Count
	}
	p.plan.Actions = append(p.plan.Actions, a)
}
