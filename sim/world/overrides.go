package world

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// overrideKept is the number of an invariant that worlds with life check, too: a region keeps an override until it
// is cleared or a later run of the job begins, and runs no more than the override allows. What an override holds runs
// nowhere else.
const overrideKept = 16

// overrideKey names an override.
type overrideKey struct {
	region string
	job    state.JobKey
}

// overrideWatch checks what must hold of overrides. all are those that are set.
type overrideWatch struct {
	w   *world
	all map[overrideKey]*overridden
	// rebound are the regions of an earlier feature level that joined another federation: they keep overrides, and
	// the watch takes over what their logs say.
	rebound map[string]bool
}

// overridden is an override as the watch knows it.
type overridden struct {
	run     int64
	stopped bool
	counts  map[string]int32
	// federation is the one to which the region was bound. former: it is bound to another one now. over: it was bound to
	// two others since.
	federation   string
	former, over bool
}

// bound returns how many instances of a group may run, or false.
func (o *overridden) bound(group string) (int32, bool) {
	if o == nil {
		return 0, false
	}
	if n, own := o.counts[group]; own {
		return n, true
	}
	return 0, o.stopped
}

// override stops or scales a job of the federation in one region, as an operator does there.
func (o operator) override(r *regionSim) {
	m := r.master()
	if m == nil || m.view().Cluster().FeatureLevel < state.OverrideLevel || o.Now > int64(calm) {
		return
	}
	var all []*state.GroupView
	for g := range m.view().Groups() {
		if !g.Key.Local && g.Wanted > 0 && !isChild(g.Key.Job) && !o.systemJobs[g.Key.Job] {
			all = append(all, g)
		}
	}
	if len(all) == 0 {
		return
	}
	g := all[o.Rng.IntN(len(all))]
	cmd := &state.SetOverride{Namespace: g.Key.Namespace, Job: g.Key.Job, Stop: true, By: "operator"}
	if j, ok := m.view().Job(g.Key.JobKey(), g.Slots[0].JobVersion); ok && j.Type == state.Service && !o.Chance(3) {
		cmd.Stop, cmd.Group, cmd.Count = false, g.Key.Group, int32(o.Rng.IntN(int(g.Wanted)))
	}
	if o.Tracing() {
		o.Tracef("operator: override %s at %s: stop %v, %s scaled to %d", cmd.Job, r.name, cmd.Stop, cmd.Group, cmd.Count)
	}
	m.propose(state.Command{SetOverride: cmd}, nil)
	if o.Chance(2) {
		o.In(o.Between(10*time.Second, 150*time.Second), func() { o.clear(r, g.Key.JobKey()) })
	}
}

// clear removes an override.
func (o operator) clear(r *regionSim, key state.JobKey) {
	m := r.master()
	if m == nil {
		return
	}
	if _, has := m.view().Override(key.Namespace, key.Job); !has {
		return
	}
	if o.Tracing() {
		o.Tracef("operator: clear the override of %s at %s", key, r.name)
	}
	m.propose(state.Command{SetOverride: &state.SetOverride{Namespace: key.Namespace, Job: key.Job, Clear: true}}, nil)
}

// overrides lets operators override jobs from time to time. Some of them they clear only after all faults, and some
// never.
func (o operator) overrides() {
	for range o.Rng.IntN(3) {
		r := o.regions[o.Rng.IntN(len(o.regions))]
		o.In(o.Between(60*time.Second, 400*time.Second), func() { o.override(r) })
	}
	o.In(calm+o.Between(0, 30*time.Second), func() {
		for _, r := range o.regions {
			for _, key := range overriddenJobs(r) {
				if o.Chance(2) {
					o.clear(r, key)
				}
			}
		}
	})
}

// wiped is what operators do with overrides while the store is another one: before it is wiped they set some, and then
// they bind some regions to the other federation.
func (o operator) wiped() {
	if !o.life {
		return
	}
	for _, r := range o.regions {
		if o.Chance(2) {
			o.In(o.Between(500*time.Millisecond, 8*time.Second), func() { o.rebindTo(r, o.etcd.Federation) })
		}
	}
}

// rebindTo binds a region without a session to a federation, as regional/api does.
func (o operator) rebindTo(r *regionSim, federation string) {
	m := r.master()
	if m == nil || o.etcd.Federation != federation || m.up.session != nil && m.up.session.welcomed || m.view().Cluster().FeatureLevel < state.RebindLevel {
		return
	}
	if o.Tracing() {
		o.Tracef("operator: rebind %s to %s", r.name, federation)
	}
	m.propose(state.Command{RebindFederation: &state.RebindFederation{FederationID: federation}}, nil)
}

// overriddenJobs returns the jobs of the federation that have an override in a region.
func overriddenJobs(r *regionSim) (out []state.JobKey) {
	view := r.raft.st.Snapshot()
	for g := range view.Groups() {
		key := g.Key.JobKey()
		if _, has := view.Override(key.Namespace, key.Job); has && !key.Local && !slices.Contains(out, key) {
			out = append(out, key)
		}
	}
	return out
}

// applied checks what an entry of a region's log does to overrides, and to what they hold.
func (v *overrideWatch) applied(g *raftGroup, before *state.View, cmd *state.Command, res *state.Result) {
	for i := range res.Batch {
		v.applied(g, before, &cmd.Batch[i], &res.Batch[i])
	}
	if cmd.RebindFederation != nil {
		v.rebind(g.r, g.st.Snapshot().Cluster())
	}
	if cmd.SetOverride == nil && len(v.all) == 0 {
		return
	}
	after := g.st.Snapshot()
	if c := cmd.SetOverride; c != nil && res.Err == nil {
		v.set(g.r, after, c)
	}
	switch {
	case cmd.ApplyOrders == nil:
	case v.rebound[g.r.name]:
		v.restored(g.r)
	default:
		v.kept(g.r, after)
	}
	if cmd.ApplyPlan == nil {
		return
	}
	for _, a := range res.Orders {
		if a.CreateIndex != g.index || a.Desired != state.Run || a.Local {
			continue
		}
		if o := v.all[overrideKey{g.r.name, a.Key().JobKey()}]; o.holds(after, a.Key(), a.Index) {
			v.w.watch.fail(overrideKept, "%s: %s starts, and the override of its job holds it", g.r.name, instanceOf(g.r, a))
		}
	}
}

// kept checks that only a later run of a job ends its override.
func (v *overrideWatch) kept(r *regionSim, view *state.View) {
	byJob := func(a, b overrideKey) int { return cmp.Compare(a.job.Job, b.job.Job) }
	for _, key := range slices.SortedFunc(maps.Keys(v.all), byJob) {
		if key.region != r.name {
			continue
		}
		_, has := view.Override(key.job.Namespace, key.job.Job)
		if v.all[key].former {
			v.keptFormer(view, key, has)
			continue
		}
		switch later := laterRun(view, key.job, v.all[key].run); {
		case later && has:
			v.w.watch.fail(overrideKept, "%s: a later run of %s has begun, and the override stays", key.region, key.job)
		case later:
			delete(v.all, key)
		case !has:
			v.w.watch.fail(overrideKept, "%s: the override of %s has ended, and nobody cleared it", key.region, key.job)
		}
	}
}

// rebind notes that a region is bound to another federation. Overrides of the former one hold instances until the orders
// of the other one are complete. If the region returns before that, they count again.
func (v *overrideWatch) rebind(r *regionSim, to state.Cluster) {
	if to.FeatureLevel < state.RebindLevel {
		v.rebound[r.name] = true
	}
	for key, o := range v.all {
		if key.region != r.name || v.rebound[r.name] {
			continue
		}
		was := o.former
		o.former = to.FederationID != o.federation
		o.over = o.over || was && o.former
		o.former = o.former || o.over
	}
}

// keptFormer checks the override of a job of a former federation after orders of the present one: it ends when they are
// complete, or with the first slot of its job that must run, and not before.
func (v *overrideWatch) keptFormer(view *state.View, key overrideKey, has bool) {
	ordered := view.Cluster().Orders != (state.Position{})
	for s := range view.Slots() {
		ordered = ordered || s.Namespace == key.job.Namespace && s.Job == key.job.Job && !s.Local && s.Desired == state.Run && s.Revision > 0
	}
	switch {
	case ordered && has:
		v.w.watch.fail(overrideKept, "%s: the override of %s is one of a former federation, and stays after the orders of the present one", key.region, key.job)
	case ordered:
		delete(v.all, key)
	case !has:
		v.w.watch.fail(overrideKept, "%s: the override of %s has ended before the orders of the other federation are complete", key.region, key.job)
	}
}

// set notes a change of an override. run is the run that the log names: it is the run of the slots.
func (v *overrideWatch) set(r *regionSim, view *state.View, c *state.SetOverride) {
	key := overrideKey{r.name, state.JobKey{Namespace: c.Namespace, Job: c.Job}}
	o := v.all[key]
	if c.Clear {
		delete(v.all, key)
		return
	}
	if o == nil || c.Stop {
		o = &overridden{counts: map[string]int32{}, federation: view.Cluster().FederationID}
	}
	o.stopped = o.stopped || c.Stop
	if !c.Stop {
		o.counts[c.Group] = c.Count
	}
	stored, has := view.Override(c.Namespace, c.Job)
	if !has { // a command over all that the region owns clears it
		return
	}
	if stored.Run >= 0 { // it is one for the present federation
		o.former, o.over, o.federation = false, false, view.Cluster().FederationID
	} else if v.all[key] == nil { // the slots are still those of the former one
		o.former, o.federation = true, view.Cluster().Former.FederationID
	}
	o.run = stored.Run
	v.all[key] = o
}

// laterRun reports whether a region must run a later run of a job.
func laterRun(view *state.View, key state.JobKey, run int64) bool {
	for s := range view.Slots() {
		if s.Namespace == key.Namespace && s.Job == key.Job && !s.Local && s.Desired == state.Run && s.Run > run {
			return true
		}
	}
	return false
}

// holds reports whether an override holds an index: the lowest indices that the region owns run.
func (o *overridden) holds(view *state.View, key state.GroupKey, index int32) bool {
	most, bounded := o.bound(key.Group)
	g, has := view.Group(key)
	if !bounded || !has {
		return false
	}
	var lower []int32
	owns := false
	for _, s := range g.Slots {
		for i := s.From; i < s.To; i++ {
			owns = owns || i == index && s.Owns(i)
			if s.Owns(i) && i < index && !slices.Contains(lower, i) {
				lower = append(lower, i)
			}
		}
	}
	return owns && int32(len(lower)) >= most
}

// heldAt reports whether an override of the owner's region holds an instance.
func (v *overrideWatch) heldAt(i instance, o owned) bool {
	r := v.w.regionNamed(o.region)
	if r == nil {
		return false
	}
	key := state.GroupKey{Namespace: "default", Job: i.job, Group: i.group}
	return v.all[overrideKey{o.region, key.JobKey()}].holds(r.raft.st.Snapshot(), key, i.index)
}

// keepsShare reports whether an override keeps instances of an array stopped in a region that has a share of its
// `parallel`. The share stays there: nobody asks the region before its operator clears the override.
func (v *overrideWatch) keepsShare(key state.GroupKey) bool {
	for _, k := range v.w.etcd.Keys {
		s, is := k.Value.(region.Slot)
		if !is || s.Job != key.Job || s.Group != key.Group || s.Parallel == 0 || s.Desired != region.DesiredRun {
			continue
		}
		if most, bounded := v.all[overrideKey{s.Region, key.JobKey()}].bound(key.Group); bounded && most == 0 && !key.Local {
			return true
		}
	}
	return false
}

// restored takes over the overrides of a region's log that was restored from an old copy.
func (v *overrideWatch) restored(r *regionSim) {
	for key := range v.all {
		if key.region == r.name {
			delete(v.all, key)
		}
	}
	view := r.raft.st.Snapshot()
	for _, job := range overriddenJobs(r) {
		stored, _ := view.Override(job.Namespace, job.Job)
		o := &overridden{run: stored.Run, stopped: stored.Stopped, counts: map[string]int32{}, federation: view.Cluster().FederationID}
		for _, b := range stored.Groups {
			if b.Count >= 0 {
				o.counts[b.Group] = b.Count
			}
		}
		v.all[overrideKey{r.name, job}] = o
	}
}

// turnWatch checks what must hold of rollouts that go from region to region.
type turnWatch struct {
	w *world
	// begun are the rollouts in which a region got the version, by job.
	begun map[string]*turns
	// rewritten are the regions that the present transaction gives a version, by job.
	rewritten map[string][]string
	// unpaused is when an operator ended a pause, and failed when a rollout failed, by job.
	unpaused, failed map[string]int64
}

// turns are the regions that got a version.
type turns struct {
	version int64
	regions []string
	ends    map[string]turnEnd
}

// turnEnd is when the end of a rollout in a region was stored, in true time, and the error of the server's wall clock
// then. failed: the version failed there.
type turnEnd struct {
	at, wallOff int64
	failed      bool
}

// since returns the time since the end by the wall clocks of the servers that were active then and are now.
func (e turnEnd) since(t *globalTerm) time.Duration {
	return time.Duration(t.w.Now - e.at + t.g.h.WallOff - e.wallOff)
}

// lateTurn is more than the time between a decision about a rollout and the end of the transaction that stores it.
const lateTurn = 2500 * time.Millisecond

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
	at := v.turnsOf(name, rec.Version)
	canary := func(group string) bool { return rec.Of(group) != nil && !rec.Promoted }
	if slices.ContainsFunc(j.groups, func(g *groupVersion) bool { return canary(g.group) }) {
		return // these are canaries, which take no turns
	}
	for _, r := range regions {
		if !slices.Contains(at.regions, r) {
			v.pause(t, j, at, r)
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
