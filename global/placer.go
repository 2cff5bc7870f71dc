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

// explained is the latest decision about a group. One that placed something
// stays until there is another: it is the one that people ask about.
type explained struct {
	place.GroupExplanation
	at time.Duration
	// full: with every region.
	full bool
}

// lookedAt says which state of a job a plan saw.
type lookedAt struct {
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
			case errors.Is(err, errQueueFull):
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
	keys := slices.SortedFunc(maps.Keys(a.st.pending), a.st.byUrgency)
	a.st.mu.Unlock()
	for some := range slices.Chunk(keys, planJobs) {
		if err := a.placeSome(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// placeSome makes one plan and carries it out.
func (a *active) placeSome(ctx context.Context, keys []jobKey) error {
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
func (st *state) snapshotRegions() place.Snapshot {
	now := st.clock()
	out := place.Snapshot{Topology: st.topologyView()}
	for _, name := range st.regionNames() {
		r := st.regions[name]
		out.Regions = append(out.Regions, st.planRegion(r, now))
		for _, ret := range r.returned {
			out.Returned = append(out.Returned, ret.forPlacer(now))
		}
	}
	return out
}

// snapshot is what the next plan depends on: those of the jobs that are still
// pending, and others whose latest slots are not in the regions' reports yet.
// mu is held.
func (st *state) snapshot(keys []jobKey) (place.Snapshot, map[jobKey]lookedAt) {
	out := st.snapshotRegions()
	jobs := make(map[jobKey]lookedAt, len(keys))
	for _, k := range keys {
		if _, pending := st.pending[k]; !pending {
			continue
		}
		j := st.jobs[k]
		if j == nil || j.rec == nil {
			delete(st.pending, k)
			continue
		}
		jobs[k] = lookedAt{j.changes, j.rev}
		job := j.forPlacer()
		job.Groups, job.Disconnected = j.waiting(st.clock()), st.away(j)
		out.Jobs = append(out.Jobs, job)
	}
	if len(jobs) == 0 {
		return out, nil
	}
	out.Terse, out.Origins = len(jobs) > fullPlanJobs, st.serving(out.Jobs)
	for k := range st.recent {
		j := st.jobs[k]
		if _, also := jobs[k]; also || j == nil || j.rec == nil {
			continue
		}
		if !st.uncharged(j) {
			delete(st.recent, k)
			continue
		}
		other := j.forPlacer()
		other.Breaches = nil // its own turn comes
		out.Jobs = append(out.Jobs, other)
	}
	return out, jobs
}

// byUrgency orders jobs by priority, then age.
func (st *state) byUrgency(a, b jobKey) int {
	x, y := st.jobs[a], st.jobs[b]
	switch {
	case x == nil || y == nil:
		return strings.Compare(a.String(), b.String())
	case x.plan.Priority != y.plan.Priority:
		return y.plan.Priority - x.plan.Priority
	case x.rev != y.rev:
		return int(x.rev - y.rev)
	}
	return strings.Compare(a.String(), b.String())
}

// uncharged says whether a slot of the job is not in its region's report yet, or
// will need room in another.
func (st *state) uncharged(j *jobState) bool {
	for _, s := range j.slots {
		if r := st.regions[s.Region]; s.Desired == region.DesiredRevoke || r != nil && s.Generation > r.report.GetSlotsRevision() {
			return true
		}
	}
	return false
}

// forPlacer is the job with its slots. mu is held.
func (j *jobState) forPlacer() place.Job {
	out := j.plan
	out.Slots = j.sortedSlots()
	out.Breaches = j.breaches
	out.Summaries = j.told(j.rec)
	if sustained(j.breaches) {
		out.Down = j.down()
	}
	return out
}

func sortSlots(slots []region.Slot) {
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
func (st *state) planned(plan place.Plan, jobs map[jobKey]lookedAt, full bool) {
	unsettled := map[jobKey]bool{}
	for _, act := range plan.Actions {
		unsettled[jobKey{act.Namespace, act.Job}] = true
	}
	now := st.clock()
	st.movesPlanned(plan, jobs, now)
	for k := range st.stagesPlanned(plan, jobs) {
		unsettled[k] = true
	}
	st.lacking(plan, now)
	for _, g := range plan.Groups {
		k := jobKey{g.Namespace, g.Job}
		j := st.jobs[k]
		if _, asked := jobs[k]; !asked || j == nil {
			continue
		}
		if g.Unplaced > 0 {
			unsettled[k] = true
		}
		if full && j.explained == nil {
			st.remember(k)
		}
		if j.explained == nil {
			j.explained = map[string]explained{}
		}
		j.explained[g.Group] = explained{GroupExplanation: g, at: now, full: full}
		j.stamp = st.notify()
	}
	for _, a := range st.asks {
		a.waiting = 0
	}
	for k, seen := range jobs {
		j := st.jobs[k]
		if j != nil && !unsettled[k] && len(st.away(j)) == 0 && j.changes == seen.changes {
			delete(st.pending, k)
		}
	}
	st.asksDirty = true
	for k := range st.pending {
		j := st.jobs[k]
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
func (st *state) remember(k jobKey) {
	st.explained = append(st.explained, k)
	if len(st.explained) <= explanationsKept {
		return
	}
	if j := st.jobs[st.explained[0]]; j != nil {
		for name, e := range j.explained {
			e.Regions, e.full = nil, false
			j.explained[name] = e
		}
	}
	st.explained = st.explained[1:]
}

// carryOut writes actions in one transaction. Those of a job or a slot that
// changed since the plan are left: the next plan, which the change has asked
// for, decides anew; so are offers to a region that was removed. (Only the
// placer gives owners to indices, so those of an offer are still free.)
func (a *active) carryOut(ctx context.Context, actions []place.Action, jobs map[jobKey]lookedAt) error {
	var done []place.Action
	revision, err := a.commit.do(ctx, func(t *tx) error {
		done = done[:0]
		for _, act := range actions {
			k := jobKey{act.Namespace, act.Job}
			changes := act.Changes()
			if rec, rev := t.job(k); rec == nil || rev != jobs[k].rev || t.stale(changes) {
				continue
			}
			if at, _ := t.region(act.Region); at == nil && act.Kind == place.Offer {
				continue
			}
			if err := t.changeSlots(changes); err != nil {
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
		k := jobKey{act.Namespace, act.Job}
		a.st.events.Add("slot."+pastTense(act.Kind), k.String(), "%s%s to %s: %s",
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
	var keys []jobKey
	for k := range a.st.purge {
		switch j := a.st.jobs[k]; {
		case j == nil || !j.rec.GetPurge():
			delete(a.st.purge, k)
		case len(j.slots) == 0:
			keys = append(keys, k)
		}
	}
	a.st.mu.Unlock()
	for _, k := range keys {
		purged := false
		_, err := a.commit.do(ctx, func(t *tx) error {
			rec, _ := t.job(k)
			if purged = rec.GetPurge() && len(t.slots(k, "")) == 0; !purged {
				return nil
			}
			return t.deleteJob(k)
		})
		if err != nil {
			return fmt.Errorf("purge %s: %w", k, err)
		}
		if purged {
			a.st.events.Add("job.purged", k.String(), "forgotten")
		}
	}
	return nil
}

// results stores how jobs ended.
func (a *active) results(ctx context.Context) error {
	type result struct {
		key jobKey
		rec *nusav1.ResultRecord
	}
	var out []result
	a.st.mu.Lock()
	for k := range a.st.ended {
		delete(a.st.ended, k)
		j := a.st.jobs[k]
		if j == nil || j.rec == nil || j.rec.GetJob().GetStopped() {
			continue
		}
		status := j.status()
		if !ended(status.GetState()) {
			continue
		}
		rec := &nusav1.ResultRecord{Version: j.rec.GetJob().GetVersion(), Run: runOf(j.rec, j.rev), Status: storable(status)}
		if !proto.Equal(rec, j.result) {
			out = append(out, result{k, rec})
		}
	}
	a.st.mu.Unlock()
	for i, r := range out {
		_, err := a.commit.do(ctx, func(t *tx) error {
			if rec, rev := t.job(r.key); rec == nil || runOf(rec, rev) != r.rec.GetRun() {
				return nil // it was purged, or another run has begun
			}
			return t.putBlind(r.key.result(), r.rec, 0)
		})
		if err != nil {
			a.st.mu.Lock()
			for _, left := range out[i:] {
				a.st.ended[left.key] = struct{}{} // again with the next wake
			}
			a.st.mu.Unlock()
			return fmt.Errorf("store the result of %s: %w", r.key, err)
		}
		state := enumWord(r.rec.GetStatus().GetState().String(), "JOB_STATE_")
		a.st.events.Add("job."+state, r.key.String(), "%s", r.rec.GetStatus().GetMessage())
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
	for _, most := range []int{maxCounts, 8, 1} {
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
	hashes := st.subscriptions()
	if slices.Equal(hashes, a.subscribed) {
		return
	}
	a.subscribed = hashes
	for _, r := range st.regions {
		if r.session != nil {
			r.session.shapesDirty = true
			r.session.wake()
		}
	}
}
