package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
)

// maxPlanRounds bounds the plans after one event. If the last of these plans still changes
// the state, the loop makes further plans at once, as a new event.
const maxPlanRounds = 8

// planBasis holds the inputs that all plans share, besides the time. A plan of one
// allocation depends on them and on the allocation.
type planBasis struct {
	planned          bool // false before the first plan
	fenced           [len(lease.Bindings)]lease.Verdict
	leaving, pausing bool
}

// planner makes the input of each plan.
type planner struct {
	// basis has what the latest plan depended on.
	basis planBasis
	// wake is the earliest time at which a plan may change although nothing else has
	// changed. The zero time means never.
	wake time.Time
}

// view is the snapshot from which the planner selects the input of a plan.
type view struct {
	now    time.Time
	leases lease.Leases
	host   reconcile.Host
	allocs map[string]*alloc
	// portsInUse and diskProblem are called only if an allocation is undecided.
	portsInUse  func(ports []int) map[int]bool
	diskProblem func() string
}

// input returns the input of a plan: the changed allocations if they suffice, else all. An
// accepted allocation can be planned alone. So most events concern one allocation, and
// their cost does not grow with the number of allocations. A plan includes all allocations
// (whole) in three cases: a changed allocation is undecided, the leases have changed or the
// agent began to leave or to pause, or the wake time has come.
func (p *planner) input(v view) (in reconcile.Input, whole bool) {
	basis := planBasis{planned: true, leaving: v.host.Leaving, pausing: v.host.Pausing}
	for i, b := range lease.Bindings {
		basis.fenced[i] = lease.Evaluate(b, v.leases)
	}
	leases := p.basis.planned && basis.fenced != p.basis.fenced
	whole = basis != p.basis || !p.wake.IsZero() && !v.now.Before(p.wake)
	p.basis = basis
	var part []string
	undecided := false
	for id, a := range v.allocs {
		// The report of an allocation may say that it waits for a lease, so the report may
		// change.
		a.dirty = a.dirty || leases && a.spec.Binding != lease.None
		if a.dirty {
			part = append(part, id)
			undecided = undecided || a.undecided()
		}
	}
	whole = whole || undecided
	if whole {
		part = slices.AppendSeq(make([]string, 0, len(v.allocs)), maps.Keys(v.allocs))
	}
	slices.Sort(part)
	in = reconcile.Input{Now: v.now, Leases: v.leases, Host: v.host,
		Allocs: make([]reconcile.Alloc, 0, len(part)), Actual: make(map[string]reconcile.Actual, len(part))}
	var ports []int
	for _, id := range part {
		a := v.allocs[id]
		in.Allocs = append(in.Allocs, a.spec)
		in.Actual[id] = a.act
		if a.undecided() {
			undecided = true
			ports = append(ports, a.spec.Ask.Ports...)
		}
	}
	if undecided {
		in.Host.DiskProblem = v.diskProblem()
	}
	if len(ports) > 0 {
		in.Host.PortsInUse = v.portsInUse(ports)
	}
	return in, whole
}

// planned records the wake time of a plan and returns the earliest wake time.
func (p *planner) planned(wake time.Time, whole bool) time.Time {
	if whole || !wake.IsZero() && (p.wake.IsZero() || wake.Before(p.wake)) {
		p.wake = wake
	}
	return p.wake
}
