package state

import (
	"fmt"
	"slices"
)

func applyPlan(t *txn, c *ApplyPlan) error {
	for i := range c.Stops {
		applyStopAlloc(t, &c.Stops[i])
	}
	for _, r := range c.Resizes {
		applyResize(t, r)
	}
	for i := range c.Places {
		applyPlaceGroup(t, &c.Places[i])
	}
	for _, p := range c.Proven {
		applyProven(t, p)
	}
	return nil
}

func applyProven(t *txn, c ProveAlloc) {
	old, ok := t.Alloc(c.ID)
	if !ok || !old.Live() || !old.Proving || old.UpUnixNano != c.UpUnixNano {
		t.skip(c.ID, ReasonStaleOrder, "it is no longer up since then")
		return
	}
	a := *old
	a.Proving = false
	t.putAlloc(&a)
}

func applyStopAlloc(t *txn, c *StopAlloc) {
	old, ok := t.Alloc(c.ID)
	switch {
	case !ok:
		t.skip(c.ID, ReasonStaleOrder, "no such allocation")
		return
	case !old.Live():
		t.skip(c.ID, ReasonStaleOrder, "it has ended: %s", old.State)
		return
	case c.GiveUp && !old.Disconnected:
		t.skip(c.ID, ReasonStaleOrder, "its node %s is connected", old.NodeName)
		return
	case old.Desired == Stop && !c.GiveUp:
		t.skip(c.ID, ReasonStaleOrder, "it is being stopped already")
		return
	}
	a := *old
	t.order(&a)
	if c.GiveUp {
		end(&a, Lost, c.Reason, c.Message)
		t.recordEnd(&a)
		t.recordLoss(&a, old.Desired == Stop)
		addEvent(t, allocEvent(EventInstanceLost, &a, 0))
	} else {
		a.Desired, a.Reason, a.Message = Stop, c.Reason, c.Message
	}
	t.putAlloc(&a)
}

func applyPlaceGroup(t *txn, c *PlaceGroup) {
	refuse := func(format string, args ...any) {
		for i := range c.Allocs {
			t.skip(c.Allocs[i].ID, ReasonStaleOrder, format, args...)
		}
	}
	g, ok := t.group(c.Key)
	if !ok {
		refuse("no slot of %s is held", c.Key)
		return
	}
	job, ok := t.Job(c.Key.JobKey(), c.JobVersion)
	if !ok {
		refuse("version %d of %s is not stored", c.JobVersion, c.Key.JobKey())
		return
	}
	spec := job.Group(c.Key.Group)
	if spec == nil {
		refuse("version %d of %s has no group %q", c.JobVersion, c.Key.JobKey(), c.Key.Group)
		return
	}
	for i := range c.Allocs {
		g, _ := t.groups.Get(g.gid) // an earlier placement may have replaced the group
		if reason, err := placeInstance(t, g, job, spec, &c.Allocs[i]); err != nil {
			t.skip(c.Allocs[i].ID, reason, "%v", err)
		}
	}
}

// placeInstance makes an allocation, or returns why the placement is no longer valid.
func placeInstance(t *txn, g *group, job *Job, spec *Group, c *PlaceAlloc) (Reason, error) {
	slot, wanted := t.slot(g, c.Index)
	if !wanted || slot.JobVersion != job.Version {
		return ReasonStaleOrder, fmt.Errorf("index %d of %s is not wanted in version %d", c.Index, g.key, job.Version)
	}
	if _, taken := t.Alloc(c.ID); taken || c.ID == "" {
		return ReasonStaleOrder, fmt.Errorf("an allocation of id %q exists", c.ID)
	}
	for a := range g.insts.get(c.Index).attempts() {
		if a.Live() && !a.Disconnected {
			return ReasonStaleOrder, fmt.Errorf("index %d of %s is live as %s", c.Index, g.key, a.ID)
		}
	}
	n, ok := t.nodes.Get(str(c.NodeID))
	if !ok {
		return ReasonNodeLost, fmt.Errorf("%w %q", ErrUnknownNode, c.NodeID)
	}
	if job.Type == System && c.Index != int32(n.Num) {
		return ReasonStaleOrder, fmt.Errorf("index %d of a system job is not of node %s", c.Index, n.Name)
	}
	if t.cluster.Recovered && spec.Binding(g.key.Local) != BindNone {
		return ReasonRegionLease, fmt.Errorf("leases from before the region's recovery may still last")
	}
	if reason := nodeRefusal(t, n, g.key.JobKey(), spec, c); reason != "" {
		return reason, fmt.Errorf("node %s: %s", n.Name, reason)
	}
	g = t.touch(g)
	in := t.instance(g, c.Index)
	// A first attempt counts as running at once. An attempt after a failure, or in place of
	// another version, must become proven first.
	proving := in.Failures > 0 || in.Reason == ReasonSuperseded || in.Reason.AttemptsOver()
	in.Epoch = t.NextEpoch(&in.Instance)
	in.EndedUnixNano, in.NotBeforeUnixNano = 0, 0
	in.Generation, in.Run, in.Hash = slot.Generation, slot.Run, spec.Hash
	in.Reason, in.Message = "", ""
	if t.cluster.FeatureLevel >= AttemptsLevel && spec.Retry != nil {
		in.Version = slot.JobVersion
	}
	u, _ := t.uses.Get(n.Num)
	a := &Alloc{
		ID: c.ID, Seq: t.nextSeq, Index: c.Index, NodeRef: u.node, Grants: grants(c.Ports, c.GPUs, spec.Ask.Apart),
		Placement: g.sharePlacement(Placement{
			gid:       g.gid,
			Namespace: g.key.Namespace, Job: g.key.Job, Group: g.key.Group, Local: g.key.Local,
			JobVersion: job.Version, GroupHash: spec.Hash, Run: slot.Run, Generation: slot.Generation,
			Incarnation: t.cluster.Incarnation, Resources: c.resources(spec), Dedicated: spec.Ask.Dedicated,
		}),
		Proving: proving, Desired: Run, State: Pending, Charged: true, Epoch: in.Epoch,
		CreateIndex: t.index, Attempt: in.Failures, CreatedUnixNano: t.now, PlacedBecause: g.shareReason(c.Why),
	}
	t.nextSeq++
	t.order(a)
	t.putAllocOf(g, a)
	if t.cluster.FeatureLevel >= TaskLevel {
		e := allocEvent(EventInstancePlaced, a, 0)
		e.Message = a.PlacedBecause
		addEvent(t, e)
	}
	return "", nil
}

// resources returns what the allocation is charged for.
func (c *PlaceAlloc) resources(spec *Group) Resources {
	r := spec.Ask.Resources
	r.MemoryBytes = max(r.MemoryBytes, c.MemoryBytes)
	return r
}

// nodeRefusal returns why the node can no longer take a placement of the plan. It is empty
// if the node can. So the state is never over-committed, even if the plan was made from an
// old view.
func nodeRefusal(t *txn, n *Node, job JobKey, spec *Group, c *PlaceAlloc) Reason {
	u := t.useOf(n.Num)
	need, free := c.resources(spec), n.Capacity.Sub(u.Resources)
	switch {
	case n.Status != NodeReady:
		return ReasonNodeLost
	case n.Cordoned:
		return ReasonNodeCordoned
	case n.Draining:
		return ReasonNodeDraining
	case n.ControlPlane:
		return ReasonControlPlaneHost
	case need.CPUMilli > free.CPUMilli:
		return ReasonInsufficientCPU
	case need.MemoryBytes > free.MemoryBytes:
		return ReasonInsufficientMemory
	case need.DiskBytes > free.DiskBytes:
		return ReasonInsufficientDisk
	case u.Allocs >= n.MaxAllocs():
		return ReasonInstanceQuota
	case u.Dedicated > 0 && u.DedicatedJob != job:
		return ReasonDedicated
	case spec.Ask.Dedicated && t.View.SharedWith(n, job):
		return ReasonDedicated
	case u.Taken(spec.Ask.Apart) != "":
		return ReasonKeptApart
	}
	for i, p := range c.Ports {
		_, used := slices.BinarySearch(u.Ports, p.Port)
		again := slices.ContainsFunc(c.Ports[:i], func(o PortGrant) bool { return o.Port == p.Port })
		if used || again {
			return ReasonPortConflict
		}
	}
	given := make(map[int]int32, len(c.GPUs))
	for _, grant := range c.GPUs {
		i := deviceIndex(n, grant.Device)
		if i < 0 || u.GPUMilli[i]+given[i]+grant.ShareMilli > 1000 {
			return ReasonInsufficientGPU
		}
		given[i] += grant.ShareMilli
	}
	return ""
}

// Taken returns the first of the tags that an allocation on the node has, or "".
func (u *Use) Taken(tags []string) string {
	for _, tag := range tags {
		if _, taken := slices.BinarySearch(u.Apart, tag); taken {
			return tag
		}
	}
	return ""
}

// ResizeLevel is the feature level from which on the state has Group.Rest and ApplyPlan.Resizes.
const ResizeLevel = 10

// Limits says how far the change of an allocation's limits is.
type Limits uint8

const (
	// LimitsOrdered: the agent has not reported about the change yet.
	LimitsOrdered Limits = iota + 1
	// LimitsApplied: the tasks have the limits of the allocation's version.
	LimitsApplied
	// LimitsRefused: the tasks still have the limits from before. Alloc.Message says why.
	LimitsRefused
)

// ResizeAlloc gives an allocation, while it runs, another version of its job that differs only in the
// CPU, memory and disk of its tasks. The node is charged for the new amounts at once. The allocation
// counts as starting until it has run with them for Group.HealthyAfter.
type ResizeAlloc struct {
	ID         string
	JobVersion int64
}

func applyResize(t *txn, c ResizeAlloc) {
	old, ok := t.Alloc(c.ID)
	if !ok || !old.Live() || old.Disconnected || old.Desired != Run {
		t.skip(c.ID, ReasonStaleOrder, "it does not run on a connected node")
		return
	}
	g := t.groupOf(old)
	spec, err := resized(t, g, old, c.JobVersion)
	if err != nil {
		t.skip(c.ID, ReasonStaleOrder, "%v", err)
		return
	}
	n, ok := t.nodes.Get(str(old.NodeID))
	if !ok {
		t.skip(c.ID, ReasonNodeLost, "no node %s", old.NodeName)
		return
	}
	to := ResizedTo(old, groupSpec(&t.View, g.key, old.JobVersion), spec)
	if more, free := to.Sub(old.Resources), n.Capacity.Sub(t.useOf(n.Num).Resources); !more.Fits(free) {
		why := ReasonInsufficientDisk
		switch {
		case more.CPUMilli > max(0, free.CPUMilli):
			why = ReasonInsufficientCPU
		case more.MemoryBytes > max(0, free.MemoryBytes):
			why = ReasonInsufficientMemory
		}
		t.skip(c.ID, why, "node %s has no room for %+v more", n.Name, more)
		return
	}
	a, p := *old, *old.Placement
	p.JobVersion, p.GroupHash, p.Resources, p.Resized = c.JobVersion, spec.Hash, to, true
	a.Placement = g.sharePlacement(p)
	a.Limits, a.Proving = LimitsOrdered, true
	if old.Charged {
		t.charge(old, false)
		t.charge(&a, true)
	}
	t.order(&a)
	t.putAllocOf(g, &a)
}

// resized returns the group of an allocation in another version of its job, or why the allocation
// cannot have that version without a restart.
func resized(t *txn, g *group, a *Alloc, version int64) (*Group, error) {
	slot, wanted := t.slot(g, a.Index)
	if !wanted || slot.JobVersion != version || a.JobVersion == version {
		return nil, fmt.Errorf("index %d of %s is not wanted in version %d, or has it", a.Index, g.key, version)
	}
	was, is := groupSpec(&t.View, g.key, a.JobVersion), groupSpec(&t.View, g.key, version)
	if !OnlyResources(was, is) || was.Binding(g.key.Local) != is.Binding(g.key.Local) {
		return nil, fmt.Errorf("versions %d and %d of %s differ in more than resources", a.JobVersion, version, g.key)
	}
	return is, nil
}

// ResizedTo returns the resources of an allocation after a change from one version of its group to another. An
// attempt that has more memory because earlier ones failed for lack of it keeps it.
func ResizedTo(a *Alloc, was, is *Group) Resources {
	out := is.Ask.Resources
	if a.Resources.MemoryBytes > was.Ask.Resources.MemoryBytes && hasMemory(is) {
		out.MemoryBytes = max(out.MemoryBytes, a.Resources.MemoryBytes)
	}
	return out
}

func groupSpec(v *View, key GroupKey, version int64) *Group {
	if j, ok := v.Job(key.JobKey(), version); ok {
		return j.Group(key.Group)
	}
	return nil
}

// OnlyResources reports whether two versions of a group differ at most in the CPU, memory and disk of
// their tasks, and in what only the schedulers read.
func OnlyResources(a, b *Group) bool { return a != nil && b != nil && a.Rest != 0 && a.Rest == b.Rest }

// Fits reports whether an amount is free. Components of at most 0 need no room.
func (r Resources) Fits(free Resources) bool {
	return r.CPUMilli <= max(0, free.CPUMilli) && r.MemoryBytes <= max(0, free.MemoryBytes) && r.DiskBytes <= max(0, free.DiskBytes)
}

// resolves reports whether a report says what became of the change of an allocation's limits.
func resolves(a *Alloc, r *AllocReport) bool {
	return a.Limits == LimitsOrdered && r.Limits != 0 && r.Order == a.OrderIndex
}

// resolve records what became of the change of limits. The time for which the allocation must be up
// begins with the change.
func resolve(t *txn, a *Alloc, r *AllocReport) {
	a.Limits = r.Limits
	if a.UpUnixNano > 0 {
		a.UpUnixNano = t.now
	}
}
