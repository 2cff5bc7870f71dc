package sched

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

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
	case a.Limits == state.LimitsRefused || a.Limits == state.LimitsOrdered && d.cannotResize(a):
		d.replacements = append(d.replacements, replacement{a, state.ReasonSuperseded,
			fmt.Sprintf("its resources could not change in place: %s", cmp.Or(a.Message, "the agent is of an earlier version"))})
	case a.JobVersion != d.slot.JobVersion:
		d.replacements = append(d.replacements, replacement{a, state.ReasonSuperseded,
			fmt.Sprintf("version %d replaces %d", d.slot.JobVersion, a.JobVersion)})
	case a.Moving && d.mustLeave(a):
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
	if a.State != state.Running || a.UpUnixNano == 0 || a.Limits == state.LimitsOrdered || a.Limits == state.LimitsRefused || a.Moving || a.JobVersion != d.slot.JobVersion {
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
		if d.drainOver(r.alloc) {
			d.out.stop(r.alloc, state.ReasonNodeDraining, "the deadline of the drain of "+r.alloc.NodeName+" has passed")
			budget--
			continue
		}
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
		if d.resize(r.alloc) {
			continue
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
			began = max(began, a.CreatedUnixNano, resizedAt(a, d.p.in.NowUnixNano))
		}
	}
	until = began + int64(d.spec.Stagger)
	if began == 0 || until <= d.p.in.NowUnixNano {
		return 0
	}
	return until
}

// liveResources is the capability of each driver of a node whose agent can change the CPU, memory and
// disk of a task while it runs.
const liveResources = "live_resources"

// resize gives an allocation the resources of the present version while it runs, if that is possible.
// Otherwise it returns false, and the allocation must be replaced.
func (d *decision) resize(a *state.Alloc) bool {
	n, to, problem := d.resizable(a)
	if problem != "" {
		return false
	}
	d.p.cache.nodes.grow(n, to.Sub(a.Resources))
	d.p.plan.Resizes = append(d.p.plan.Resizes, Resize{
		AllocID: a.ID, Key: d.g.Key, Index: a.Index, NodeName: a.NodeName, JobVersion: d.slot.JobVersion,
		From: a.Resources, To: to,
	})
	return true
}

// resizable returns the node of an allocation and the resources that it gets, or why the allocation
// cannot get the resources of the present version while it runs.
func (d *decision) resizable(a *state.Alloc) (n *node, to state.Resources, problem string) {
	was := d.onlyResources(a)
	switch {
	case a.JobVersion == d.slot.JobVersion:
		return nil, to, "it has the version"
	case a.Moving:
		return nil, to, "node " + a.NodeName + " is being drained"
	case a.Disconnected:
		return nil, to, "node " + a.NodeName + " is not connected"
	case was == nil:
		return nil, to, "more than resources changes"
	case !d.canResize(a):
		return nil, to, "a driver of node " + a.NodeName + " cannot change the resources of a running task"
	}
	to = state.ResizedTo(a, was, d.spec)
	t := d.p.cache.table(d.p.in.View, d.p.in.Load)
	pos, ok := t.position(a.NodeID)
	if !ok {
		return nil, to, "node " + a.NodeName + " is gone"
	}
	n = &t.nodes[pos]
	if n.Status != state.NodeReady || n.Draining || t.reservedFor(pos) != nil || !to.Sub(a.Resources).Fits(n.free) {
		return nil, to, "node " + a.NodeName + " has no room for " + resizeText(a.Resources, to)
	}
	return n, to, ""
}

// InstanceChange says what the present versions of slots do to an instance that runs.
type InstanceChange struct {
	Index    int32
	NodeName string
	// Problem says why the instance is replaced. Empty: it changes in place.
	Problem string
}

// Changes returns what happens to the instances of a group that do not have the version of their slot,
// without regard to how many may change at a time. They are sorted by index.
func Changes(in Input, key state.GroupKey) (out []InstanceChange) {
	g, ok := in.View.Group(key)
	if !ok {
		return nil
	}
	k := NewPlanner()
	p := &planner{cache: k, in: in, plan: &Plan{}}
	d := &p.decision
	d.reset(p, g)
	for _, a := range d.live {
		slot := state.SlotOf(g.Slots, a.Index)
		if d.system && len(g.Slots) > 0 {
			slot = g.Slots[0]
		}
		if slot == nil || a.Desired != state.Run || !d.enter(slot) || a.JobVersion == slot.JobVersion {
			continue
		}
		n, to, problem := d.resizable(a)
		if problem == "" {
			k.nodes.grow(n, to.Sub(a.Resources))
		}
		out = append(out, InstanceChange{a.Index, a.NodeName, problem})
	}
	return out
}

// onlyResources returns the group in the version of an allocation if the present version differs from it only in
// resources. Otherwise it returns nil.
func (d *decision) onlyResources(a *state.Alloc) *state.Group {
	if d.p.in.View.Cluster().FeatureLevel < state.ResizeLevel {
		return nil
	}
	was, ok := d.p.in.View.Job(a.Key().JobKey(), a.JobVersion)
	if !ok {
		return nil
	}
	g := was.Group(a.Group)
	if !state.OnlyResources(g, d.spec) || g.Binding(a.Local) != d.spec.Binding(a.Local) {
		return nil
	}
	return g
}

// canResize reports whether the drivers of an allocation's node can change the resources of its tasks
// while they run.
func (d *decision) canResize(a *state.Alloc) bool {
	return d.eachDriver(a, func(has *state.Driver) bool { return has.Healthy && slices.Contains(has.Capabilities, liveResources) })
}

// cannotResize reports whether a healthy driver of the node says that it cannot do it. That happens
// after a change of the node's settings, or with an agent of an earlier version. A driver that is not
// healthy may say it later.
func (d *decision) cannotResize(a *state.Alloc) bool {
	return !d.eachDriver(a, func(has *state.Driver) bool { return !has.Healthy || slices.Contains(has.Capabilities, liveResources) })
}

// eachDriver reports whether the node of an allocation has all its drivers, with a property.
func (d *decision) eachDriver(a *state.Alloc, has func(*state.Driver) bool) bool {
	n, ok := d.p.in.View.Node(a.NodeID)
	if !ok {
		return false
	}
	for _, ask := range d.spec.Ask.Drivers {
		i := slices.IndexFunc(n.Drivers, func(driver state.Driver) bool { return driver.Name == ask.Name })
		if i < 0 || !has(&n.Drivers[i]) {
			return false
		}
	}
	return true
}

// resizedAt returns when an allocation got other resources while it ran: now, while the agent has not
// reported it. It returns 0 if it never did.
func resizedAt(a *state.Alloc, now int64) int64 {
	switch a.Limits {
	case 0:
		return 0
	case state.LimitsOrdered:
		return now
	}
	return a.UpUnixNano
}

// resizeText says which resources change, such as "cpu 500m to 600m".
func resizeText(from, to state.Resources) string {
	var parts []string
	for _, r := range []struct{ name, from, to string }{
		{"cpu", milli(from.CPUMilli), milli(to.CPUMilli)},
		{"memory", size(from.MemoryBytes), size(to.MemoryBytes)},
		{"disk", size(from.DiskBytes), size(to.DiskBytes)},
	} {
		if r.from != r.to {
			parts = append(parts, r.name+" "+r.from+" to "+r.to)
		}
	}
	if len(parts) == 0 {
		return "the tasks divide the same resources in another way"
	}
	return strings.Join(parts, ", ")
}
