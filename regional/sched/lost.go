package sched

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// mayReplace reports whether an instance may have another attempt now. All of its attempts
// are on lost nodes.
func (d *decision) mayReplace(lost []*state.Alloc) bool {
	in, given := &d.p.in, false
	for _, a := range lost {
		due, ever := in.replacementDue(d.spec, a, d.system)
		if !ever {
			// The node may never come back. So the instance must not block a rollout.
			d.out.wait(a.Index, state.ReasonNodeLost, 0)
			return false
		}
		if due > in.NowUnixNano {
			d.out.wait(a.Index, state.ReasonNodeLost, due)
			d.down++
			return false
		}
	}
	for _, a := range lost {
		// With a retry policy the attempt counts as failed, so it cannot continue when its node returns.
		if a.Binding(in.orderedGroup(a, d.spec)) != state.BindNone || a.Desired == state.Stop || d.spec.Retry != nil {
			d.out.giveUp(a, state.ReasonNodeLost, "its node is "+in.nodeStatus(a))
			given = true
		}
	}
	if given && d.spec.Retry != nil {
		// The loss counts as a failure, so the retry policy decides before the next plan.
		d.out.wait(lost[0].Index, state.ReasonNodeLost, 0)
		d.down++
		return false
	}
	return true
}

// stopUnwanted stops allocations that no slot wants to run.
func (d *decision) stopUnwanted() {
	in := &d.p.in
	for _, a := range d.live {
		reason, message := d.unwanted(a)
		if reason == "" {
			continue
		}
		if !a.Disconnected {
			d.out.stop(a, reason, message)
			continue
		}
		spec := in.orderedGroup(a, nil)
		due, ever := in.replacementDue(spec, a, d.system)
		if ever && spec != nil && a.Binding(spec) == state.BindNone && d.boundNow(a.Index) {
			ever = false // the slot's next owner would run the instance a second time
		}
		switch {
		case ever && due <= in.NowUnixNano:
			d.out.giveUp(a, reason, message+in.stillRunning(a, spec))
			continue
		case ever:
			d.out.wait(a.Index, state.ReasonNodeLost, due)
		default:
			d.out.wait(a.Index, state.ReasonNodeLost, 0)
		}
		if !d.mayStay(a) {
			d.out.stop(a, reason, message)
		}
	}
}

// BoundLeft returns the time after which no work that a lease binds can run any more on a
// node that is not ready. It is ≤ 0 if nothing can run now.
func BoundLeft(in Input, nodeID string) time.Duration {
	left := time.Duration(0)
	for a := range in.View.NodeAllocs(nodeID) {
		g := in.orderedGroup(a, nil)
		if !a.Live() || g == nil || !bound(g, a.Local) {
			continue
		}
		left = max(left, in.absence(nodeID).LeaseLeft(in.longestLease(g.Binding(a.Local)), g.KillTimeout))
	}
	return left
}

// MustWait reports whether only the node itself, or an operator, may end a live allocation
// of a lost node. There are two cases. The group is not to be replaced. Or the group must
// not run twice, and no lease certainly ends the version that the node was ordered to run.
func MustWait(view *state.View, a *state.Alloc) bool {
	in := Input{View: view}
	ordered := in.orderedGroup(a, nil)
	if ordered == nil {
		return false
	}
	if !ordered.Disconnect.Replace {
		return true
	}
	g, ok := view.Group(a.Key())
	if !ok || a.Binding(ordered) != state.BindNone {
		return false
	}
	s := state.SlotOf(g.Slots, a.Index)
	if s == nil {
		return false
	}
	job, ok := view.Job(a.Key().JobKey(), s.JobVersion)
	return ok && job.Group(a.Group) != nil && bound(job.Group(a.Group), a.Local)
}

// boundNow reports whether a lease binds an index in the job version of its slot.
func (d *decision) boundNow(index int32) bool {
	s := state.SlotOf(d.g.Slots, index)
	if s == nil {
		return false
	}
	job := d.jobOf(s)
	if job == nil {
		return false
	}
	g := job.Group(d.g.Key.Group)
	return g != nil && bound(g, d.g.Key.Local)
}

// mayRunUnbound reports whether an attempt that was given up may still run, although a
// lease binds its index now. Such an attempt is on a lost node, and no lease binds the
// earlier version that the node was ordered to run.
func (d *decision) mayRunUnbound(index int32) bool {
	return bound(d.spec, d.g.Key.Local) && slices.ContainsFunc(d.unconfirmed, func(a *state.Alloc) bool {
		return a.Index == index && a.Binding(d.p.in.orderedGroup(a, d.spec)) == state.BindNone
	})
}

// mayStay reports whether an allocation of a lost node stays if its node returns in time:
// its index is held, or is revoked only if the node does not return. The node must then find
// no stop order when it returns.
func (d *decision) mayStay(a *state.Alloc) bool {
	return slices.ContainsFunc(d.g.Slots, func(s *state.Slot) bool {
		inside := a.Index >= s.From && a.Index < s.To
		return inside && (d.holds(s, a) || s.Desired == state.Revoke && s.UnlessConnected)
	})
}

// holds reports whether a held slot lets an attempt continue. The attempt must be of the
// slot's run, and the region's lease must not bind the attempt's version: such an attempt
// ended with that lease, before another region took over the slot. So it must not start
// again when the region has a new lease.
func (d *decision) holds(s *state.Slot, a *state.Alloc) bool {
	if s.Desired != state.Hold || !s.OfRun(a.Run) {
		return false
	}
	g := d.p.in.orderedGroup(a, d.spec)
	if g == nil {
		return true
	}
	b := g.Binding(a.Local)
	return b != state.BindRegion && b != state.BindBoth
}

// unwanted returns the reason why an allocation is not wanted. The reason is empty if the
// allocation is wanted, or if a change of slot orders is incomplete.
func (d *decision) unwanted(a *state.Alloc) (state.Reason, string) {
	var covers *state.Slot
	index := a.Index // of the slot
	for _, s := range d.g.Slots {
		i := a.Index
		if d.system {
			i = s.From
		}
		if s.Wants(i) {
			return "", ""
		}
		if i >= s.From && i < s.To {
			covers, index = s, i
		}
	}
	view := d.p.in.View
	switch {
	case covers != nil && covers.Desired == state.Stop:
		return state.ReasonStoppedByUser, "the job was stopped or scaled down"
	case covers != nil && view.ExemptFromRevoke(covers, a.Index):
		return "", ""
	case covers != nil && !a.Disconnected && d.holds(covers, a):
		return "", ""
	case covers != nil && covers.Desired == state.Hold:
		return state.ReasonRevoked, "another region runs it"
	case covers != nil && covers.Desired == state.Revoke:
		return state.ReasonRevoked, "the slot was revoked"
	case covers != nil && covers.Owns(index) && covers.Holds(index):
		return state.ReasonStoppedByUser, "an override keeps it stopped in this region"
	case view.Cluster().OrdersIncomplete && !a.Local:
		return "", ""
	case covers == nil && len(d.g.Slots) > 0:
		return state.ReasonOutOfRange, "no slot has this index any more"
	}
	return state.ReasonRevoked, "the region no longer owns it"
}
