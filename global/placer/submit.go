package placer

import (
	"errors"
	"slices"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
)

const (
	// fullJobs bounds the new jobs that get a full explanation with their submit, and fullVerdicts
	// bounds their groups times regions.
	fullJobs, fullVerdicts = 8, 256
	// decidedGroups bounds the groups that are decided while the lock is held. maxVerdicts bounds
	// the verdicts about those groups that need a verdict on each region. Each bound takes some 15
	// ms.
	decidedGroups = 512
	maxVerdicts   = 20_000
	// maxRivals bounds the waiting groups with which a new job is compared.
	maxRivals = 16
	// submitLevel is the feature level from which a server reads slots that were stored together
	// with the submit of their job.
	submitLevel = 2
)

// given counts the transactions in which Decide made offers, and notes the latest of them for each
// region. A plan whose snapshot is older than such an offer must not offer the same room again: see
// outdated. The state's lock guards the fields.
type given struct {
	decided, stored uint64
	at              map[string]uint64 // number of the latest transaction, by region
	// leftOut counts the actions that were left out for that reason. After such an action, Decide
	// pauses until a whole plan is written. Otherwise endless submits would delay every plan.
	leftOut uint64
	paused  bool
}

// memory holds lists that Decide uses for one transaction after another.
type memory struct {
	fresh   []place.Job
	seen    map[state.JobKey]seen
	actions []place.Action
}

// release empties the lists once a transaction is stored. all are the actions of its plan.
func (m *memory) release(all []place.Action) {
	clear(all)
	clear(m.fresh)
	clear(m.seen)
	m.actions, m.fresh = all[:0], m.fresh[:0]
}

// newer reports whether a region got an offer after the first `since` transactions, which a plan
// has seen. It then pauses Decide.
func (g *given) newer(region string, since uint64) bool {
	if g.at[region] <= since {
		return false
	}
	g.leftOut++
	g.paused = true
	return true
}

// Decide adds to a transaction the slots of the jobs that it submits: see state.Committer.Decide.
// So a new job is stored and offered in one write. Jobs that find no room, and jobs that would take
// the room of a waiting job, are left to the next plan. The lock is held.
func Decide(p *Placer, t *state.Tx) (stored func()) {
	st := p.st
	rivals, few := st.Demand.Rivals(st.Pending, st.Jobs, maxRivals, p.latest.has)
	if !few || st.OldCopy() || st.GlobalLevel < submitLevel || p.given.paused {
		return nil
	}
	snapshot := regionsSnapshot(st)
	snapshot.Given = t.Given()
	jobs, verdicts := p.memory.freshJobs(t, &snapshot)
	full := len(jobs) <= fullJobs && verdicts <= fullVerdicts && p.explained.afford(verdicts, snapshot.Now)
	snapshot.Terse, snapshot.Origins = !full, st.Origins.Serving(snapshot.Jobs)
	p.plannedAt, snapshot.Index, snapshot.MaxVerdicts, snapshot.Memory = st.Clock(), p.submits, maxVerdicts, p.memory.actions
	plan := place.MakePlan(snapshot)
	for _, j := range plan.Undecided {
		delete(jobs, state.JobKey{Namespace: j.Namespace, Name: j.Name})
	}
	var room place.Room // needed only beside rivals
	if len(rivals) > 0 {
		room = place.NewRoom(snapshot)
	}
	p.given.decided++
	number := p.given.decided
	done := plan.Actions[:0] // the written actions move to the front
	for from := 0; from < len(plan.Actions); {
		to := from + 1
		for to < len(plan.Actions) && keyOf(plan.Actions[to]) == keyOf(plan.Actions[from]) {
			to++
		}
		actions := plan.Actions[from:to]
		from = to
		written := !slices.ContainsFunc(actions, func(a place.Action) bool { return a.Kind != place.Offer || p.latest.wanted(room, a, rivals) }) &&
			t.Try(func() error { return offer(t, actions) })
		if !written {
			delete(jobs, keyOf(actions[0]))
			continue
		}
		for _, a := range actions {
			p.given.at[a.Region] = number
		}
		done = append(done, actions...)
	}
	return func() {
		p.given.stored = number
		p.decided(plan, done, jobs, full)
		p.memory.release(plan.Actions)
	}
}

// freshJobs adds the jobs that a transaction submits to a snapshot, as many as may be decided while
// the lock is held. It returns these jobs, and the number of verdicts that they need.
func (m *memory) freshJobs(t *state.Tx, snapshot *place.Snapshot) (jobs map[state.JobKey]seen, verdicts int) {
	fresh := t.Fresh()
	if m.seen == nil {
		m.seen = make(map[state.JobKey]seen, len(fresh))
	}
	clear(m.seen) // the latest transaction may not have been stored
	jobs, snapshot.Jobs = m.seen, slices.Grow(m.fresh[:0], len(fresh))
	groups := 0
	for _, k := range fresh {
		rec, _ := t.Job(k)
		if _, twice := jobs[k]; twice || rec == nil || rec.Stopped() {
			continue
		}
		job := rec.ToPlace(0)
		state.AddRefusals(t.State, rec, &job)
		if groups += len(job.Groups); groups > decidedGroups {
			break
		}
		verdicts += len(job.Groups) * len(snapshot.Regions)
		jobs[k] = seen{}
		job.Run = region.RunBegins
		snapshot.Jobs = append(snapshot.Jobs, job)
	}
	m.fresh = snapshot.Jobs
	return jobs, verdicts
}

// DecideMost returns the bound for state.Committer.DecideMost. The lock is held.
func DecideMost(*Placer) int { return decidedGroups }

func keyOf(a place.Action) state.JobKey { return state.JobKey{Namespace: a.Namespace, Name: a.Job} }

// errRegionChanged says that a request of the same transaction changes the region. The region may
// now be lost, draining or removed.
var errRegionChanged = errors.New("the region changes in this transaction")

func offer(t *state.Tx, actions []place.Action) error {
	for _, a := range actions {
		if rec, revision := t.Region(a.Region); rec == nil || revision == 0 {
			return errRegionChanged
		}
		if err := t.ChangeSlots(a.Changes()); err != nil {
			return err
		}
		addEvents(t, a)
	}
	return nil
}
