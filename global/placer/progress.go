package placer

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/progress"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/counts"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// storeEvery is the part of progress_deadline after which progress is stored again. Progress in
// between is soft: a new active server counts the deadline from the stored time.
const storeEvery = 10

// rollouts are the rollouts in progress. The state's lock guards them.
type rollouts struct {
	st   *state.State
	jobs map[state.JobKey]*rolling
}

// rolling is a rollout in progress.
type rolling struct {
	run, version int64
	groups       map[string]*groupRolling
	// canaries: the canaries are not promoted. steadyAt is since when all of them have been healthy; 0:
	// one is not.
	canaries bool
	steadyAt time.Duration
	// held is true if no deadline counted at the latest evaluation.
	held bool
	// due is when the next deadline is missed; 0: none counts.
	due time.Duration
}

// groupRolling is the progress of a group: the greatest number of healthy instances, since when, and
// since when instances have been starting.
type groupRolling struct {
	best int
	at   time.Duration
	busy progress.Clock
}

// expired marks the rollouts that have missed a deadline. The lock is held.
func (p *rollouts) expired(now time.Duration) (some bool) {
	for k, r := range p.jobs {
		if r.due > 0 && now >= r.due {
			p.st.Rollouts[k], some = struct{}{}, true
		}
	}
	return some
}

// evaluate evaluates the rollout of a job. It returns the record to store, or nil, and why. The lock is
// held.
func (p *rollouts) evaluate(k state.JobKey, j *state.Job) (next *nusav1.RolloutRecord, why string) {
	rec, run, version := j.PresentRollout(), j.Record.Run(j.Revision), j.Record.RolledOut()
	if version == 0 || rec.GetDone() || j.Record.Stopped() || j.Record.Type() == place.Batch {
		p.setDue(k, j, 0, 0)
		delete(p.jobs, k)
		return nil, ""
	}
	r := p.jobs[k]
	if stage := state.CanaryStage(rec); r == nil || r.run != run || r.version != version || r.canaries != stage {
		r = &rolling{run: run, version: version, canaries: stage, groups: map[string]*groupRolling{}}
		p.jobs[k] = r
	}
	facts := progress.Rollout{
		Version: version, Begun: rec != nil, Paused: rec.GetPaused(), Failed: rec.GetFailed() != "", Held: j.DeadlinesHeld(p.st.Sight()),
	}
	if o := j.Place().RegionOrder; o != nil && rec != nil && !r.canaries {
		at, failedIn := j.RegionsOfRollout(rec)
		facts.Updating, facts.Waiting, facts.Failing, facts.FailedIn = at.Updating, len(at.Waiting) > 0, at.Failing, failedIn
		facts.PauseLeft, _ = j.PauseLeft(rec)
		facts.Continue = o.Continue
	}
	held := facts.Paused || facts.Failed || facts.Held != "" || facts.PauseLeft > 0 && len(facts.Updating) == 0
	waits := false
	if r.canaries {
		waits = p.addCanaries(&facts, r, j, rec, held || r.held)
	} else {
		facts.Groups = p.groupsOf(r, j, rec, held || r.held) // a deadline begins again when it counts again
	}
	r.held = held || waits
	d := facts.Decide()
	p.setDue(k, j, d.Due, d.Left)
	switch d.Kind {
	case progress.Keep:
		if rec == nil {
			delete(p.jobs, k)
		}
		return nil, ""
	case progress.Begin:
		next = &nusav1.RolloutRecord{Run: run, Version: version, Began: timestamppb.Now(), Groups: map[string]*nusav1.RolloutProgress{}}
	default:
		next = proto.CloneOf(rec)
	}
	store := d.Kind != progress.Grew
	for _, g := range facts.Groups {
		stored := next.GetGroups()[g.Name]
		if soft := r.groups[g.Name]; stored == nil || g.Healthy > g.Best {
			soft.best, soft.at = max(soft.best, g.Healthy), p.st.Clock()
			store = store || time.Since(stored.GetSince().AsTime()) >= g.ProgressDeadline/storeEvery
			if next.Groups == nil {
				next.Groups = map[string]*nusav1.RolloutProgress{}
			}
			next.Groups[g.Name] = &nusav1.RolloutProgress{Healthy: int32(soft.best), Since: timestamppb.Now()}
		}
	}
	switch d.Kind {
	case progress.Promote:
		next.Promoted, next.Groups = true, nil
	case progress.Done:
		next.Canaries, next.Promoted = nil, false
		next.Done, next.Failed, next.Paused, next.PausedBecause, next.Groups = true, "", false, "", nil
		next.Regions, next.Unpaused, next.InPlace = nil, nil, j.InPlace()
	case progress.Fail:
		next.Failed = d.Why
	case progress.FailRegions: // deadlines begin again for the next regions
		next.Groups, r.held = nil, true
		for name, why := range d.Regions {
			endIn(next, name, why)
		}
	}
	if !store {
		return nil, ""
	}
	return next, d.Why
}

// setDue notes when a rollout must be evaluated again, and when it misses its next deadline; 0: never. The
// lock is held.
func (p *rollouts) setDue(k state.JobKey, j *state.Job, due, left time.Duration) {
	at := func(d time.Duration) time.Duration {
		if d == 0 {
			return 0
		}
		return p.st.Clock() + d
	}
	if r := p.jobs[k]; r != nil {
		r.due = at(due)
	}
	if misses := at(left); j.Notes().RolloutDue != misses {
		j.EditNotes().RolloutDue = misses
		p.st.JobChanged(j)
	}
}

// addCanaries adds the groups with canaries to the facts. It reports whether every canary is healthy.
// restart: deadlines begin now. The lock is held.
func (p *rollouts) addCanaries(to *progress.Rollout, r *rolling, j *state.Job, rec *nusav1.RolloutRecord, restart bool) (waits bool) {
	see, now := p.st.Sight(), p.st.Clock()
	healthy, groups := j.HealthyCanaries(rec, see), j.Status(see).GetGroups()
	to.Canaries, to.AutoPromote, waits = true, j.Record.AutoPromotes(rec), true
	for _, name := range slices.Sorted(maps.Keys(rec.GetCanaries())) {
		want := int(rec.GetCanaries()[name].GetCount())
		f := progress.Group{Name: name, Desired: want, Healthy: int(healthy[name])}
		if f.Healthy < want {
			f.Starting, waits = int(groups[name].GetCounts().GetStarting()+j.RetryingCanaries(rec, name, "", see)), false
		}
		p.time(&f, r, rec, restart)
		f.HealthyDeadline, f.ProgressDeadline = j.Record.Deadlines(name)
		to.Groups, to.MinHealthy = append(to.Groups, f), max(to.MinHealthy, j.Record.MinHealthy(name))
	}
	switch {
	case !waits || to.Paused || to.Failed || to.Held != "":
		r.steadyAt = 0
	case r.steadyAt == 0:
		r.steadyAt = now
	}
	if j.Notes().CanariesSince != r.steadyAt {
		j.EditNotes().CanariesSince = r.steadyAt
		p.st.JobChanged(j)
	}
	if r.steadyAt > 0 {
		to.Steady = now - r.steadyAt
	}
	return waits
}

// time adds since when a group has made no progress. The lock is held.
func (p *rollouts) time(f *progress.Group, r *rolling, rec *nusav1.RolloutRecord, restart bool) {
	now, soft := p.st.Clock(), r.groups[f.Name]
	if soft == nil {
		soft = &groupRolling{at: now}
		if stored := rec.GetGroups()[f.Name]; stored != nil {
			soft.best, soft.at = int(stored.GetHealthy()), now-max(0, time.Since(stored.GetSince().AsTime()))
		}
		r.groups[f.Name] = soft
	}
	if restart {
		soft.at = now
	}
	soft.busy.Note(f.Healthy, f.Starting > 0, now)
	f.Best, f.Idle, f.Busy = soft.best, now-soft.at, soft.busy.Busy(soft.at, now)
}

// groupsOf returns the groups of a rollout, sorted by name. restart: deadlines begin now. The lock is held.
func (p *rollouts) groupsOf(r *rolling, j *state.Job, rec *nusav1.RolloutRecord, restart bool) (out []progress.Group) {
	groups := j.Status(p.st.Sight()).GetGroups()
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		g, c := groups[name], groups[name].GetCounts()
		if j.Record.ChangedSince(name) != r.version && (c.GetOutdated() == 0 || j.Record.ChangedSince(name) == 0) {
			continue
		}
		healthy, starting := int32(0), j.Retrying(name, r.version, g.GetRegions())
		for _, at := range g.GetRegions() {
			run, start := counts.OfVersion(at)
			healthy, starting = healthy+run, starting+start
		}
		f := progress.Group{
			Name: name, Desired: int(g.GetDesired() - c.GetHeld()), Healthy: int(healthy), Starting: int(starting), Outdated: int(c.GetOutdated()),
		}
		p.time(&f, r, rec, restart)
		f.HealthyDeadline, f.ProgressDeadline = j.Record.Deadlines(name)
		out = append(out, f)
	}
	return out
}

// endIn adds to a record that the rollout has ended in a region.
func endIn(rec *nusav1.RolloutRecord, name, failed string) {
	if rec.Regions == nil {
		rec.Regions = map[string]*nusav1.RegionEnd{}
	}
	rec.Regions[name] = &nusav1.RegionEnd{At: timestamppb.Now(), Failed: failed}
}

// addEndEvent adds the event about the end of a rollout in a region.
func addEndEvent(t *state.Tx, k state.JobKey, version int64, name, failed string) {
	if failed != "" {
		t.EventAt(name, "rollout.region_failed", k.String(), "version %d failed in %s: %s", version, name, failed)
		return
	}
	t.EventAt(name, "rollout.region_done", k.String(), "version %d runs in %s", version, name)
}

// putProgress stores the record of a rollout, unless another one was stored since it was decided.
func putProgress(t *state.Tx, r pendingRollout) error {
	if t.Rollout(r.key) != r.before {
		return errChanged
	}
	for _, name := range slices.Sorted(maps.Keys(r.rollout.GetRegions())) {
		if end := r.rollout.GetRegions()[name]; r.before.GetRegions()[name].GetFailed() != end.GetFailed() || r.before.GetRegions()[name] == nil {
			addEndEvent(t, r.key, r.rollout.GetVersion(), name, end.GetFailed())
		}
	}
	if r.rollout.GetFailed() != "" {
		t.Event("rollout.failed", r.key.String(), "version %d: %s", r.rollout.GetVersion(), r.why)
	}
	if r.rollout.GetPromoted() && !r.before.GetPromoted() {
		t.Event("rollout.promoted", r.key.String(), "version %d: %s", r.rollout.GetVersion(), r.why)
	}
	return t.PutRollout(r.key, r.rollout)
}
