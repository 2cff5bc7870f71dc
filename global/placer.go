package global

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// planJobs bounds the jobs of one plan; the rest come right after, so that
	// those which wait for room keep nobody from being looked at.
	planJobs = 2048
	// fullPlanJobs is up to how many jobs a plan explains each region; beyond
	// it the explanations are made when somebody asks.
	fullPlanJobs = 64
	// actionsPerCommit keeps the writes of a request (three a split) within
	// one transaction.
	actionsPerCommit = 40
	// explanationsKept is of how many jobs the full explanation is kept.
	explanationsKept = 4096
)

// Decision is the latest decision about a group. One that placed something
// stays until there is another: it is the one that people ask about.
type Decision struct {
	place.GroupExplanation
	At time.Duration
	// full: with every region.
	Full bool
}

// seen says which state of a job a plan saw.
type seen struct {
	changes uint64
	rev     int64
}

// placeLoop is the placer: woken by whatever may change a decision, it plans
// once over everything that has happened by then.
func (a *active) placeLoop(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.woken:
		}
		for _, work := range []func(context.Context) error{a.place, a.purge, a.results, a.rollouts} {
			switch err := work(ctx); {
			case err == nil:
			case errors.Is(err, ErrQueueFull):
				a.wakePlacer() // what waits in the queue drains without us
			default:
				return err
			}
		}
		a.subscribe()
	}
}

// place looks once at every job that is pending, most urgent first.
func (a *active) place(ctx context.Context) error {
	a.st.mu.Lock()
	keys := slices.SortedFunc(maps.Keys(a.st.Pending), a.st.byUrgency)
	a.st.mu.Unlock()
	for some := range slices.Chunk(keys, planJobs) {
		if err := a.placeSome(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// placeSome makes one plan and carries it out.
func (a *active) placeSome(ctx context.Context, keys []JobKey) error {
	start := time.Now()
	a.st.mu.Lock()
	snapshot, jobs := a.st.snapshot(keys)
	a.st.mu.Unlock()
	if len(jobs) == 0 {
		return nil
	}
	plan := place.MakePlan(snapshot)
	a.metrics.observePlan(time.Since(start))
	a.st.mu.Lock()
	a.st.planned(plan, jobs, !snapshot.Terse)
	a.st.mu.Unlock()
	for batch := range slices.Chunk(plan.Actions, actionsPerCommit) {
		if err := a.carryOut(ctx, batch, jobs); err != nil {
			return fmt.Errorf("carry out the plan: %w", err)
		}
	}
	return nil
}

// snapshotRegions is the part of a snapshot that is the same for all jobs. mu
// is held.
func (st *State) snapshotRegions() place.Snapshot {
	now := st.Clock()
	out := place.Snapshot{Topology: st.topologyView()}
	for _, name := range st.RegionNames() {
		r := st.Regions[name]
		out.Regions = append(out.Regions, st.placeRegion(r, now))
		for _, ret := range r.Refusals {
			out.Returned = append(out.Returned, ret.ForPlacer(now))
		}
	}
	return out
}

// snapshot is what the next plan depends on: those of the jobs that are still
// pending, and others whose latest slots are not in the regions' reports yet.
// mu is held.
func (st *State) snapshot(keys []JobKey) (place.Snapshot, map[JobKey]seen) {
	out := st.snapshotRegions()
	jobs := make(map[JobKey]seen, len(keys))
	for _, k := range keys {
		if _, pending := st.Pending[k]; !pending {
			continue
		}
		j := st.Jobs[k]
		if j == nil || j.Record == nil {
			delete(st.Pending, k)
			continue
		}
		jobs[k] = seen{j.Changes, j.Revision}
		job := j.ForPlacer()
		job.Groups, job.Disconnected = j.Groups(st.Clock()), st.Disconnected(j)
		out.Jobs = append(out.Jobs, job)
	}
	if len(jobs) == 0 {
		return out, nil
	}
	out.Terse, out.Origins = len(jobs) > fullPlanJobs, st.Serving(out.Jobs)
	for k := range st.Recent {
		j := st.Jobs[k]
		if _, also := jobs[k]; also || j == nil || j.Record == nil {
			continue
		}
		if !st.Uncharged(j) {
			delete(st.Recent, k)
			continue
		}
		other := j.ForPlacer()
		other.Breaches = nil // its own turn comes
		out.Jobs = append(out.Jobs, other)
	}
	return out, jobs
}

// byUrgency orders jobs by priority, then age.
func (st *State) byUrgency(a, b JobKey) int {
	x, y := st.Jobs[a], st.Jobs[b]
	switch {
	case x == nil || y == nil:
		return strings.Compare(a.String(), b.String())
	case x.Spec.Priority != y.Spec.Priority:
		return y.Spec.Priority - x.Spec.Priority
	case x.Revision != y.Revision:
		return int(x.Revision - y.Revision)
	}
	return strings.Compare(a.String(), b.String())
}

// Uncharged says whether a slot of the job is not in its region's report yet, or
// will need room in another.
func (st *State) Uncharged(j *Job) bool {
	for _, s := range j.Slots {
		if r := st.Regions[s.Region]; s.Desired == region.DesiredRevoke || r != nil && s.Generation > r.Report.GetSlotsRevision() {
			return true
		}
	}
	return false
}

// ForPlacer is the job with its slots. mu is held.
func (j *Job) ForPlacer() place.Job {
	out := j.Spec
	out.Slots = j.SortedSlots()
	out.Breaches = j.Breaches
	out.Summaries = j.Reported(j.Record)
	if sustained(j.Breaches) {
		out.Down = j.NotRunning()
	}
	return out
}

func SortSlots(slots []region.Slot) {
	slices.SortFunc(slots, func(a, b region.Slot) int {
		if c := strings.Compare(a.Group, b.Group); c != 0 {
			return c
		}
		if a.From != b.From {
			return a.From - b.From
		}
		return strings.Compare(a.Region, b.Region)
	})
}

// planned keeps the explanations of a plan, and forgets jobs that need
// nothing more. mu is held.
func (st *State) planned(plan place.Plan, jobs map[JobKey]seen, full bool) {
	unsettled := map[JobKey]bool{}
	for _, act := range plan.Actions {
		unsettled[JobKey{act.Namespace, act.Job}] = true
	}
	now := st.Clock()
	st.movesPlanned(plan, jobs, now)
	for k := range st.stagesPlanned(plan, jobs) {
		unsettled[k] = true
	}
	st.RecordUnplaced(plan, now)
	for _, g := range plan.Groups {
		k := JobKey{g.Namespace, g.Job}
		j := st.Jobs[k]
		if _, asked := jobs[k]; !asked || j == nil {
			continue
		}
		if g.Unplaced > 0 {
			unsettled[k] = true
		}
		if full && j.Decisions == nil {
			st.remember(k)
		}
		if j.Decisions == nil {
			j.Decisions = map[string]Decision{}
		}
		j.Decisions[g.Group] = Decision{GroupExplanation: g, At: now, Full: full}
		j.Stamp = st.Notify()
	}
	for _, a := range st.asks {
		a.waiting = 0
	}
	for k, seen := range jobs {
		j := st.Jobs[k]
		if j != nil && !unsettled[k] && len(st.Disconnected(j)) == 0 && j.Changes == seen.changes {
			delete(st.Pending, k)
		}
	}
	st.asksDirty = true
	for k := range st.Pending {
		j := st.Jobs[k]
		if j == nil {
			continue
		}
		for _, hash := range j.asks {
			if a := st.asks[hash]; a != nil {
				a.waiting++
			}
		}
	}
}

// remember bounds the explanations with every region: those of the oldest
// decisions are dropped. mu is held.
func (st *State) remember(k JobKey) {
	st.explained = append(st.explained, k)
	if len(st.explained) <= explanationsKept {
		return
	}
	if j := st.Jobs[st.explained[0]]; j != nil {
		for name, e := range j.Decisions {
			e.Regions, e.Full = nil, false
			j.Decisions[name] = e
		}
	}
	st.explained = st.explained[1:]
}

// carryOut writes actions in one transaction. Those of a job or a slot that
// changed since the plan are left: the next plan, which the change has asked
// for, decides anew; so are offers to a region that was removed. (Only the
// placer gives owners to indices, so those of an offer are still free.)
func (a *active) carryOut(ctx context.Context, actions []place.Action, jobs map[JobKey]seen) error {
	var done []place.Action
	revision, err := a.commit.Do(ctx, func(t *Tx) error {
		done = done[:0]
		for _, act := range actions {
			k := JobKey{act.Namespace, act.Job}
			changes := act.Changes()
			if rec, rev := t.Job(k); rec == nil || rev != jobs[k].rev || t.Stale(changes) {
				continue
			}
			if at, _ := t.Region(act.Region); at == nil && act.Kind == place.Offer {
				continue
			}
			if err := t.ChangeSlots(changes); err != nil {
				return err
			}
			done = append(done, act)
		}
		return nil
	})
	if err != nil {
		return err
	}
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	for _, act := range done {
		k := JobKey{act.Namespace, act.Job}
		a.st.Events.Add("slot."+pastTense(act.Kind), k.String(), "%s%s to %s: %s",
			act.Group, region.FormatRange(act.From, act.To), act.Region, act.Why)
	}
	a.metrics.placed(done)
	a.log.Debug("plan carried out", "actions", len(done), "left", len(actions)-len(done), "revision", revision)
	return nil
}

func pastTense(k place.Kind) string {
	switch k {
	case place.Offer:
		return "offered"
	case place.Update:
		return "updated"
	case place.Stop:
		return "stopping"
	}
	return "revoking"
}

// purge forgets stopped jobs that nobody owns a slot of any more.
func (a *active) purge(ctx context.Context) error {
	a.st.mu.Lock()
	var keys []JobKey
	for k := range a.st.Purge {
		switch j := a.st.Jobs[k]; {
		case j == nil || !j.Record.GetPurge():
			delete(a.st.Purge, k)
		case len(j.Slots) == 0:
			keys = append(keys, k)
		}
	}
	a.st.mu.Unlock()
	for _, k := range keys {
		purged := false
		_, err := a.commit.Do(ctx, func(t *Tx) error {
			rec, _ := t.Job(k)
			if purged = rec.GetPurge() && len(t.Slots(k, "")) == 0; !purged {
				return nil
			}
			return t.DeleteJob(k)
		})
		if err != nil {
			return fmt.Errorf("purge %s: %w", k, err)
		}
		if purged {
			a.st.Events.Add("job.purged", k.String(), "forgotten")
		}
	}
	return nil
}

// results stores how jobs ended.
func (a *active) results(ctx context.Context) error {
	type result struct {
		key JobKey
		rec *nusav1.ResultRecord
	}
	var out []result
	a.st.mu.Lock()
	for k := range a.st.Ended {
		delete(a.st.Ended, k)
		j := a.st.Jobs[k]
		if j == nil || j.Record == nil || j.Record.GetJob().GetStopped() {
			continue
		}
		status := j.Status()
		if !HasEnded(status.GetState()) {
			continue
		}
		rec := &nusav1.ResultRecord{Version: j.Record.GetJob().GetVersion(), Run: RunOf(j.Record, j.Revision), Status: storable(status)}
		if !proto.Equal(rec, j.Result) {
			out = append(out, result{k, rec})
		}
	}
	a.st.mu.Unlock()
	for i, r := range out {
		_, err := a.commit.Do(ctx, func(t *Tx) error {
			if rec, rev := t.Job(r.key); rec == nil || RunOf(rec, rev) != r.rec.GetRun() {
				return nil // it was purged, or another run has begun
			}
			return t.PutBlind(r.key.ResultKey(), r.rec, 0)
		})
		if err != nil {
			a.st.mu.Lock()
			for _, left := range out[i:] {
				a.st.Ended[left.key] = struct{}{} // again with the next wake
			}
			a.st.mu.Unlock()
			return fmt.Errorf("store the result of %s: %w", r.key, err)
		}
		state := EnumWord(r.rec.GetStatus().GetState().String(), "JOB_STATE_")
		a.st.Events.Add("job."+state, r.key.String(), "%s", r.rec.GetStatus().GetMessage())
	}
	return nil
}

// maxResult bounds a stored result in bytes, well within a transaction.
const maxResult = 512 << 10

// storable is a status as it is stored: without the slots, which are shown as
// they are, and of reasons and regions only the sums where there are too many.
func storable(s *nusav1.JobStatus) *nusav1.JobStatus {
	for _, g := range s.GetGroups() {
		g.Slots = nil
	}
	for _, most := range []int{MaxCounts, 8, 1} {
		if proto.Size(s) <= maxResult {
			return s
		}
		for _, g := range s.GetGroups() {
			g.Pending = g.Pending[:min(len(g.Pending), most)]
		}
	}
	if proto.Size(s) > maxResult {
		for _, g := range s.GetGroups() {
			g.Regions = nil
		}
	}
	return s
}

// subscribe tells regions the asks of the jobs, when they are others now.
func (a *active) subscribe() {
	st := a.st
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.asksDirty {
		return
	}
	st.asksDirty = false
	hashes := st.Subscriptions()
	if slices.Equal(hashes, a.subscribed) {
		return
	}
	a.subscribed = hashes
	for _, r := range st.Regions {
		if r.Session != nil {
			r.Session.shapesDirty = true
			r.Session.wake()
		}
	}
}
