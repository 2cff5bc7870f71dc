package sched

import (
	"iter"
	"slices"

	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// decision is the decision about one group in a plan.
type decision struct {
	p    *planner
	out  output
	g    *state.GroupView
	live []*state.Alloc // sorted by index, then by Seq
	// unconfirmed are allocations that were given up but whose nodes have not confirmed
	// their end.
	unconfirmed []*state.Alloc
	// system is true for a system job. The index of its instance is the number of a node.
	system bool
	// slot is the present slot. job and spec are its job and its group.
	slot *state.Slot
	job  *state.Job
	spec *state.Group
	// down counts instances that are starting or waiting. They use up the budget of rolling
	// changes.
	down int32
	// exhausted counts instances that have no attempts left. They block a rollout, because
	// the next instance would fail like them. They do not block a drain of instances that
	// already have the present version.
	exhausted int32

	insts        []*state.Instance // sorted by index
	fresh        state.Instance    // returned by instance when the state has no record
	replacements []replacement
	pending      []pending
	// leaving are the indices of the present slot whose next attempt is in another region. leaveText is how
	// the first of them failed.
	leaving   []Range
	leaveText string
	slots     []pendingSlot
	placed    []int32 // positions of the nodes that got an instance
}

// reset prepares the decision for another group. It keeps the memory of the previous group.
func (d *decision) reset(p *planner, g *state.GroupView) {
	*d = decision{
		p: p, g: g, out: output{key: g.Key, plan: p.plan, wakeAt: &p.wakeAt},
		live: d.live[:0], unconfirmed: d.unconfirmed[:0], insts: d.insts[:0], pending: d.pending[:0], slots: d.slots[:0], placed: d.placed[:0],
	}
	// The slices get their full capacity at once, because doubling would copy thousands of
	// entries again.
	c := &g.Counts
	d.live = slices.Grow(d.live, int(max(0, c.Pending+c.Starting+c.Running+c.Lost-g.Unplaced)))
	d.insts = slices.Grow(d.insts, int(max(0, g.Wanted-g.Unplaced)))
	for a := range p.in.View.AllocsIn(g) {
		switch {
		case a.Live():
			d.live = append(d.live, a)
		case a.State == state.Lost && a.Charged:
			d.unconfirmed = append(d.unconfirmed, a)
		}
	}
	for in := range p.in.View.InstancesIn(g) {
		d.insts = append(d.insts, in)
	}
	for _, s := range g.Slots {
		if job := d.jobOf(s); job != nil {
			d.system = job.Type == state.System
		}
	}
}

// group decides about one group.
func (p *planner) group(g *state.GroupView) {
	d := &p.decision
	d.reset(p, g)
	d.stopUnwanted()
	for _, s := range g.Slots {
		if s.Desired != state.Run || !d.enter(s) {
			continue
		}
		if d.system && s.Held > 0 {
			break
		}
		if d.system {
			d.systemSlot()
			break
		}
		first := len(d.pending)
		d.rangeSlot()
		d.leave()
		d.slots = append(d.slots, pendingSlot{s, d.pending[first:]})
	}
	d.rollOut()
	may := d.mayBegin()
	for _, next := range d.slots {
		d.enter(next.slot)
		d.place(d.limit(next.pending, &may))
	}
	p.reserved.endGroup(p.cache.nodes)
	p.plan.Waiting = append(p.plan.Waiting, d.out.waits...)
}

// mayBegin returns how many further instances of a group with Parallel may begin: what its slots allow,
// without the instances that may run now. Instances that are being stopped count.
func (d *decision) mayBegin() int {
	may, last := 0, int32(-1)
	for _, s := range d.g.Slots {
		if s.Desired == state.Run {
			may += int(s.Parallel)
		}
	}
	for _, a := range d.live {
		if a.Index != last && !(plant.Is(plant.StartingForgotten) && a.State != state.Running) {
			may--
		}
		last = a.Index
	}
	return max(0, may)
}

// limit returns the pending instances that may begin, the lowest indices first, and lets the others wait.
func (d *decision) limit(all []pending, may *int) []pending {
	if d.spec.Parallel == 0 || d.job.Type != state.Batch {
		return all
	}
	out := all[:0:0]
	for _, p := range all {
		n := min(int(p.to-p.index), *may)
		*may -= n
		if n > 0 {
			out = append(out, pending{p.index, p.index + int32(n), p.record})
		}
		if from := p.index + int32(n); from < p.to {
			d.out.waitRange(from, p.to, state.ReasonParallel)
		}
	}
	return out
}

// jobOf returns the version of the job that a slot names. It returns nil if that version is
// not stored. That cannot happen, because orders are checked when they arrive.
func (d *decision) jobOf(s *state.Slot) *state.Job {
	if d.job == nil || d.job.Version != s.JobVersion {
		d.job, _ = d.p.in.View.Job(d.g.Key.JobKey(), s.JobVersion)
	}
	return d.job
}

// enter makes a slot the present slot. It returns false if the slot's group or job version
// is unknown.
func (d *decision) enter(s *state.Slot) bool {
	job := d.jobOf(s)
	if job == nil {
		return false
	}
	spec := job.Group(d.g.Key.Group)
	if spec == nil {
		return false
	}
	d.slot, d.spec = s, spec
	return true
}

// instance returns the record of a pending instance. Without a record it returns an empty
// one, which is valid until the next call.
func (d *decision) instance(p pending) *state.Instance {
	if p.record != nil {
		return p.record
	}
	d.fresh = state.Instance{Index: p.index}
	return &d.fresh
}

// rangeSlot decides about every wanted index of a service or batch slot. Records and live
// allocations are sorted by index, so one pass over each of them is enough.
func (d *decision) rangeSlot() {
	at, in, insts := 0, 0, d.insts
	overlap := overlapping(d.g.Slots)
	for _, r := range d.slot.WantedRanges() {
		for i := r[0]; i < r[1]; i++ {
			if overlap && state.SlotOf(d.g.Slots, i) != d.slot {
				continue
			}
			for in < len(insts) && insts[in].Index < i {
				in++
			}
			for at < len(d.live) && d.live[at].Index < i {
				at++
			}
			end := at
			for end < len(d.live) && d.live[end].Index == i {
				end++
			}
			next := pending{index: i, to: i + 1}
			if in < len(insts) && insts[in].Index == i {
				next.record = insts[in]
			}
			if next.record == nil && at == end && !overlap {
				next.to = r[1]
				if in < len(insts) {
					next.to = min(next.to, insts[in].Index)
				}
				if at < len(d.live) {
					next.to = min(next.to, d.live[at].Index)
				}
				i = next.to - 1
			}
			d.index(next, d.live[at:end])
		}
	}
}

// overlapping reports whether two slots have an index in common. That happens while a
// change of slot orders is incomplete.
func overlapping(slots []*state.Slot) bool {
	for i := 1; i < len(slots); i++ {
		if slots[i].From < slots[i-1].To {
			return true
		}
	}
	return false
}

// index decides about one wanted index with its live allocations. If the index needs a
// node, index adds it to d.pending.
func (d *decision) index(p pending, live []*state.Alloc) {
	// The federation knows that the instances of this slot have ended, also if the region's log does not,
	// because the log is new or an old copy.
	ended := d.slot.State == state.SlotDone && d.job.Type == state.Batch
	if p.record == nil && len(live) == 0 {
		if !ended {
			d.pending = append(d.pending, p)
		}
		return
	}
	inst := d.instance(p)
	if ended || inst.Finished() {
		for _, a := range live {
			d.out.stop(a, state.ReasonSuperseded, "the instance is finished")
		}
		if !inst.Done && d.job.Type != state.Batch {
			d.exhausted++
		}
		return
	}
	stays, connected := d.chooseAttempt(live)
	switch {
	case connected > 0 && stays == nil: // the index's allocation is being stopped
		d.down++
		return
	case connected > 0:
		d.checkAttempt(stays)
		return
	case len(live) > 0 && !d.mayReplace(live):
		return
	case len(d.unconfirmed) > 0 && d.mayRunUnbound(inst.Index):
		d.out.wait(inst.Index, state.ReasonNodeLost, 0)
		return
	}
	if inst.NotBeforeUnixNano > d.p.in.NowUnixNano {
		d.out.wait(inst.Index, state.ReasonBackoff, inst.NotBeforeUnixNano)
		d.down++
		return
	}
	if until := inst.LeavesUntil(d.p.in.NowUnixNano); until > 0 && !d.g.Key.Local {
		if len(d.leaving) == 0 {
			d.leaveText = inst.Message
		}
		d.leaving = addIndex(d.leaving, inst.Index)
		d.out.wake(until)
		d.down++
		return
	}
	if inst.Failures > 0 || downByChange(inst.Reason) {
		d.down++
	}
	d.pending = append(d.pending, p)
}

// leave lets the region return the instances of the present slot whose next attempt is in another region.
// No node of this one is to have them.
func (d *decision) leave() {
	if len(d.leaving) > 0 {
		d.out.unplaced(Unplaced{Ranges: d.leaving, Never: true}, d.slot, state.ReasonOtherRegion, d.leaveText)
		d.leaving = nil
	}
}

// downByChange reports whether an instance is down because of a rollout or a drain, or
// because an attempt that one of them started has failed. Further changes must then wait.
// An instance that never had a node, or lost its node, does not block others.
func downByChange(r state.Reason) bool {
	return r == state.ReasonSuperseded || r == state.ReasonNodeDraining || r.AttemptsOver()
}

// pendingSlot is a slot with its instances that need a node.
type pendingSlot struct {
	slot    *state.Slot
	pending []pending
}

// pending is an instance that needs a node. A range index..to of instances without a record
// in the state is a single pending. So a large job costs less: it is planned in parts, and
// each part goes through all remaining instances.
type pending struct {
	index, to int32
	record    *state.Instance // nil if the state has no record
}

// countPending returns how many instances all stands for.
func countPending(all []pending) int {
	n := 0
	for _, p := range all {
		n += int(p.to - p.index)
	}
	return n
}

// eachPending yields each instance as a pending of its own.
func eachPending(all []pending) iter.Seq[pending] {
	return func(yield func(pending) bool) {
		for _, p := range all {
			for i := p.index; i < p.to; i++ {
				if !yield(pending{i, i + 1, p.record}) {
					return
				}
			}
		}
	}
}
