package sched

import (
	"fmt"

	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// replacement is a running instance that must be replaced.
type replacement struct {
	alloc   *state.Alloc
	reason  state.Reason
	message string
}

// chooseAttempt chooses the connected allocation that stays, and stops the others. stays is
// nil if all of them are already being stopped. connected is how many are on connected
// nodes.
func (d *decision) chooseAttempt(live []*state.Alloc) (stays *state.Alloc, connected int) {
	for _, a := range live {
		if a.Disconnected {
			continue
		}
		connected++
		if a.Desired != state.Run {
			continue
		}
		if stays == nil || d.prefers(a, stays) {
			a, stays = stays, a
		}
		if a != nil {
			d.out.stop(a, state.ReasonRescheduled, "two attempts ran when a lost node came back, and the other one stays")
		}
	}
	return stays, connected
}

// prefers reports whether attempt a should stay rather than attempt b. An attempt of the
// present version comes first, then an attempt that can stay on its node. After that,
// disconnect.reconcile decides.
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

// checkAttempt decides whether the allocation that stays must be moved or updated.
func (d *decision) checkAttempt(a *state.Alloc) {
	switch {
	case a.JobVersion != d.slot.JobVersion:
		d.replacements = append(d.replacements, replacement{a, state.ReasonSuperseded,
			fmt.Sprintf("version %d replaces %d", d.slot.JobVersion, a.JobVersion)})
	case a.Moving:
		d.replacements = append(d.replacements, replacement{a, state.ReasonNodeDraining, "moved from " + a.NodeName})
	}
	if !a.Serving() {
		d.down++
		d.checkProven(a)
	}
}

// checkProven adds an entry to Plan.Proven if an allocation has been up for
// state.Group.HealthyAfter. Otherwise it makes the next plan due at that time.
func (d *decision) checkProven(a *state.Alloc) {
	if a.State != state.Running || a.UpUnixNano == 0 || a.Moving || a.JobVersion != d.slot.JobVersion {
		return
	}
	if due := a.UpUnixNano + int64(d.spec.HealthyAfter(d.job.Type)); due > d.p.in.NowUnixNano && !plant.Is(plant.HealthyAtOnce) {
		d.out.wake(due)
		return
	}
	d.p.plan.Proven = append(d.p.plan.Proven, Proven{AllocID: a.ID, Key: d.g.Key, Index: a.Index, UpUnixNano: a.UpUnixNano})
}

// rollOut stops instances that must be replaced, but no more than max_parallel instances
// may be down at once, and update.stagger must have passed since the last step. Instances that are
// not up yet are replaced in any case, and so are those of draining nodes.
func (d *decision) rollOut() {
	if len(d.replacements) == 0 {
		return
	}
	wait := d.staggered()
	budget := max(1, d.spec.MaxParallel) - d.down
	if plant.Is(plant.DownForgotten) {
		budget += d.down
	}
	for _, r := range d.replacements {
		if r.alloc.Serving() {
			room := budget
			if r.reason == state.ReasonSuperseded {
				room -= d.exhausted
			}
			if room <= 0 {
				continue
			}
			if wait > 0 && r.reason == state.ReasonSuperseded && !r.alloc.Moving {
				d.out.wake(wait)
				continue
			}
			budget--
		}
		d.out.stop(r.alloc, r.reason, r.message)
	}
}

// staggered returns when the next step of a rollout may start, because of update.stagger. It returns 0
// if the step may start now. A step starts when it creates an allocation of the present version. Until
// then the instance that it stops is down and counts in max_parallel.
func (d *decision) staggered() (until int64) {
	if d.spec.Stagger <= 0 {
		return 0
	}
	began := int64(0)
	for _, a := range d.live {
		if a.JobVersion == d.slot.JobVersion {
			began = max(began, a.CreatedUnixNano)
		}
	}
	until = began + int64(d.spec.Stagger)
	if began == 0 || until <= d.p.in.NowUnixNano {
		return 0
	}
	return until
}
