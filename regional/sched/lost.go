package sched

import (
	"slices"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// replace says whether an instance all of whose attempts are on lost nodes may
// have another one now.
func (d *decision) replace(lost []*state.Alloc) bool {
	for _, a := range lost {
		due, ever := d.due(d.spec, a)
		if !ever {
			// It may take for ever: that must not hold a rollout up.
			d.wait(a.Index, state.ReasonNodeLost, 0)
			return false
		}
		if due > d.in.NowUnixNano {
			d.wait(a.Index, state.ReasonNodeLost, due)
			d.down++
			return false
		}
	}
	for _, a := range lost {
		if d.spec.Singleton || d.spec.Disconnect.StopRunning || a.Desired == state.Stop {
			d.giveUp(a, state.ReasonNodeLost, "its node is "+d.status(a))
		}
	}
	return true
}

// due is from when on an allocation on a lost node counts as gone, and whether
// it ever does without its node's word.
func (d *decision) due(spec *state.Group, a *state.Alloc) (int64, bool) {
	n, ok := d.in.View.Node(a.NodeID)
	if !ok || spec == nil {
		return 0, true
	}
	if !spec.Disconnect.Replace || d.system {
		return 0, false
	}
	after := spec.Disconnect.After
	if n.Status == state.NodeLeft {
		after = 0
	}
	if spec.Singleton || spec.Disconnect.StopRunning {
		// The holder's clock and ours may drift by 1 % each.
		after = max(after, d.in.NodeLease+d.in.NodeLease/50+spec.KillTimeout)
	}
	return n.StatusUnixNano + int64(after), true
}

func (d *decision) status(a *state.Alloc) string {
	if n, ok := d.in.View.Node(a.NodeID); ok {
		return n.Status.String()
	}
	return "gone"
}

// stopUnwanted stops what no slot wants to run.
func (d *decision) stopUnwanted() {
	for _, a := range d.live {
		reason, message := d.unwanted(a)
		if reason == "" {
			continue
		}
		if !a.Disconnected {
			d.stop(a, reason, message)
			continue
		}
		var spec *state.Group
		if job, ok := d.in.View.Job(d.g.Key.JobKey(), a.JobVersion); ok {
			spec = job.Group(d.g.Key.Group)
		}
		due, ever := d.due(spec, a)
		switch {
		case ever && due <= d.in.NowUnixNano:
			d.giveUp(a, reason, message+d.mayRun(a, spec))
			continue
		case ever:
			d.wait(a.Index, state.ReasonNodeLost, due)
		default:
			d.wait(a.Index, state.ReasonNodeLost, 0)
		}
		if !d.mayStay(a.Index) {
			d.stop(a, reason, message)
		}
	}
}

// mayStay says that an index is to be given up only if its node is not back
// before that: then no stop may wait there for it.
func (d *decision) mayStay(index int32) bool {
	return slices.ContainsFunc(d.g.Slots, func(s *state.Slot) bool {
		return s.Desired == state.Revoke && s.UnlessConnected && index >= s.From && index < s.To
	})
}

// mayRun says of an allocation that is given up where it may still run: its
// node is lost, and its group lets it run on there.
func (d *decision) mayRun(a *state.Alloc, spec *state.Group) string {
	n, ok := d.in.View.Node(a.NodeID)
	if !ok || n.Status != state.NodeLost || spec == nil || spec.Singleton || spec.Disconnect.StopRunning {
		return ""
	}
	return "; " + a.NodeName + " is silent and may run it until it is back"
}

// unwanted is why an allocation is not wanted; empty if it is, or if the slot
// orders are not whole yet.
func (d *decision) unwanted(a *state.Alloc) (state.Reason, string) {
	var covers *state.Slot
	for _, s := range d.g.Slots {
		i := a.Index
		if d.system {
			i = s.From
		}
		if s.Wants(i) {
			return "", ""
		}
		if i >= s.From && i < s.To {
			covers = s
		}
	}
	switch {
	case covers != nil && covers.Desired == state.Stop:
		return state.ReasonStoppedByUser, "the job was stopped or scaled down"
	case covers != nil && d.in.View.ExemptFromRevoke(covers, a.Index):
		return "", "" // it is heard of
	case covers != nil && covers.Desired == state.Revoke:
		return state.ReasonRevoked, "the slot was taken back"
	case d.in.View.Cluster().OrdersIncomplete && !a.Local:
		return "", ""
	case covers == nil && len(d.g.Slots) > 0:
		return state.ReasonOutOfRange, "no slot has this index any more"
	}
	return state.ReasonRevoked, "the region no longer owns it"
}
