package world

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
	"github.com/nusa-scheduler/nusa/sim/world/rollout"
	"github.com/nusa-scheduler/nusa/sim/world/store"
)

// groupVersion is one group of one version of a job. It never changes.
type groupVersion struct {
	job, group string
	typ        state.JobType
	count      int
	cpu        int64
	singleton  bool
	// node and region are the disconnect policies. regionKeep: the region's lease does not bind
	// this singleton.
	node, region    policy
	regionKeep      bool
	keepReplacement bool
	failback        place.FailbackMode
	failbackAfter   time.Duration
	kill            time.Duration
	maxParallel     int
	// setup is the longest setup of a run. runs is how long a batch instance runs.
	setup, runs time.Duration
	hash        uint64
	life        rules
}

type policy struct {
	after   time.Duration
	stop    bool
	replace bool
}

// jobVersion is one version of a job.
type jobVersion struct {
	name     string
	version  int64
	typ      state.JobType
	priority int
	groups   []*groupVersion // sorted by name
	colocate [][]string
	spec     []byte
	// order says how a version goes from region to region; nil: it does not.
	order *place.RegionOrder
	// revert: a version that has failed is taken back to the latest healthy one. backTo is the version to which this
	// one was taken back, or nil.
	revert bool
	backTo *jobVersion
}

// jobRecord is the stored record of a job.
type jobRecord struct {
	*jobVersion
	run, revision int64
	stopped       bool
	purge         bool          // a run that has ended: it is forgotten when no region has a slot
	placed        []place.Group // in the form that package place takes
}

// instance names one index of a group. scope is set for system jobs and for a region's own jobs,
// whose instances differ from region to region: it is the region's name.
type instance struct {
	job, group string
	index      int32
	scope      string
	own        bool // an instance of a region's own job
}

func (i instance) String() string {
	if i.own {
		return fmt.Sprintf("%s@%s/%s[%d]", i.job, i.scope, i.group, i.index)
	}
	if i.scope != "" {
		return fmt.Sprintf("%s/%s[%d]@%s", i.job, i.group, i.index, i.scope)
	}
	return fmt.Sprintf("%s/%s[%d]", i.job, i.group, i.index)
}

func instanceOf(r *regionSim, a *state.Alloc) instance {
	i := instance{job: a.Job, group: a.Group, index: a.Index, own: a.Local}
	if a.Local || r.w.systemJobs[a.Job] {
		i.scope = r.name
	}
	return i
}

// groupOf returns the group of an allocation in the version that the log names.
func (w *world) groupOf(view *state.View, a *state.Alloc) *groupVersion {
	j, ok := view.Job(a.Key().JobKey(), a.JobVersion)
	if !ok {
		return nil
	}
	return w.specs[string(j.Spec)].group(a.Group)
}

// newVersion makes a random version of a job. old is the version before it, or nil.
func (w *world) newVersion(name string, old *jobVersion) *jobVersion {
	e := w.Engine
	v := &jobVersion{name: name, version: 1, priority: e.Rng.IntN(100)}
	if old != nil {
		v.version, v.typ, v.priority = old.version+1, old.typ, old.priority
	} else {
		v.typ = machine.Pick(e, state.Service, state.Service, state.Service, state.Service, state.Batch, state.System)
	}
	groups := 1
	if old != nil {
		groups = len(old.groups)
	} else if v.typ == state.Service && e.Chance(4) {
		groups = 2
	}
	for i := range groups {
		var was *groupVersion
		if old != nil {
			was = old.groups[i]
		}
		v.groups = append(v.groups, w.newGroup(v, fmt.Sprintf("g%d", i), was))
	}
	if groups == 2 && (old != nil && old.colocate != nil || old == nil && e.Chance(2)) {
		v.colocate = [][]string{{"g0", "g1"}}
		a, b := v.groups[0], v.groups[1]
		b.region, b.regionKeep, b.singleton, b.failback, b.failbackAfter = a.region, a.regionKeep, a.singleton, a.failback, a.failbackAfter
		b.node = a.node
	}
	if w.life {
		orderRegions(w, v, old)
	}
	for _, g := range v.groups {
		g.hash = g.identity()
	}
	v.spec = fmt.Appendf(nil, "%s v%d %d", name, v.version, len(w.specs)) // after a restore of the store, version numbers repeat
	w.specs[string(v.spec)] = v
	return v
}

// newGroup makes one random group. If the group existed before, most fields stay.
func (w *world) newGroup(v *jobVersion, name string, was *groupVersion) *groupVersion {
	e := w.Engine
	if was != nil {
		g := *was
		switch e.Rng.IntN(4) {
		case 0, 1: // scale the group
			g.count = 1 + e.Rng.IntN(4)
		case 2: // a change that needs a restart
			g.cpu = machine.Pick(e, amounts[:]...)
			g.kill = machine.Pick[time.Duration](e, 0, 2, 5, 10) * time.Second
		case 3:
			w.policies(v, &g)
		}
		if g.singleton {
			g.count = 1
		}
		g.life.changed(w, v, was, &g)
		return &g
	}
	g := &groupVersion{job: v.name, group: name, typ: v.typ, count: 1 + e.Rng.IntN(4), cpu: machine.Pick(e, amounts[:]...),
		kill: machine.Pick[time.Duration](e, 0, 1, 2, 5, 10) * time.Second, maxParallel: 1 + e.Rng.IntN(2)}
	if e.Chance(4) {
		g.setup = e.Between(time.Second, 40*time.Second)
	}
	if v.typ == state.Batch {
		g.runs = e.Between(5*time.Second, 2*time.Minute)
	}
	if w.life {
		g.life = newRules(w, g)
	}
	w.policies(v, g)
	return g
}

// policies chooses what happens when contact is lost.
func (w *world) policies(v *jobVersion, g *groupVersion) {
	e := w.Engine
	after := func() time.Duration { return machine.Pick(e, waits[:]...) }
	g.node = policy{after(), e.Chance(3), !e.Chance(5)}
	g.region = policy{after(), e.Chance(2), !e.Chance(5)}
	g.keepReplacement, g.regionKeep = e.Chance(3), false
	g.singleton = v.typ == state.Service && e.Chance(3)
	g.failback, g.failbackAfter = machine.Pick(e, place.FailbackReview, place.FailbackAuto, place.FailbackNever), after()
	switch {
	case v.typ == state.System:
		g.singleton, g.region.stop = false, false
	case g.singleton:
		g.count, g.node.stop = 1, true
		g.regionKeep = e.Chance(4)
		g.region.stop = !g.regionKeep
	}
	if g.life.parallel > 0 { // then leases end what a lost region or node runs
		g.node.stop, g.region.stop = true, true
	}
}

// identity returns a hash of the fields whose change needs a restart. As in package job, the
// disconnect policies are not among them.
func (g *groupVersion) identity() uint64 {
	h := uint64(14695981039346656037)
	for _, c := range fmt.Sprint(g.cpu, g.kill, g.singleton, g.setup, g.runs, g.life.since) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h | 1
}

// askHashes holds the hash of each ask, by its amount of CPU.
var askHashes = func() map[int64]uint64 {
	out := map[int64]uint64{}
	for _, cpu := range amounts {
		out[cpu] = (&groupVersion{cpu: cpu}).ask().Hash()
	}
	return out
}()

// amounts are the amounts of CPU that groups ask for.
var amounts = [...]int64{100, 200, 500}

func (g *groupVersion) ask() place.Ask {
	return place.Ask{CPUMilli: g.cpu, Drivers: []string{"process"}}
}

// boundByRegion reports whether the region's lease binds the group.
func (g *groupVersion) boundByRegion() bool { return g.region.stop }

// toState returns the job in the form in which a region stores it.
func (v *jobVersion) toState(local bool) *state.Job {
	out := &state.Job{Key: state.JobKey{Namespace: "default", Job: v.name, Local: local}, Version: v.version, Type: v.typ,
		Priority: int32(v.priority), Spec: v.spec}
	for _, g := range v.groups {
		out.Groups = append(out.Groups, g.toState(local))
	}
	return out
}

func (g *groupVersion) toState(local bool) state.Group {
	out := state.Group{Name: g.group, Hash: g.hash, Count: int32(g.count), MaxParallel: int32(g.maxParallel), Singleton: g.singleton, KillTimeout: g.kill,
		Ask:        state.Ask{Resources: state.Resources{CPUMilli: g.cpu}, Pool: "default", Drivers: []state.DriverAsk{{Name: "process"}}},
		Reschedule: state.Reschedule{Attempts: 1000, From: time.Second, To: 5 * time.Second},
		Disconnect: state.Disconnect{After: g.node.after, StopRunning: g.node.stop, Replace: g.node.replace, KeepReplacement: g.keepReplacement, StopInRegion: g.region.stop}}
	g.life.toState(&out)
	if b := out.Binding(local); g.singleton || b == state.BindRegion || b == state.BindBoth {
		out.Ask.Drivers[0].Capabilities = []string{state.LeaseBinding} // as needLeaseBinding in regional/wire
	}
	return out
}

var placeTypes = map[state.JobType]place.JobType{state.Service: place.Service, state.Batch: place.Batch, state.System: place.System}

// toPlace returns the job in the form that package place takes, without its slots.
func (j *jobRecord) toPlace() place.Job {
	out := place.Job{Namespace: "default", Name: j.name, Version: j.version, Run: j.run, Priority: j.priority, Revision: j.revision, Stopped: j.stopped,
		Colocate: j.colocate, Type: placeTypes[j.typ]}
	if j.placed != nil {
		out.Groups = j.placed
		return out
	}
	for _, g := range j.groups {
		out.Groups = append(out.Groups, place.Group{Name: g.group, Count: g.count, Ask: g.ask(), AskHash: askHashes[g.cpu], MaxParallel: g.maxParallel,
			UnchangedSince: g.life.since, Parallel: g.life.parallel, Level: g.life.level(),
			Bound: g.boundByRegion(), StopTime: g.kill, OnDisconnect: place.OnDisconnect{After: g.region.after, Replace: g.region.replace,
				Failback: place.Failback{Mode: g.failback, After: g.failbackAfter}}})
	}
	slices.SortFunc(out.Groups, func(a, b place.Group) int { return cmp.Compare(a.Name, b.Name) })
	j.placed = out.Groups
	return out
}

func (v *jobVersion) group(name string) *groupVersion {
	for _, g := range v.groups {
		if g.group == name {
			return g
		}
	}
	return nil
}

func (w *world) setupTime(g *groupVersion) time.Duration {
	if g.setup > 0 {
		return w.Between(0, g.setup)
	}
	return w.Between(time.Millisecond, 200*time.Millisecond)
}

// newID returns a new id for an allocation.
func (w *world) newID() string {
	w.ids++
	return fmt.Sprintf("a%06d", w.ids)
}

const rolloutPrefix = "rollouts/"

// rolloutRecord is the stored record of a rollout. It never changes.
type rolloutRecord struct {
	rollout.Record
	// stable is the version that instances keep which the rollout has not reached; nil: none is known. The shipped
	// servers use the latest version that ran with all instances.
	stable *jobRecord
}

// rollouts steps the rollouts of jobs, as global/placer/progress.go and global/state do.
type rollouts struct{ *globalTerm }

// rolledOut returns the latest version that changed the work of a group; 0: none did.
func (j *jobRecord) rolledOut() (version int64) {
	for _, g := range j.groups {
		version = max(version, g.life.since)
	}
	return version
}

// present returns the record of the rollout of a job's present version, or nil.
func (t rollouts) present(j *jobRecord) *rolloutRecord {
	r := t.rollouts[j.name]
	if r == nil || j.stopped || r.Version != j.rolledOut() {
		return nil
	}
	return r
}

// stored returns the record without what only the world needs. It is nil for nil.
func (r *rolloutRecord) stored() *rollout.Record {
	if r == nil {
		return nil
	}
	return &r.Record
}

// count returns how many instances a group has at present.
func (t rollouts) count(j *jobRecord, g *groupVersion) int {
	n, _ := t.present(j).stored().Indices(g.group, g.count)
	return n
}

// toPlace returns a job without its slots, with what its rollout says.
func (t rollouts) toPlace(j *jobRecord) place.Job {
	out, r := j.toPlace(), t.present(j)
	out.RegionOrder = t.orderOf(j, r)
	if r == nil || r.Done {
		return out
	}
	out.Groups = slices.Clone(out.Groups)
	for i := range out.Groups {
		g := &out.Groups[i]
		g.Count, g.CanaryFrom = r.Indices(g.Name, g.Count)
	}
	if r.Held() {
		out.RolloutHold, out.Paused = fmt.Sprintf("version %d is held", r.Version), r.Paused && r.Failed == ""
		if r.stable != nil {
			stable := r.stable.toPlace()
			out.KeepStable(&stable)
		}
	}
	return out
}

// begin returns the record of the rollout of a new version with canaries, or nil. old is the version before.
func (t rollouts) begin(old *jobRecord, next *jobVersion) *rolloutRecord {
	before := t.present(old)
	if !before.stored().Waits() {
		before = nil
	}
	out := &rolloutRecord{Record: rollout.Record{Version: next.version}, stable: old}
	if before != nil {
		out.stable = before.stable
	}
	for i, g := range next.groups {
		was := old.groups[i]
		if g.life.canaries == 0 || g.life.since != next.version || g.singleton || was.singleton || t.level() == 0 {
			continue
		}
		c := rollout.Canary{Group: g.group, From: was.count, N: g.life.canaries}
		if b := before.stored().Of(g.group); b != nil {
			c.From = b.From
		}
		for _, s := range t.slotsOf(old.name) {
			if s.Group == g.group && s.From < c.From && s.Desired == region.DesiredRun {
				c.From = max(c.From, s.To)
			}
		}
		out.Canaries = append(out.Canaries, c)
	}
	if len(out.Canaries) == 0 && !t.ordered(old, next) {
		return nil
	}
	return out
}

// writes returns what is stored about the rollout of a job together with a new record of the job.
func (t rollouts) writes(next *jobRecord) []store.Write {
	old, key := t.jobs[next.name], rolloutPrefix+next.name
	switch {
	case !t.w.life || old == nil || next.backTo != nil:
	case old.stopped != next.stopped && t.rollouts[next.name] != nil:
		return []store.Write{{Key: key, Delete: true}}
	case !next.stopped && old.version != next.version:
		if rec := t.begin(old, next.jobVersion); rec != nil {
			return []store.Write{{Key: key, Value: rec}}
		}
	}
	return nil
}

var slotStates = map[region.SlotState]state.SlotState{region.Offered: state.SlotOffered, region.Accepted: state.SlotAccepted, region.Done: state.SlotDone}

var answerStates = map[state.SlotState]region.SlotState{state.SlotAccepted: region.Accepted, state.SlotRejected: region.Rejected,
	state.SlotReturned: region.Returned, state.SlotRevoked: region.Revoked, state.SlotStopped: region.Stopped, state.SlotDone: region.Done, state.SlotKept: region.Kept}

var desireds = map[region.Desired]state.Desired{region.DesiredRun: state.Run, region.DesiredStop: state.Stop, region.DesiredRevoke: state.Revoke,
	region.DesiredHold: state.Hold}

// slotToState returns a slot in the form in which its region stores it.
func slotToState(s *region.Slot) state.Slot {
	return state.Slot{Namespace: s.Namespace, Job: s.Job, Group: s.Group, From: int32(s.From), To: int32(s.To), Generation: s.Generation,
		Run: s.Run, Revision: s.Revision, JobVersion: s.JobVersion, Desired: desireds[s.Desired], State: slotStates[s.State],
		HoldNano: int64(s.Hold), UnlessConnected: s.UnlessConnected, Unbound: s.Unbound, Parallel: int32(s.Parallel)}
}

// answerToGlobal returns an answer in the form in which the global tier reads it.
func answerToGlobal(a *state.Answer) region.Answer {
	return region.Answer{Namespace: a.Namespace, Job: a.Job, Group: a.Group, From: int(a.From), To: int(a.To), Generation: a.Generation,
		State: answerStates[a.State], Reason: string(a.Reason), Message: a.Message, Bound: a.Bound, StopTime: a.StopTime, MayRun: a.MayRun}
}

// formerOrder returns the order to the former owner at position i of a slot's list, as global/state
// makes it.
func formerOrder(s region.Slot, i int) region.Slot {
	f := s.Former[i]
	s.Desired, s.Region, s.Generation, s.State = s.DesiredOfFormer(i), f.Region, f.Generation, region.Accepted
	s.Former, s.Home, s.ReturnTo, s.Hold, s.UnlessConnected, s.Vacant = nil, "", "", 0, false, false
	s.Bound, s.Unbound, s.Reason, s.Message, s.PlacedBecause = false, f.MayRun, "", "", ""
	return s
}

// ordersOf returns the orders about a slot, one for each region that must know about it.
func ordersOf(s region.Slot) []region.Slot {
	var out []region.Slot
	if !s.Vacant {
		owned := s
		owned.Unbound = s.Bound && s.Unbound
		out = append(out, owned)
	}
	for i := range s.Former {
		out = append(out, formerOrder(s, i))
	}
	return out
}

// String prints the version with its policies.
func (v *jobVersion) String() string {
	out := fmt.Sprintf("%s v%d type %d colocate %v", v.name, v.version, v.typ, v.colocate != nil)
	if v.order != nil {
		out += fmt.Sprintf(" regions %v, %d at once, continue %v, pause %s", v.order.First, v.order.MaxParallel, v.order.Continue, v.order.PauseBetween)
	}
	for _, g := range v.groups {
		out += fmt.Sprintf("; broken %v; %s ×%d cpu %d singleton %v node %v region %v keep %v kill %s setup %s", g.life.broken, g.group, g.count, g.cpu, g.singleton, g.node, g.region, g.regionKeep, g.kill, g.setup)
	}
	return out
}
