package state

import (
	"fmt"
	"slices"
)

func applyPlan(t *txn, c *ApplyPlan) error {
	for i := range c.Stops {
		applyStopAlloc(t, &c.Stops[i])
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
	u, _ := t.uses.Get(n.Num)
	a := &Alloc{
		ID: c.ID, Seq: t.nextSeq, Index: c.Index, NodeRef: u.node, Grants: grants(c.Ports, c.GPUs, spec.Ask.Apart),
		Placement: g.sharePlacement(Placement{
			gid:       g.gid,
			Namespace: g.key.Namespace, Job: g.key.Job, Group: g.key.Group, Local: g.key.Local,
			JobVersion: job.Version, GroupHash: spec.Hash, Run: slot.Run, Generation: slot.Generation,
			Incarnation: t.cluster.Incarnation, Resources: spec.Ask.Resources, Dedicated: spec.Ask.Dedicated,
		}),
		Proving: proving, Desired: Run, State: Pending, Charged: true, Epoch: in.Epoch,
		CreateIndex: t.index, Attempt: in.Failures, CreatedUnixNano: t.now, PlacedBecause: g.shareReason(c.Why),
	}
	t.nextSeq++
	t.order(a)
	t.putAllocOf(g, a)
	return "", nil
}

// nodeRefusal returns why the node can no longer take a placement of the plan. It is empty
// if the node can. So the state is never over-committed, even if the plan was made from an
// old view.
func nodeRefusal(t *txn, n *Node, job JobKey, spec *Group, c *PlaceAlloc) Reason {
	u := t.useOf(n.Num)
	need, free := spec.Ask.Resources, n.Capacity.Sub(u.Resources)
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
