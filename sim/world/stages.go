package world

import (
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/progress"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
	"github.com/nusa-scheduler/nusa/sim/world/rollout"
	"github.com/nusa-scheduler/nusa/sim/world/store"
)

// orderKept is the number of an invariant that worlds with life check, too: a version goes from region to region in
// the order that its job asks for, to no more regions at once than it allows, and nowhere while its rollout is paused or
// has failed.
const orderKept = 17

// orderRegions gives some services an order of regions. old is the version before, or nil.
func orderRegions(w *world, v, old *jobVersion) {
	if old != nil {
		v.order = old.order
		return
	}
	if v.typ != state.Service || !w.Chance(2) {
		return
	}
	v.order = &place.RegionOrder{MaxParallel: 1 + w.Rng.IntN(2), Continue: w.Chance(2), PauseBetween: machine.Pick[time.Duration](w.Engine, 0, 4, 12) * time.Second}
	for _, i := range w.Rng.Perm(len(w.regions))[:1+w.Rng.IntN(len(w.regions)-1)] {
		v.order.First = append(v.order.First, w.regions[i].name)
	}
}

// wall is the wall clock of the server, which the stored times of a rollout have.
func (t rollouts) wall() time.Time { return time.Unix(0, t.g.h.Wall()) }

// orderOf returns the order of a job's regions with what is stored about its rollout.
func (t rollouts) orderOf(j *jobRecord, r *rolloutRecord) *place.RegionOrder {
	if j.order == nil || r == nil {
		return j.order
	}
	out := *j.order
	out.Stored, out.Ended = !r.Done, map[string]string{}
	for name, end := range r.Regions {
		out.Ended[name] = end.Failed
	}
	out.PauseLeft, out.After = r.PauseLeft(j.order.PauseBetween, t.wall())
	return &out
}

// ordered reports whether the rollout of a new version is stored at once, because it goes from region to region.
func (t rollouts) ordered(old *jobRecord, next *jobVersion) bool {
	return next.order != nil && t.level() > 0 && slices.ContainsFunc(next.groups, func(g *groupVersion) bool { return g.life.since == next.version }) &&
		slices.ContainsFunc(t.slotsOf(old.name), func(s region.Slot) bool {
			g := next.group(s.Group)
			return g != nil && s.Desired == region.DesiredRun && s.JobVersion < g.life.since
		})
}

// pauses counts the rollouts that wait between two regions.
func (t rollouts) pauses() (n int) {
	for name, r := range t.rollouts {
		j := t.jobs[name]
		if j == nil || j.order == nil {
			continue
		}
		if left, _ := r.PauseLeft(j.order.PauseBetween, t.wall()); left > 0 {
			n++
		}
	}
	return n
}

// stageOf returns how far a rollout is that goes from region to region, or nil. As Job.RegionsOfRollout in
// global/state, it only collects what package progress decides about.
func (t rollouts) stageOf(j *jobRecord, rec *rollout.Record) *rollout.Stage {
	if j.order == nil || rec == nil {
		return nil
	}
	reach := progress.Reach{}
	for _, s := range t.slotsOf(j.name) {
		if g := j.group(s.Group); g != nil && s.Desired == region.DesiredRun {
			reach.Add(s.Region, s.JobVersion < g.life.since, g.life.since == j.rolledOut())
		}
	}
	var parts []progress.Part
	for name, reached := range reach {
		sum, _ := partOf(children(t), name, j.name)
		p := progress.Part{Name: name, Reached: reached, Reported: sum.Version >= rec.Version, Complete: t.regions[name].report != nil,
			Ended: rec.Regions[name].At, FailedBecause: rec.Regions[name].Failed}
		for _, n := range sum.Groups {
			p.Complete, p.Failed = p.Complete && n.Pending+n.Busy+n.Failed == 0, p.Failed+n.Failed
		}
		parts = append(parts, p)
	}
	at := progress.Divide(parts)
	out := &rollout.Stage{Updating: at.Updating, Waiting: len(at.Waiting) > 0, Failing: at.Failing, FailedIn: strings.Join(at.Failed, "; "), Continue: j.order.Continue}
	out.PauseLeft, _ = rec.PauseLeft(j.order.PauseBetween, t.wall())
	return out
}

// storeEnds stores the regions in which rollouts have ended, as a plan found them.
func (t rollouts) storeEnds(ends []place.RegionEnd) {
	for _, e := range ends {
		t.commit(func() []store.Write {
			j := t.jobs[e.Job]
			if j == nil || t.present(j) == nil || t.present(j).Done || e.Version != j.version {
				return nil
			}
			was := t.present(j)
			if _, ended := was.Regions[e.Region]; ended {
				return nil
			}
			if t.w.Tracing() {
				t.w.Tracef("%s: %s", t.g.name, e)
			}
			next := &rolloutRecord{Record: *was.WithEnds(map[string]string{e.Region: e.Failed}, t.wall()), stable: was.stable}
			return []store.Write{{Key: rolloutPrefix + e.Job, Value: next}}
		}, nil)
	}
}

// turnWatch checks what must hold of rollouts that go from region to region.
type turnWatch struct {
	w *world
	// begun are the rollouts in which a region got the version, by job.
	begun map[string]*turns
	// rewritten are the regions that the present transaction gives a version, by job.
	rewritten map[string][]string
}

// turns are the regions that got a version.
type turns struct {
	version int64
	regions []string
}

// stored notes a slot that gets the version of a rollout in its region.
func (v *turnWatch) stored(old, next any) {
	was, had := old.(region.Slot)
	is, has := next.(region.Slot)
	if !v.w.life || !had || !has || is.Region != was.Region || is.System || is.Vacant || is.Desired != region.DesiredRun || v.w.watch.restoredAt != 0 {
		return
	}
	j, _ := v.w.etcd.Value(jobPrefix + is.Job).(*jobRecord)
	if j == nil || j.order == nil || j.group(is.Group) == nil {
		return
	}
	if since := j.group(is.Group).life.since; was.JobVersion >= since || is.JobVersion < since || was.Run != is.Run {
		return
	}
	if v.rewritten == nil {
		v.rewritten = map[string][]string{}
	}
	if !slices.Contains(v.rewritten[is.Job], is.Region) {
		v.rewritten[is.Job] = append(v.rewritten[is.Job], is.Region)
	}
}

// committed checks the regions that a transaction has given a version.
func (v *turnWatch) committed() {
	if len(v.rewritten) == 0 {
		return
	}
	for _, name := range sortedKeys(v.rewritten) {
		v.rolled(name, v.rewritten[name])
	}
	v.rewritten = nil
}

func (v *turnWatch) rolled(name string, regions []string) {
	j, _ := v.w.etcd.Value(jobPrefix + name).(*jobRecord)
	rec, _ := v.w.etcd.Value(rolloutPrefix + name).(*rolloutRecord)
	t := v.w.active()
	if j == nil || rec == nil || rec.Done || rec.Version != j.rolledOut() || t == nil || v.w.upgraded {
		return
	}
	at := v.begun[name]
	if at == nil || at.version != rec.Version {
		at = &turns{version: rec.Version}
		v.begun[name] = at
	}
	canary := func(group string) bool { return rec.Of(group) != nil && !rec.Promoted }
	if slices.ContainsFunc(j.groups, func(g *groupVersion) bool { return canary(g.group) }) {
		return // these are canaries, which take no turns
	}
	for _, r := range regions {
		if !slices.Contains(at.regions, r) {
			at.regions = append(at.regions, r)
		}
	}
	if rec.Failed != "" || rec.Paused {
		v.w.watch.fail(orderKept, "%v get version %d of %s, which is paused or has failed", regions, rec.Version, name)
	}
	busy := 0
	for _, r := range at.regions {
		if _, ended := rec.Regions[r]; !ended && v.changes(t, j, r) {
			busy++
		}
	}
	if busy > j.order.MaxParallel {
		v.w.watch.fail(orderKept, "%v get version %d of %s, and %d of %v change at once; max_parallel is %d", regions, rec.Version, name, busy, at.regions, j.order.MaxParallel)
	}
	for _, first := range j.order.First {
		if !slices.Contains(at.regions, first) && v.waits(t, j, first) && slices.ContainsFunc(regions, func(r string) bool { return turnOf(j.order, r) > turnOf(j.order, first) }) {
			v.w.watch.fail(orderKept, "%v get version %d of %s before %s; the order is %v", regions, rec.Version, name, first, j.order.First)
		}
	}
}

// turnOf returns the place of a region in an order.
func turnOf(o *place.RegionOrder, name string) int {
	if i := slices.Index(o.First, name); i >= 0 {
		return i
	}
	return len(o.First)
}

// changes reports whether a connected region has instances of a job, by what is stored.
func (v *turnWatch) changes(t *globalTerm, j *jobRecord, name string) bool {
	r := t.regions[name]
	if r == nil || !r.life.Connected() {
		return false
	}
	for _, k := range v.w.etcd.Keys {
		if s, is := k.Value.(region.Slot); is && s.Job == j.name && s.Region == name && !s.Vacant && s.Desired == region.DesiredRun {
			return true
		}
	}
	return false
}

// waits reports whether a connected region has only instances of an earlier version, and nothing else to do about them.
func (v *turnWatch) waits(t *globalTerm, j *jobRecord, name string) bool {
	r := t.regions[name]
	if r == nil || !r.life.Connected() || r.rec.draining || plant.Is(plant.LevelIgnored) {
		return false
	}
	waits := false
	for _, s := range t.slotsOf(j.name) {
		g := j.group(s.Group)
		if s.Region != name {
			continue
		}
		if s.Vacant || s.Desired != region.DesiredRun || s.State != region.Accepted || len(s.Former) > 0 || g == nil || s.To > (rollouts{t}).count(j, g) {
			return false
		}
		waits = waits || s.JobVersion < g.life.since && s.Run == j.run
	}
	return waits
}

// tick decides about each rollout.
func (t rollouts) tick() {
	if !t.w.life || t.level() == 0 || t.ended() || !t.config().Serving(t.now()) {
		return
	}
	for _, name := range sortedKeys(t.jobs) {
		if !t.evaluates(t.jobs[name]) {
			delete(t.rolling, name)
			continue
		}
		if next, d := t.evaluate(t.jobs[name]); next != nil {
			was := t.rollouts[name]
			t.commit(func() []store.Write {
				j := t.jobs[name]
				if t.leadership.conflict || j == nil || !t.evaluates(j) || t.rollouts[name] != was || j.rolledOut() != next.Version {
					return nil
				}
				if t.w.Tracing() {
					t.w.Tracef("%s: rollout of %s v%d: %s: %s", t.g.name, name, next.Version, d.Kind, d.Why)
				}
				return []store.Write{{Key: rolloutPrefix + name, Value: next}}
			}, nil)
		}
	}
}

// evaluates reports whether a job has a rollout about which something is left to decide.
func (t rollouts) evaluates(j *jobRecord) bool {
	r := t.present(j)
	return j.typ != state.Batch && !j.stopped && j.rolledOut() > 0 && (r == nil || !r.Done)
}

// evaluate returns the record to store about a job's rollout, or nil, and the decision.
func (t rollouts) evaluate(j *jobRecord) (*rolloutRecord, progress.Decision) {
	rec, soft := t.present(j), t.rolling[j.name]
	if soft == nil {
		soft = &rollout.Soft{}
		t.rolling[j.name] = soft
	}
	next, d := soft.Evaluate(j.rolledOut(), rec.stored(), t.groupsOf(j, rec), t.stageOf(j, rec.stored()), t.heldBy(j), t.now(), t.wall())
	if next == nil {
		return nil, d
	}
	out := &rolloutRecord{Record: *next}
	if rec != nil {
		out.stable = rec.stable
	}
	return out, d
}

// heldBy returns why no deadline of a job's rollout counts, or "".
func (t rollouts) heldBy(j *jobRecord) string {
	for _, s := range t.slotsOf(j.name) {
		if r := t.regions[s.Region]; r != nil && !r.life.Connected() {
			return "region " + s.Region + " is disconnected"
		} else if r != nil && t.holdsCanary(j, s) {
			return "an override of region " + s.Region + " may keep a canary stopped"
		}
	}
	return ""
}

// holdsCanary reports whether an override may keep a canary of a slot stopped, as global/state/job.go does.
func (t rollouts) holdsCanary(j *jobRecord, s region.Slot) bool {
	rec, rep := t.present(j).stored(), t.regions[s.Region].report
	c := rec.Of(s.Group)
	return rep != nil && rec.Waits() && c != nil && rep.held[groupName{j.name, s.Group}] > 0 && s.From < c.From+c.N && s.To > c.From
}

// groupsOf returns the groups that take part in a rollout.
func (t rollouts) groupsOf(j *jobRecord, rec *rolloutRecord) (out []rollout.Group) {
	canaries := rec.stored().Waits()
	for _, g := range j.groups {
		c := rec.stored().Of(g.group)
		if g.life.since == 0 || canaries && c == nil {
			continue
		}
		f := rollout.Group{MinHealthy: max(0, g.life.minHealthy), AutoPromote: g.life.autoPromote,
			Group: progress.Group{Name: g.group, Desired: t.count(j, g), HealthyDeadline: g.life.healthyBound, ProgressDeadline: g.life.growthBound}}
		if canaries {
			f.Desired = c.N
		}
		for _, name := range t.names {
			t.addRegion(&f.Group, name, j, g, canaries)
		}
		if canaries || g.life.since == j.rolledOut() || f.Outdated > 0 {
			out = append(out, f)
		}
	}
	return out
}

// addRegion adds to a group what one region reports. canaries: only the canaries count.
func (t rollouts) addRegion(f *progress.Group, name string, j *jobRecord, g *groupVersion, canaries bool) {
	rep := t.regions[name].report
	if rep == nil || !t.regions[name].life.Connected() {
		return
	}
	var newer, older versionCount
	for key, n := range rep.versions {
		if key.groupName != (groupName{j.name, g.group}) {
			continue
		}
		to := &newer
		if key.version < g.life.since {
			to = &older
		}
		to.serving, to.starting, to.down = to.serving+n.serving, to.starting+n.starting, to.down+n.down
	}
	if canaries {
		owned, c := 0, t.present(j).stored().Of(g.group)
		for _, s := range t.slotsOf(j.name) {
			if s.Group == g.group && s.Region == name && s.Desired == region.DesiredRun && s.JobVersion >= g.life.since {
				owned += max(0, min(s.To, c.From+c.N)-max(s.From, c.From))
			}
		}
		newer.serving = min(owned, newer.serving)
		older = versionCount{}
	}
	if !canaries {
		f.Desired -= rep.held[groupName{j.name, g.group}]
	}
	f.Healthy += newer.serving
	f.Starting += newer.starting
	f.Outdated += older.serving + older.starting + older.down
}
