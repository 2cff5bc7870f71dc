package placer

import (
	"errors"
	"slices"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
)

const (
	// fullVerdicts is the most verdicts (jobs times regions) for which new jobs get a full
	// explanation with their submit.
	fullVerdicts = 256
	// maxVerdicts bounds the verdicts that are made while the lock is held: some 15 ms.
	maxVerdicts = 20_000
	// maxRivals bounds the asks of waiting jobs that a new job is compared with.
	maxRivals = 16
)

// Decide adds to a transaction the slots of the jobs that it submits, see
// state.Committer.Decide. So a new job is stored and offered in one write. The jobs that
// find no room, and those that would take the room of a job that waits, are decided by the
// next plan. The lock is held.
func Decide(p *Placer, t *state.Tx) (stored func()) {
	st := p.st
	rivals, few := st.Demand.Waiting(maxRivals)
	if !few || st.Leadership.GetConflict() != nil {
		return nil
	}
	snapshot := regionsSnapshot(st)
	jobs := map[state.JobKey]seen{}
	fresh := t.Fresh()
	for _, k := range fresh[:min(len(fresh), maxVerdicts/max(1, len(snapshot.Regions)))] {
		rec, _ := t.Job(k)
		if _, twice := jobs[k]; twice || rec == nil || rec.GetJob().GetStopped() {
			continue
		}
		jobs[k] = seen{}
		job := state.JobToPlace(rec, 0)
		job.Run = region.RunBegins
		snapshot.Jobs = append(snapshot.Jobs, job)
	}
	full := len(jobs)*len(snapshot.Regions) <= fullVerdicts
	snapshot.Terse, snapshot.Origins = !full, st.Origins.Serving(snapshot.Jobs)
	plan := place.MakePlan(snapshot)
	room := place.NewRoom(snapshot)
	var done []place.Action
	for from := 0; from < len(plan.Actions); {
		to := from + 1
		for to < len(plan.Actions) && keyOf(plan.Actions[to]) == keyOf(plan.Actions[from]) {
			to++
		}
		actions := plan.Actions[from:to]
		from = to
		written := !slices.ContainsFunc(actions, func(a place.Action) bool { return a.Kind != place.Offer || wanted(room, a, rivals) }) &&
			t.Try(func() error { return offer(t, actions) })
		if written {
			done = append(done, actions...)
		} else {
			delete(jobs, keyOf(actions[0]))
		}
	}
	return func() { p.decided(plan, done, jobs, full) }
}

func keyOf(a place.Action) state.JobKey { return state.JobKey{Namespace: a.Namespace, Name: a.Job} }

// wanted says whether a job that waits would fit where an action offers instances.
func wanted(room place.Room, a place.Action, rivals []place.Ask) bool {
	return slices.ContainsFunc(rivals, func(ask place.Ask) bool { return room.Fits(a.Region, ask) > 0 })
}

// errRegionChanged says that a request of the same transaction changes the region: it may be
// lost, draining or gone.
var errRegionChanged = errors.New("the region changes in this transaction")

func offer(t *state.Tx, actions []place.Action) error {
	for _, a := range actions {
		if rec, revision := t.Region(a.Region); rec == nil || revision == 0 {
			return errRegionChanged
		}
		if err := t.ChangeSlots(a.Changes()); err != nil {
			return err
		}
	}
	return nil
}
