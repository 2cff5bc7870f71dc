package sched

import (
	"fmt"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// roll is a running instance that is to be replaced.
type roll struct {
	alloc   *state.Alloc
	reason  state.Reason
	message string
}

// keep chooses the connected allocation that stays and stops the others.
func (d *decision) keep(live []*state.Alloc) (keep *state.Alloc, connected int) {
	for _, a := range live {
		if a.Disconnected {
			continue
		}
		connected++
		if a.Desired != state.Run {
			continue
		}
		if keep == nil || d.prefers(a, keep) {
			a, keep = keep, a
		}
		if a != nil {
			d.stop(a, state.ReasonRescheduled, "two attempts ran when a lost node came back, and the other one stays")
		}
	}
	return keep, connected
}

// prefers follows disconnect.reconcile; an attempt of the present version goes
// first, and one that can stay where it is before one that would be moved next.
func (d *decision) prefers(a, b *state.Alloc) bool {
	if an, bn := a.JobVersion == d.slot.JobVersion, b.JobVersion == d.slot.JobVersion; an != bn {
		return an
	}
	if a.Moving != b.Moving {
		return b.Moving
	}
	if d.spec.Disconnect.KeepReplacement {
		return a.Epoch > b.Epoch
	}
	return a.Epoch < b.Epoch
}

// kept looks whether the allocation that stays has to be moved or updated.
func (d *decision) kept(a *state.Alloc) {
	switch {
	case a.JobVersion != d.slot.JobVersion:
		d.rolls = append(d.rolls, roll{a, state.ReasonSuperseded,
			fmt.Sprintf("version %d replaces %d", d.slot.JobVersion, a.JobVersion)})
	case a.Moving:
		d.rolls = append(d.rolls, roll{a, state.ReasonNodeDraining, "moved from " + a.NodeName})
	}
	if !a.Serving() {
		d.down++
		d.prove(a)
	}
}

// HealthyAfter is how long what a rollout or a failure brought must be up
// without a restart until it counts as running. The first attempt of an
// instance counts at once.
const HealthyAfter = time.Second

// prove looks whether an allocation has proved itself.
func (d *decision) prove(a *state.Alloc) {
	if a.State != state.Running || a.UpUnixNano == 0 || a.Moving || a.JobVersion != d.slot.JobVersion {
		return
	}
	if due := a.UpUnixNano + int64(HealthyAfter); due > d.in.NowUnixNano {
		d.wake(due)
		return
	}
	d.plan.Proven = append(d.plan.Proven, Proven{AllocID: a.ID, Key: d.g.Key, Index: a.Index, UpUnixNano: a.UpUnixNano})
}

// roll stops instances that are to be replaced, so that at most max_parallel
// are down at once. Those that are not up yet are replaced in any case.
func (d *decision) roll() {
	if len(d.rolls) == 0 {
		return
	}
	budget := max(1, d.spec.MaxParallel) - d.down
	for _, r := range d.rolls {
		if r.alloc.Serving() {
			room := budget
			if r.reason == state.ReasonSuperseded {
				room -= d.exhausted
			}
			if room <= 0 {
				continue
			}
			budget--
		}
		d.stop(r.alloc, r.reason, r.message)
	}
}
