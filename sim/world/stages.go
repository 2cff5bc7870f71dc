package world

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/progress"
	"github.com/nusa-scheduler/nusa/global/region"
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
		v.order, v.revert = old.origin().order, old.revert
		return
	}
	if v.typ != state.Service {
		return
	}
	v.revert = w.Chance(3)
	if w.Chance(3) {
		return
	}
	v.order = &place.RegionOrder{MaxParallel: 1 + w.Rng.IntN(2), Continue: !v.revert && !w.Chance(3), PauseBetween: machine.Pick[time.Duration](w.Engine, 0, 6, 15) * time.Second}
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
		for g, n := range sum.Groups {
			p.Complete = p.Complete && n.Pending+n.Busy+n.Failed+t.regions[name].report.lost[groupName{j.name, g}] == 0
			p.Failed += n.Failed
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

// healthyPrefix is the prefix of the records of the latest versions that every instance has run.
const healthyPrefix = "healthy/"

// origin returns the version whose spec a version has: its own, or the one to which it was taken back.
func (v *jobVersion) origin() *jobVersion {
	if v.backTo != nil {
		return v.backTo
	}
	return v
}

// takeBack takes failed versions back, and keeps healthy ones, as global/placer/rollout.go does.
func (t rollouts) takeBack() {
	if !t.w.life || t.level() == 0 || t.ended() || !t.config().Serving(t.now()) {
		return
	}
	for _, name := range sortedKeys(t.jobs) {
		if j := t.jobs[name]; !j.revert || j.stopped {
			continue
		}
		if what, _ := t.factsOf(t.jobs[name]).Decide(); what == place.RolloutWait {
			continue
		}
		t.commit(func() []store.Write {
			j := t.jobs[name]
			if t.leadership.conflict || j == nil || j.stopped {
				return nil
			}
			what, why := t.factsOf(j).Decide()
			if t.w.Tracing() && what != place.RolloutWait {
				t.w.Tracef("%s: %s version %d of %s: %s", t.g.name, what, j.version, name, why)
			}
			switch what {
			case place.RolloutSetHealthy:
				return []store.Write{{Key: healthyPrefix + name, Value: j}}
			case place.RolloutForgetHealthy:
				return []store.Write{{Key: healthyPrefix + name, Delete: true}}
			case place.RolloutRevert:
				next := &jobRecord{jobVersion: backTo(t.w, j, t.healthy[name].jobVersion), run: j.run, revision: j.revision}
				return append([]store.Write{{Key: jobPrefix + name, Value: next}}, t.writes(next)...)
			}
			return nil
		}, nil)
	}
}

// factsOf returns the facts that decide whether a version is taken back, as Job.Rollout in global/state does.
func (t rollouts) factsOf(j *jobRecord) place.Rollout {
	out := place.Rollout{Version: j.version, AllRunning: true}
	for _, g := range j.groups {
		owned, at := 0, map[string]int{}
		for _, s := range t.slotsOf(j.name) {
			if s.Group != g.group || s.Desired != region.DesiredRun {
				continue
			}
			r := t.regions[s.Region]
			part, has := partOf(children(t), s.Region, j.name)
			n := part.Groups[g.group]
			has = has && part.Version >= j.version && part.Run == j.run && r.life.Connected()
			owned += s.Count()
			at[s.Region] += s.Count() // what the region does not count yet is pending
			out.AllRunning = out.AllRunning && has && at[s.Region] <= n.Live && !s.Vacant && s.State == region.Accepted && s.JobVersion >= g.life.since &&
				n.Pending+n.Busy+n.Failed+r.report.lost[groupName{j.name, g.group}] == 0 && r.report.held[groupName{j.name, g.group}] == 0
			if has && n.Failed > 0 {
				out.Failed, out.AutoRevert, out.Why = true, j.revert, "instances failed in "+s.Region
			}
		}
		out.AllRunning = out.AllRunning && owned == t.count(j, g)
	}
	if rec := t.present(j); rec != nil && rec.Failed != "" {
		out.Failed, out.AutoRevert, out.Why = true, j.revert, rec.Failed
	}
	if h := t.healthy[j.name]; h != nil && h.run == j.run {
		out.Healthy, out.SameSpec = h.version, h.origin() == j.origin()
	}
	return out
}

// backTo returns the version that follows j and has the spec of a healthy version.
func backTo(w *world, j *jobRecord, healthy *jobVersion) *jobVersion {
	v := *healthy.origin()
	v.version, v.backTo, v.groups = j.version+1, healthy.origin(), nil
	if v.order != nil { // it begins where the version failed, and is not paused
		v.order = &place.RegionOrder{MaxParallel: v.order.MaxParallel}
	}
	for _, was := range healthy.origin().groups {
		g := *was
		if now := j.group(g.group).life.since; now != g.life.since {
			g.life.since = v.version
		}
		g.hash = g.identity()
		v.groups = append(v.groups, &g)
	}
	v.spec = fmt.Appendf(nil, "%s v%d %d", v.name, v.version, len(w.specs))
	w.specs[string(v.spec)], w.versions[versionKey{v.name, v.version}] = &v, &v
	return &v
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

// turnsOf returns the regions that got a version.
func (v *turnWatch) turnsOf(name string, version int64) *turns {
	at := v.begun[name]
	if at == nil || at.version != version {
		at = &turns{version: version, ends: map[string]turnEnd{}}
		v.begun[name] = at
	}
	return at
}

// pause checks that a region does not get a version in the pause after the end in another region.
func (v *turnWatch) pause(t *globalTerm, j *jobRecord, at *turns, next string) {
	for _, name := range sortedKeys(at.ends) {
		e := at.ends[name]
		if since := e.since(t); j.order.PauseBetween > 0 && since < j.order.PauseBetween-lateTurn && e.at > v.unpaused[j.name] {
			v.w.watch.fail(orderKept, "%s gets version %d of %s %s after its end in %s; pause_between is %s", next, at.version, j.name, since, name, j.order.PauseBetween)
		}
	}
}

// recorded checks a write of the record of a rollout, and notes the ends in regions. With on_failure: continue, no
// server fails a version while a region waits whose turn it is.
func (v *turnWatch) recorded(name string, old, next any) {
	was, _ := old.(*rolloutRecord)
	is, _ := next.(*rolloutRecord)
	j, _ := v.w.etcd.Value(jobPrefix + name).(*jobRecord)
	t := v.w.active()
	if is == nil || j == nil || t == nil || v.w.watch.restoredAt != 0 {
		return
	}
	failed := is.Failed != "" && (was == nil || was.Version != is.Version || was.Failed == "")
	if failed {
		v.failed[name] = v.w.Now
	}
	if was == nil || was.Version != is.Version || j.order == nil {
		return
	}
	if !is.Unpaused.Equal(was.Unpaused) {
		v.unpaused[name] = v.w.Now
	}
	at := v.turnsOf(name, is.Version)
	for r, end := range is.Regions {
		if was, known := at.ends[r]; !known || !was.failed && end.Failed != "" {
			at.ends[r] = turnEnd{v.w.Now, t.g.h.WallOff, end.Failed != ""}
		}
	}
	if waits := v.idle(t, j, at, 20*time.Second, false); failed && is.Decided && !was.Waits() && waits != "" {
		v.w.watch.fail(orderKept, "version %d of %s fails (%s), and %s waits for it; on_failure is continue", is.Version, name, is.Failed, waits)
	}
}

// idle returns a connected region that has waited for its turn for some time, although the version goes on after a
// failure and its rollout has ended wherever it began; or "". run: where it ended well, every instance still runs. If
// not, the region waits for that until a deadline is missed.
func (v *turnWatch) idle(t *globalTerm, j *jobRecord, at *turns, least time.Duration, run bool) string {
	if j.order == nil || !j.order.Continue || len(at.ends) == 0 || v.w.upgraded {
		return ""
	}
	for _, r := range at.regions {
		if _, ended := at.ends[r]; !ended && v.changes(t, j, r) {
			return ""
		}
	}
	for _, name := range sortedKeys(at.ends) {
		e := at.ends[name]
		if e.since(t) < j.order.PauseBetween+least {
			return ""
		}
		part, _ := partOf(children{t}, name, j.name)
		for g, n := range part.Groups {
			if run && !e.failed && n.Pending+n.Busy+n.Failed+t.regions[name].report.lost[groupName{j.name, g}] > 0 {
				return ""
			}
		}
	}
	for _, name := range t.names {
		if _, ended := at.ends[name]; !ended && v.waits(t, j, name) && t.regions[name].life.ConnectedFor(t.now()) > least {
			return name
		}
	}
	return ""
}

// keptHealthy checks that a version is kept as healthy, so that a later one may be taken back to it, only once every
// instance of it has run.
func (v *turnWatch) keptHealthy(next any) {
	is, _ := next.(*jobRecord)
	if is == nil || v.w.watch.restoredAt != 0 {
		return
	}
	for _, g := range is.groups {
		for i := range g.count {
			if v.w.watch.life.up[upKey{instance{job: is.name, group: g.group, index: int32(i)}, g.life.since}] == 0 {
				v.w.watch.fail(orderKept, "version %d of %s counts as healthy, and instance %d of %s never ran", is.version, is.name, i, g.group)
			}
		}
	}
}

// stands checks at the end that no version waits for what does not come: for its next region, or for being taken back.
func (v *turnWatch) stands(t rollouts, j *jobRecord) {
	rec := t.present(j)
	if rec == nil || rec.Done || v.w.upgraded {
		return
	}
	if h := t.healthy[j.name]; rec.Failed != "" && j.revert && h != nil && h.run == j.run && h.origin() != j.origin() && v.w.Now-v.failed[j.name] > int64(20*time.Second) {
		v.w.watch.fail(orderKept, "version %d of %s has failed (%s), and is not taken back to version %d", j.version, j.name, rec.Failed, h.version)
	}
	if !rec.Held() && j.order != nil {
		if waits := v.idle(t.globalTerm, j, v.turnsOf(j.name, rec.Version), 30*time.Second, true); waits != "" {
			v.w.watch.fail(orderKept, "%s waits for version %d of %s, and no other region has it; on_failure is continue", waits, rec.Version, j.name)
		}
	}
}
