package state

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/failover"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/recovery"
	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Failover says what will happen to the slots of a region that is silent or lost. The failover loop
// of the term replaces it about once a second. It is nil while the region is connected.
type Failover struct {
	SlotFailover
	// Last is when the last of its slots that move is due.
	Last time.Duration
	// Slots holds the entry of each slot, by Slot.Key.
	Slots map[string]SlotFailover
	// fence is the region's fence at the time of the plan. A later verdict or statement raises it.
	fence uint64
}

// SlotFailover says when a slot may move to another region. For a region, it says when the first of
// its slots may move.
type SlotFailover struct {
	// Moves: the slot moves at Due, on State.Clock, unless the region returns before or no other
	// region has room.
	Moves bool
	Due   time.Duration
	// Message says in one line what happens, without the time, or why nothing happens. It is empty
	// for a slot that is due and has not been tried yet.
	Message string
}

// dueAt returns now + in. It returns the time that was shown before if the two differ by less than
// a second, or if the slot is due already. Each plan computes a slightly different time, and each
// change of the shown time wakes the watches of all jobs of the region.
func (f SlotFailover) dueAt(now, in time.Duration) time.Duration {
	due := now + in
	if f.Moves && (f.Due <= now && in == 0 || (due-f.Due).Abs() < time.Second) {
		return f.Due
	}
	return due
}

// FailoverSnapshot returns the snapshot for the failover decision. Only silent and lost regions
// have slots in it. The lock is held.
func (st *State) FailoverSnapshot() failover.Snapshot {
	now, c := st.Clock(), st.SessionConfig()
	out := failover.Snapshot{
		Lease: c.Lease, LeaseMax: max(c.Lease, c.LeaseMax), Active: now - st.began, Calm: now - st.began,
		OtherServers: st.Candidates - 1, Resigned: st.Leadership.GetResigned() != "", Earlier: st.Leadership.GetMassLoss(),
		Unconfirmed: st.Unconfirmed(),
		Regions:     make([]failover.Region, 0, len(st.Regions)),
	}
	if st.massLossAt != 0 {
		out.Calm = now - st.massLossAt
	}
	var former map[string]int
	for _, name := range st.RegionNames() {
		r := st.Regions[name]
		f := failover.Region{
			Name: name, Connected: r.Session != nil, NeverConnected: r.Record.GetClusterId() == "",
			Lost: r.Record.GetLost() != nil, NothingRuns: r.Record.GetLost().GetNothingRuns(), Silent: r.Life.SilentFor(now),
		}
		if f.Lost || f.Silent >= out.Quiet() {
			if former == nil {
				former = st.formerInstances()
			}
			f.Slots, f.Former = st.failoverSlots(r, now), former[name]
		}
		out.Regions = append(out.Regions, f)
	}
	return out
}

// formerInstances counts, by region, the instances that a region may still run as a former owner.
// Its cost grows with the number of jobs that verdicts moved. The lock is held.
func (st *State) formerInstances() map[string]int {
	out := map[string]int{}
	for k := range st.Moved {
		j := st.Jobs[k]
		if j == nil {
			continue
		}
		for s := range j.Slots.All() {
			for _, f := range s.Former {
				if f.MayRun {
					out[f.Region] += s.Count()
				}
			}
		}
	}
	return out
}

// FailoverMark is everything that a failover plan depends on except the passing of time. Equal
// marks give equal plans until a slot is due.
type FailoverMark struct {
	regions        []regionMark
	candidates     int
	resigned       bool
	earlier        string
	unconfirmed    []string
	lease, longest time.Duration
}

// regionMark is the part of the mark for one region. It has details only for a region that is
// silent or lost.
type regionMark struct {
	name                           string
	silent, overdue, lost, nothing bool
	connected, never               bool
	lastSeen, boundUntil           time.Duration
	slots, fence                   uint64
}

// Equal reports whether two marks are the same.
func (m *FailoverMark) Equal(o *FailoverMark) bool {
	return m.candidates == o.candidates && m.resigned == o.resigned && m.earlier == o.earlier &&
		m.lease == o.lease && m.longest == o.longest && slices.Equal(m.unconfirmed, o.unconfirmed) && slices.Equal(m.regions, o.regions)
}

// Resigned reports whether a server has resigned because of a mass loss.
func (m *FailoverMark) Resigned() bool { return m.resigned }

// FailoverMark returns the present mark. The lock is held.
func (st *State) FailoverMark() *FailoverMark {
	now, c := st.Clock(), st.SessionConfig()
	out := &FailoverMark{
		regions: make([]regionMark, 0, len(st.Regions)), candidates: st.Candidates,
		resigned: st.Leadership.GetResigned() != "", earlier: st.Leadership.GetMassLoss(), lease: c.Lease, longest: max(c.Lease, c.LeaseMax),
		unconfirmed: st.Unconfirmed(),
	}
	quiet := failover.Snapshot{Lease: c.Lease}.Quiet()
	for _, name := range st.RegionNames() {
		r := st.Regions[name]
		silent := r.Life.SilentFor(now)
		m := regionMark{
			name: name, silent: silent >= quiet, overdue: silent >= c.Lease, lost: r.Record.GetLost() != nil, nothing: r.Record.GetLost().GetNothingRuns(),
			connected: r.Session != nil, never: r.Record.GetClusterId() == "",
		}
		if m.silent || m.lost {
			m.lastSeen, m.boundUntil, m.slots, m.fence = r.Life.LastSeen, r.Life.BoundUntil(0), r.Changes, r.Record.GetFence()
		}
		out.regions = append(out.regions, m)
	}
	return out
}

// MassLossGoesOn notes that the mass loss of the latest plan has not ended. The lock is held.
func (st *State) MassLossGoesOn() { st.massLossAt = st.Clock() }

// SlotsChanged marks the slots of a job as changed, because the job changed or because a plan gives
// another reason for them. The lock is held.
func (st *State) SlotsChanged(j *Job) {
	for s := range j.Slots.All() {
		st.slotsChanged(s.Region)
	}
}

// slotsChanged marks the slots of one region as changed.
func (st *State) slotsChanged(name string) {
	if r := st.Regions[name]; r != nil {
		st.slotChanges++
		r.Changes = st.slotChanges
	}
}

// EachSlot calls do with each slot that a region owns, in no particular order. Its cost grows with
// the number of these slots only. The lock is held.
func (st *State) EachSlot(r *Region, do func(*Job, region.Slot)) {
	for _, key := range r.Orders.Keys() {
		o, _ := r.Orders.Get(key)
		var s region.Slot
		if readOrdered(&s, o, r.Name, key) && s.Region == r.Name && !s.Vacant {
			do(o.job, s)
		}
	}
}

// slotsOf returns the slots that a region owns, in the order of their jobs, groups and
// indices. The lock is held.
func (st *State) slotsOf(r *Region) (owned []region.Slot) {
	st.EachSlot(r, func(_ *Job, s region.Slot) { owned = append(owned, s) })
	slices.SortFunc(owned, compareSlots)
	return owned
}

// failoverSlots returns the slots of a region in the form that package failover takes. The lock is
// held.
func (st *State) failoverSlots(r *Region, now time.Duration) []failover.Slot {
	owned := st.slotsOf(r)
	out := make([]failover.Slot, 0, len(owned))
	for _, s := range owned {
		j := st.Jobs[jobOfSlot(&s)]
		f := failover.Slot{
			Namespace: s.Namespace, Job: s.Job, Group: s.Group, From: s.From, To: s.To, Generation: s.Generation,
			Bound: s.Bound, Unbound: s.Unbound, Done: s.State == region.Done, System: s.System,
		}
		stop := s.StopTime
		g := j.Place().Group(s.Group)
		if g != nil {
			f.After, f.Replace, f.Stop, f.Set = g.OnDisconnect.After, g.OnDisconnect.Replace, g.Bound, j.Place().SetOf(s.Group)
			stop = max(stop, g.StopTime)
		}
		f.BoundFor = r.Life.BoundUntil(stop) - now
		f.Stopping = g == nil || j.Record == nil || j.Record.Stopped() || !s.System && s.From >= g.Count
		out = append(out, f)
	}
	return out
}

// SetFailover stores what a plan says about the regions, and which slots may move now. The jobs of
// these slots become pending. The lock is held.
func (st *State) SetFailover(p failover.Plan) {
	now := st.Clock()
	paused := p.Alarm
	if p.Paused {
		st.massLossAt = now
	}
	st.notePaused(paused)
	movable := map[JobKey][]place.Movable{}
	silent := map[string]bool{}
	for _, d := range p.Regions {
		r := st.Regions[d.Region]
		silent[d.Region] = true
		withheld := p.Holds() && !r.Record.GetLost().GetNothingRuns()
		was := Failover{}
		if r.Failover != nil {
			was = *r.Failover
		}
		next := &Failover{
			SlotFailover: dueOf(d.Moves, withheld, was.dueAt(now, d.In), d.Message), Slots: make(map[string]SlotFailover, len(d.Slots)),
			fence: r.Record.GetFence(),
		}
		for _, s := range d.Slots {
			k := JobKey{s.Namespace, s.Job}
			key := region.Slot{Namespace: s.Namespace, Job: s.Job, Group: s.Group, From: s.From, Region: d.Region, System: s.System}.Key()
			due := dueOf(s.Moves, withheld, was.Slots[key].dueAt(now, s.In), s.Message)
			if due.Moves && s.In == 0 {
				due.Message = st.Jobs[k].Notes().Stays[key]
			}
			next.Slots[key] = due
			if due.Moves {
				next.Last = max(next.Last, due.Due)
			}
			if s.Now {
				movable[k] = append(movable[k], place.Movable{
					Group: s.Group, Region: d.Region, From: s.From, To: s.To, Generation: s.Generation,
					Fence: r.Record.GetFence(), NothingRuns: r.Record.GetLost().GetNothingRuns(),
				})
			}
		}
		if r.Failover == nil || r.Failover.SlotFailover != next.SlotFailover {
			r.Stamp = st.Notify()
		}
		r.Failover = next
	}
	for name, r := range st.Regions {
		if r.Failover != nil && !silent[name] {
			r.Failover, r.Stamp = nil, st.Notify()
		}
	}
	for k, due := range movable {
		if !slices.Equal(due, st.Movable[k]) {
			st.Pend(k)
		}
	}
	st.Movable = movable
}

// dueOf returns the entry that users see. While moves are withheld it shows no time.
func dueOf(moves, withheld bool, due time.Duration, message string) SlotFailover {
	switch {
	case !moves, withheld:
		return SlotFailover{Message: message}
	}
	return SlotFailover{Moves: true, Due: due, Message: message}
}

// notePaused adds an event when a mass loss begins or ends to pause moves.
func (st *State) notePaused(why string) {
	switch was := st.FailoverPaused; {
	case why != "" && was == "":
		st.Events.Add("failover.paused", "", "%s", why)
	case why == "" && was != "":
		st.Events.Add("failover.resumed", "", "regions are declared lost again when their work is due")
	}
	if (why == "") != (st.FailoverPaused == "") {
		for _, r := range st.Regions {
			r.Stamp = st.Notify()
		}
	}
	st.FailoverPaused = why
}

// EndLost ends the stream of a region that a transaction declared lost, unless the region has opened
// another stream since the decision. The region then says hello again and learns what it lost. The
// lock is held.
func (st *State) EndLost(name string, stream uint64, why string) {
	if r := st.Regions[name]; r != nil && r.Session != nil && r.Session.Number == stream {
		r.Session.Refuse("the region was declared lost: " + why)
	}
}

// Dropped returns the changes of a region's slots after an operator has stated that nothing runs in
// the region. Slots that only had to stop, and slots of system jobs, are given up. Slots whose
// instances have ended stay on record without an owner. The lock is held.
func (st *State) Dropped(name string) (out []region.Change) {
	r := st.Regions[name]
	if r == nil || !r.Record.GetLost().GetNothingRuns() {
		return nil
	}
	owned := st.slotsOf(r)
	for i, f := range st.failoverSlots(r, 0) {
		switch {
		case f.Stopping, f.System:
			out = append(out, region.GiveUp(owned[i]))
		case f.Done:
			out = append(out, region.Disown(owned[i]))
		}
	}
	return out
}

// Unconfirmed returns the regions, sorted, that have not confirmed what they run since a recovery
// of the store. Until all have confirmed, no lease is granted and nothing moves by itself. The lock
// is held.
func (st *State) Unconfirmed() []string { return st.Leadership.GetRecovery().GetUnconfirmed() }

// NewlyConfirmed returns the unconfirmed regions that confirm now. The lock is held.
func (st *State) NewlyConfirmed() (out []string) {
	for _, name := range st.Unconfirmed() {
		if r := st.Regions[name]; r != nil && r.Session != nil && r.Life.Confirmed() {
			out = append(out, name)
		}
	}
	return out
}

// confirmNote says what a region has to confirm, and what to do. It returns "" if there is nothing.
// The lock is held.
func (st *State) confirmNote(r *Region) string {
	if !slices.Contains(st.Unconfirmed(), r.Name) {
		return ""
	}
	return recovery.Note(r.Name, r.Session != nil, st.SessionConfig().ServesFrom-st.Clock(), int(r.Life.Level), r.Unordered)
}

// conflictNote says how far a region is while the store waits for its recovery. It returns "" if the
// store does not wait. The lock is held.
func (st *State) conflictNote(r *Region) string {
	c := st.Leadership.GetConflict()
	if c == nil || c.GetRecovered() || r.Record.GetClusterId() == "" {
		return ""
	}
	said := st.reported[r.Name]
	return recovery.Refused(said.asked, said.said)
}

// toConfirm returns the regions, sorted, that must confirm what they run after a recovery of the
// store: the regions that the store or this server knows, those that have said hello, and those
// that have not confirmed since an earlier recovery. This includes regions whose record says that
// nothing runs there, or that no cluster has ever connected: the record may be older than their
// servers. The lock is held.
func (st *State) toConfirm() []string {
	all := map[string]bool{}
	for _, name := range st.Unconfirmed() {
		all[name] = true
	}
	for name := range st.Regions {
		all[name] = true
	}
	for _, name := range st.KnownRegions {
		all[name] = true
	}
	for name := range st.reported {
		all[name] = true
	}
	if name := st.Leadership.GetConflict().GetRegion(); name != "" {
		all[name] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// ConnectedOnce returns the names of the regions that have connected at least once. The lock is
// held.
func (st *State) ConnectedOnce() (out []string) {
	for _, name := range st.RegionNames() {
		if st.Regions[name].Record.GetClusterId() != "" {
			out = append(out, name)
		}
	}
	return out
}

// reportedWork is what a region says that it runs, while the store waits for a recovery.
type reportedWork struct {
	work    []*nusav1.RegionWork
	leftOut int32
	// asked: the region was asked what it runs, so its next hello says it. said: a hello has said
	// it.
	asked, said bool
}

// NoteWork notes what a refused region says in its hello that it runs. The first hello of a region
// says nothing about that, because the region has not been asked yet. The lock is held.
func (st *State) NoteWork(h *nusav1.RegionHello) {
	name := h.GetDefinition().GetName()
	if st.reported == nil {
		st.reported = map[string]reportedWork{}
	}
	was, known := st.reported[name]
	switch {
	case !known && len(st.reported) >= maxRegions:
	case len(h.GetWork()) > 0, was.asked && !was.said:
		st.reported[name] = reportedWork{h.GetWork(), h.GetWorkLeftOut(), true, true}
	case !known:
		st.reported[name] = reportedWork{asked: true}
	}
}

// WorkToLose returns the work that the regions run and the store does not know, by region, job and
// group. A recovery stops that work. leftOut is the number of slots that the regions did not name.
// silent names the regions that have not said what they run. The lock is held.
func (st *State) WorkToLose() (lost []*nusav1.LostWork, leftOut int32, silent []string) {
	for _, name := range slices.Sorted(maps.Keys(st.reported)) {
		leftOut += st.reported[name].leftOut
		lost = append(lost, st.workToLose(name)...)
	}
	for _, name := range st.toConfirm() {
		if r := st.Regions[name]; !st.reported[name].said && (r == nil || !r.Record.GetLost().GetNothingRuns()) {
			silent = append(silent, name)
		}
	}
	return lost, leftOut, silent
}

// WorkToStart returns the work that the store assigns to regions and that they do not run, by
// region, job and group. Only regions that have named everything that they run count. The lock is
// held.
func (st *State) WorkToStart() (out []*nusav1.LostWork) {
	wanted := map[string][]region.Slot{} // the slots that each of these regions owns and must run
	for name, r := range st.reported {
		if r.said && r.leftOut == 0 {
			wanted[name] = nil
		}
	}
	for _, j := range st.Jobs {
		if j.Record == nil || j.Record.Stopped() {
			continue
		}
		for s := range j.Slots.All() {
			of, counts := wanted[s.Region]
			if counts && !s.Vacant && !s.System && s.Desired == region.DesiredRun && s.State != region.Done {
				wanted[s.Region] = append(of, s)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		slices.SortFunc(wanted[name], compareSlots)
		out = append(out, recovery.Starts(name, wanted[name], st.reported[name].work)...)
	}
	return out
}

// compareSlots orders slots by job, group and index.
func compareSlots(a, b region.Slot) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Group, b.Group), cmp.Compare(a.From, b.From))
}

// workToLose returns the work that one region would lose.
func (st *State) workToLose(name string) (out []*nusav1.LostWork) {
	work := slices.Clone(st.reported[name].work)
	slices.SortStableFunc(work, func(a, b *nusav1.RegionWork) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetJob(), b.GetJob()), cmp.Compare(a.GetGroup(), b.GetGroup()))
	})
	for _, w := range work {
		instances, stored := w.GetTo()-w.GetFrom(), int64(0)
		if j := st.Jobs[JobKey{w.GetNamespace(), w.GetJob()}]; j != nil {
			if j.Record != nil {
				stored = j.Record.Version()
			}
			for s := range j.Slots.All() {
				instances -= recovery.Keeps(s, name, w)
			}
		}
		if instances <= 0 && stored >= w.GetJobVersion() {
			continue
		}
		k := len(out) - 1
		if k < 0 || out[k].GetNamespace() != w.GetNamespace() || out[k].GetJob() != w.GetJob() || out[k].GetGroup() != w.GetGroup() {
			out = append(out, &nusav1.LostWork{Region: name, Namespace: w.GetNamespace(), Job: w.GetJob(), Group: w.GetGroup(), StoredVersion: stored})
			k++
		}
		out[k].Instances += instances
		out[k].JobVersion = max(out[k].GetJobVersion(), w.GetJobVersion())
	}
	return out
}
