package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/compact"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/progress"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/internal/notify"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Job is a job with its slots and the regions' reports about it. The state's lock guards it.
type Job struct {
	Key JobKey
	// path is Key.String() of a job with a record. It shares its memory with Key.
	path string
	// Record is nil when the job is removed and only slots of it remain.
	Record   *Record
	Revision int64
	Slots    compact.Slots
	// Summaries are the latest summaries of the job, by region.
	Summaries compact.Summaries
	// Result is the stored result of the job's latest run that ended.
	Result *nusav1.ResultRecord
	// Healthy is the stored record of the latest version that ran with all instances.
	Healthy *Record
	// StoredRollout is the stored record of the job's latest rollout. Nobody may change it.
	StoredRollout *nusav1.RolloutRecord
	// canaried is the job in the form of package place if the present version has canaries, otherwise
	// nil: see Place.
	canaried *place.Job
	// Changes counts the durable changes of the job and its slots.
	Changes uint64
	// Stamp is the number of the latest change that a watch shows.
	Stamp uint64
	// watched notifies the watches of the job that it has changed or is removed. Nil: no watch
	// waits.
	watched *notify.Signal

	// Decisions are the latest decisions of the placer, by group.
	Decisions Decisions
	// notes are nil for most jobs: see Notes.
	notes *Notes

	// near: State.Near has the job.
	near bool
	// weight is the weight of the job in Room.
	weight int64
	// demand is the part of each group in State.Demand. It is empty for a stopped job.
	demand []groupDemand
}

// Notes are the values of a job that few jobs have. They are soft: a new active server starts
// without them.
type Notes struct {
	// Breaches are the near rules that are broken.
	Breaches []place.Breach
	// unplaced says, by group, since when instances of the group have had no region.
	unplaced map[string]*unplacedGroup
	// released holds the instances that regions gave up recently, oldest first.
	released []releasedInstances
	// Stays says, by Slot.Key, why a due slot of a lost region has not moved. The reasons are
	// those of the latest plan.
	Stays map[string]string
	// RolloutWaits has, by region, the reason of the latest plan why a new version has not reached
	// the region.
	RolloutWaits map[string]string
	// RolloutDue is when the rollout misses its next deadline; 0: none counts.
	RolloutDue time.Duration
	// CanariesSince is since when every canary has been healthy; 0: one is not.
	CanariesSince time.Duration
	// Moves are the decisions of the latest plan about sustained breaches. MovesAt is the time of
	// that plan.
	Moves   []place.Move
	MovesAt time.Duration
	// Leaves says how the latest plan moves instances out of draining regions.
	Leaves []place.Leave
}

var noNotes Notes

// Notes returns the notes about a job. The caller must not change them. The lock is held.
func (j *Job) Notes() *Notes {
	if j.notes == nil {
		return &noNotes
	}
	return j.notes
}

// EditNotes returns the notes about a job for a change. The lock is held.
func (j *Job) EditNotes() *Notes {
	if j.notes == nil {
		j.notes = &Notes{}
	}
	return j.notes
}

// noJob stands for a job without a record.
var noJob place.Job

// Place returns what the spec of the job says, in the form that package place takes. Jobs that differ
// only in their names share it, so the values that are not in the spec are missing: see Alone. Nobody
// may change it. The lock is held.
func (j *Job) Place() *place.Job {
	if j.Record == nil {
		return &noJob
	}
	if j.canaried != nil {
		return j.canaried
	}
	return &j.Record.spec.job
}

// Alone returns the job without its slots, in the form that package place takes. The lock is held.
func (j *Job) Alone() place.Job {
	if j.Record == nil {
		return noJob
	}
	if j.canaried != nil {
		return *j.canaried
	}
	return j.stored()
}

// stored returns the job's record in the form that package place takes. The lock is held.
func (j *Job) stored() place.Job {
	out := j.Record.ToPlace(j.Revision)
	out.Namespace, out.Name = j.Key.Namespace, j.Key.Name
	return out
}

// followCanaries updates what Place returns after a change of the job or its rollout. The lock is held.
func (j *Job) followCanaries() {
	j.canaried = nil
	if rec := j.PresentRollout(); len(rec.GetCanaries()) > 0 && !rec.GetDone() {
		out := withCanaries(j.stored(), rec, j.Record.AutoPromotes(rec))
		j.canaried = &out
	}
}

// Planned returns a job as a transaction leaves it, without its slots. rev is the revision of its record.
func Planned(t *Tx, k JobKey, rec *Record, rev int64) place.Job {
	out := rec.ToPlace(rev)
	if r := t.Rollout(k); rec != nil && !rec.Stopped() && r.GetRun() == rec.Run(rev) && r.GetVersion() == rec.RolledOut() {
		out = withCanaries(out, r, rec.AutoPromotes(r))
		if out.RegionOrder != nil {
			out.RegionOrder = withEnds(out.RegionOrder, r)
		}
		if r.GetFailed() != "" || r.GetPaused() {
			out.RolloutHold, out.Paused = holdText(r), r.GetFailed() == ""
		}
		if j := t.State.Jobs[k]; j != nil && out.RolloutHold != "" && j.Record != nil && j.Record.Run(j.Revision) == rec.Run(rev) {
			out.KeepStable(j.stable())
		}
	}
	AddRefusals(t.State, rec, &out)
	return out
}

// withCanaries returns a job whose groups have the indices that its rollout asks for, and why the
// instances below the canaries wait. auto: healthy canaries are promoted.
func withCanaries(p place.Job, rec *nusav1.RolloutRecord, auto bool) place.Job {
	if len(rec.GetCanaries()) == 0 || rec.GetDone() {
		return p
	}
	p.Groups = slices.Clone(p.Groups)
	for i := range p.Groups {
		g := &p.Groups[i]
		if c := rec.GetCanaries()[g.Name]; c != nil {
			of := progress.Canaries{From: int(c.GetFrom()), N: int(c.GetCount()), Promoted: rec.GetPromoted(), Failed: rec.GetFailed() != ""}
			g.Count, g.CanaryFrom = of.Indices(g.Count)
		}
	}
	if !rec.GetPromoted() {
		until := "promoted"
		if auto {
			until = "healthy"
		}
		p.RolloutHold = fmt.Sprintf("version %d waits until its canaries are %s", rec.GetVersion(), until)
	}
	return p
}

// addCanaries adds what a rollout shows until its canaries are promoted. The lock is held.
func (j *Job) addCanaries(r *nusav1.Rollout, rec *nusav1.RolloutRecord, see Sight) {
	r.State = nusav1.RolloutState_ROLLOUT_STATE_CANARY
	auto, healthy := j.Record.AutoPromotes(rec), j.HealthyCanaries(rec, see)
	for name, c := range rec.GetCanaries() {
		r.Canaries += c.GetCount()
		r.HealthyCanaries += healthy[name]
	}
	steady := r.GetHealthyCanaries() >= r.GetCanaries()
	if due := j.Notes().RolloutDue; due > 0 && !steady {
		r.Deadline = durationpb.New(max(0, due-see.st.Clock()))
	}
	r.AwaitsPromotion = !auto && steady && CanariesSteady(j, rec, see)
	switch {
	case r.GetAwaitsPromotion():
		r.Message = fmt.Sprintf("%d of %d canaries are healthy: it waits for `nusa job promote %s`, or `nusa job fail %s`", r.GetHealthyCanaries(), r.GetCanaries(), j.Key.Name, j.Key.Name)
	case steady:
		r.Message = fmt.Sprintf("%d of %d canaries are healthy, but not yet for min_healthy", r.GetHealthyCanaries(), r.GetCanaries())
		if left, known := steadyLeft(j, rec, see); known && left > 0 {
			r.Message += ": " + jobstatus.Span(left) + " more"
		}
	}
}

// CanariesSteady reports whether every canary of a rollout has been healthy for min_healthy. The first
// attempt of an instance counts as running at once, and a canary is always a first attempt. The lock is
// held.
func CanariesSteady(j *Job, rec *nusav1.RolloutRecord, see Sight) bool {
	left, known := steadyLeft(j, rec, see)
	return known && left <= 0
}

// steadyLeft returns after what time every canary will have been healthy for min_healthy, if all are healthy now.
func steadyLeft(j *Job, rec *nusav1.RolloutRecord, see Sight) (left time.Duration, known bool) {
	for name := range rec.GetCanaries() {
		left = max(left, j.Record.MinHealthy(name))
	}
	since := j.Notes().CanariesSince
	if since == 0 || see.st == nil {
		return 0, false
	}
	return left - (see.st.Clock() - since), true
}

// CanaryStage reports whether a rollout has canaries that are not promoted.
func CanaryStage(rec *nusav1.RolloutRecord) bool {
	return len(rec.GetCanaries()) > 0 && !rec.GetPromoted() && !rec.GetDone()
}

// HealthyCanaries returns, by group, how many canaries of a rollout are healthy. A region that is cut
// off shows none. The lock is held.
func (j *Job) HealthyCanaries(rec *nusav1.RolloutRecord, see Sight) map[string]int32 {
	out := map[string]int32{}
	for _, at := range canariesOf(j, rec, see) {
		out[at.group] += at.healthy
	}
	return out
}

// holdsCanary reports whether the override of a region may keep a canary stopped: the region has one that is not
// healthy. The lock is held.
func holdsCanary(j *Job, name string, see Sight) bool {
	rec := j.PresentRollout()
	if j.Summaries.Get(name).GetOverride().GetHeld() == 0 || !CanaryStage(rec) {
		return false
	}
	return slices.ContainsFunc(canariesOf(j, rec, see), func(at canaries) bool { return at.region == name && at.healthy < at.owned })
}

// canaries are those of a group in a region.
type canaries struct {
	group, region  string
	owned, healthy int32
}

// canariesOf returns the canaries of a rollout that have a region. The lock is held.
func canariesOf(j *Job, rec *nusav1.RolloutRecord, see Sight) (all []canaries) {
	for s := range j.Slots.All() {
		c := rec.GetCanaries()[s.Group]
		if c == nil || s.Desired != region.DesiredRun || s.JobVersion < rec.GetVersion() || s.Region == "" {
			continue
		}
		at := slices.IndexFunc(all, func(x canaries) bool { return x.group == s.Group && x.region == s.Region })
		if at < 0 {
			at, all = len(all), append(all, canaries{group: s.Group, region: s.Region})
		}
		all[at].owned += max(0, min(int32(s.To), c.GetFrom()+c.GetCount())-max(int32(s.From), c.GetFrom()))
	}
	for i := range all {
		at := &all[i]
		sum := j.Summaries.Get(at.region)
		if _, cut := see.CutOff(at.region); cut || sum.GetRun() != rec.GetRun() {
			continue
		}
		running := int32(0)
		if more := sum.GetNewer()[at.group]; more.GetVersion() >= rec.GetVersion() {
			running = more.GetRunning()
		} else if sum.GetVersion() >= rec.GetVersion() {
			running = sum.GetGroups()[at.group].GetRunning() - sum.GetGroups()[at.group].GetOutdated()
		}
		at.healthy = min(at.owned, max(0, running))
	}
	return all
}

// Watched returns a channel that is closed at the next change that a watch of the job shows, and
// when the job is removed. The lock is held.
func (j *Job) Watched() <-chan struct{} {
	if j.watched == nil {
		j.watched = &notify.Signal{}
	}
	return j.watched.C()
}

// changed stores the number of a change, and wakes the watches of the job. The lock is held.
func (j *Job) changed(stamp uint64) {
	j.Stamp = stamp
	if j.watched != nil {
		j.watched.Notify()
		j.watched = nil
	}
}

// FollowJobs begins or ends to note which jobs change: see TakeChanged. One caller may follow. The lock
// is held.
func FollowJobs(st *State, on bool) {
	st.changedJobs = nil
	if on {
		st.changedJobs = JobSet{}
	}
}

// noteChanged notes that a job has changed: for TakeChanged, if the jobs are followed, and for
// TakeTemplates. The lock is held.
func noteChanged(st *State, k JobKey) {
	noteRun(st, k)
	if st.changedJobs != nil {
		st.changedJobs[k] = struct{}{}
	}
}

// TakeChanged returns up to most jobs that have changed since it returned them last, and whether there
// are more. A job that was forgotten is among them. The lock is held.
func TakeChanged(st *State, most int) (keys []JobKey, more bool) {
	for k := range st.changedJobs {
		if len(keys) == most {
			return keys, true
		}
		delete(st.changedJobs, k)
		keys = append(keys, k)
	}
	return keys, false
}

// Regions returns the sorted names of the regions that own slots of the job. The lock is held.
func (j *Job) Regions() (names []string) {
	for s := range j.Slots.All() {
		if at, has := slices.BinarySearch(names, s.Region); !has && s.Region != "" {
			names = slices.Insert(names, at, s.Region)
		}
	}
	return names
}

// needsPlacer reports whether a slot differs from what the job's present version needs.
func (j *Job) needsPlacer(s *region.Slot) bool {
	if j.Record == nil || j.Record.Stopped() {
		return s.Desired == region.DesiredRun
	}
	return s.JobVersion != j.Record.Version() || !s.OfRun(j.Record.Run(j.Revision))
}

// RunsAt reports whether a region owns instances of a group.
func (j *Job) RunsAt(group, name string) bool {
	for s := range j.Slots.All() {
		if s.Group == group && s.Region == name {
			return true
		}
	}
	return false
}

// touches returns the regions that own a slot of the job, or may still run one as a former owner.
// Each region is named once.
func (j *Job) touches() (names []string) {
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for s := range j.Slots.All() {
		add(s.Region)
		for _, f := range s.Former {
			add(f.Region)
		}
	}
	return names
}

// slotRevision returns the revision of the slot that has the given key, or 0 if there
// is none.
func (j *Job) slotRevision(key string) int64 {
	s, _ := j.Slots.Get(key)
	return s.Revision
}

// SortedSlots returns the slots in order of group, first index and region.
func (j *Job) SortedSlots() []region.Slot {
	return j.Slots.Sorted()
}

// SortSlots sorts slots by group, first index and region.
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

// owns reports whether a region still owns the reported instances, in the same generation of their
// slot.
func (j *Job) owns(from string, a *nusav1.DisconnectedInstances) bool {
	for s := range j.Slots.All() {
		if s.Region == from && s.Group == a.GetGroup() && s.Generation == a.GetGeneration() && !s.System &&
			int(a.GetFrom()) >= s.From && int(a.GetTo()) <= s.To && a.GetFrom() < a.GetTo() {
			return true
		}
	}
	return false
}

// WaitsForReview reports whether a slot returns to its home only when an operator applies the
// return.
func (j *Job) WaitsForReview(s region.Slot) bool {
	g := j.Place().Group(s.Group)
	return g != nil && j.Place().Type != place.Batch && g.OnDisconnect.Failback.Mode == place.FailbackReview && s.ReturnTo == ""
}

// reviewText says how many instances could return to a region that is connected again, and with
// which command. It names the region with the most instances. Empty: none could. The lock is held.
func (j *Job) reviewText(see Sight) string {
	back := map[string]int{}
	for name, jobs := range see.notHome() {
		r := see.st.Regions[name]
		if _, some := jobs[j.Key]; !some || r == nil || r.Session == nil || r.Record.GetReturning() {
			continue
		}
		for s := range j.Slots.All() {
			if s.Home == name && s.Desired == region.DesiredRun && s.State != region.Done && j.WaitsForReview(s) {
				back[name] += s.Count()
			}
		}
	}
	if len(back) == 0 {
		return ""
	}
	names := slices.SortedFunc(maps.Keys(back), func(a, b string) int { return cmp.Or(cmp.Compare(back[b], back[a]), cmp.Compare(a, b)) })
	text := fmt.Sprintf("%d could go back to %s: nusa region failback %s", back[names[0]], names[0], names[0])
	if more := len(names) - 1; more > 0 {
		text += fmt.Sprintf(" (and to %d more)", more)
	}
	return text
}
