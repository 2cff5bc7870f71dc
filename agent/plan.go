package agent

import (
	"maps"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
)

// settleRounds bounds how often one event may change the plan; a plan that has
// not settled by then is continued after the next events.
const settleRounds = 8

// governing is what the plans of accepted allocations depend on beside
// themselves and the time.
type governing struct {
	planned          bool // false: of none yet
	fenced           lease.Verdict
	leaving, pausing bool
}

// settle plans and acts until there is nothing to do but wait; it returns until
// when.
func (e *engine) settle() time.Time {
	for range settleRounds {
		in, whole := e.input()
		plan := reconcile.Make(in)
		if whole || !plan.Wake.IsZero() && (e.wake.IsZero() || plan.Wake.Before(e.wake)) {
			e.wake = plan.Wake
		}
		if len(plan.Actions) == 0 {
			return e.wake
		}
		for _, act := range plan.Actions {
			e.log.Debug("action", "do", act)
			e.metrics.actions.WithLabelValues(act.Kind.String()).Inc()
			e.carryOut(act)
		}
	}
	e.wake = e.line.now()
	return e.wake
}

// input of a plan: of what has changed if that is enough, else of the whole. An
// accepted allocation is planned by itself, so most events are about one of them
// and cost the same however many there are. The whole is looked at when one is
// to be accepted, when the lease or the agent's end changed for all, and when
// time may have changed something.
func (e *engine) input() (in reconcile.Input, whole bool) {
	now, state := e.line.now(), e.lease.At(e.clock())
	g := governing{true, lease.Evaluate(lease.Stop, state), e.host.Leaving, e.host.Pausing}
	whole = g != e.governed || !e.wake.IsZero() && !now.Before(e.wake)
	e.governed = g
	var part []string
	fresh := false
	for id, a := range e.allocs {
		if a.dirty {
			part = append(part, id)
			fresh = fresh || a.fresh()
		}
	}
	if whole = whole || fresh; whole {
		part = slices.AppendSeq(make([]string, 0, len(e.allocs)), maps.Keys(e.allocs))
	}
	slices.Sort(part)
	in = reconcile.Input{Now: now, Lease: state, Host: e.host,
		Allocs: make([]reconcile.Alloc, 0, len(part)), Actual: make(map[string]reconcile.Actual, len(part))}
	var ports []int
	for _, id := range part {
		a := e.allocs[id]
		in.Allocs = append(in.Allocs, a.alloc)
		in.Actual[id] = a.act
		if a.fresh() {
			fresh = true
			ports = append(ports, a.alloc.Ask.Ports...)
		}
	}
	if fresh {
		in.Host.DiskProblem = e.noRoom()
	}
	if len(ports) > 0 {
		in.Host.PortsInUse = e.portsInUse(ports)
	}
	return in, whole
}

// fresh: it is to be accepted or declined, which depends on all the others.
func (a *alloc) fresh() bool {
	return !a.act.Accepted && a.act.End == nil && a.alloc.Want == reconcile.Run
}
