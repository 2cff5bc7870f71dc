package state

import (
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// FeatureLevel is the greatest Cluster.FeatureLevel that this build supports.
const FeatureLevel = 18

// BindingLevel is the feature level from which on the log has this fact about an
// allocation: its agent may not know the leases that bind it: see Alloc.BindingUnknown.
const BindingLevel = 2

// JoinFederation stores the numbers in the welcome of an active global server. Until they
// are stored, the region uses nothing else of that session. Numbers never go back. Errors:
// ErrOtherFederation, ErrOldLeadership.
type JoinFederation struct {
	FederationID string
	// Term and Nonce name the leadership of the active global server.
	Term  uint64
	Nonce string
	// Fence is the region's fence, and StoreRevision the etcd revision, at the time of the
	// welcome.
	Fence         uint64
	StoreRevision int64
	// Lease is the length of the region's lease.
	Lease time.Duration
}

// RebindFederation lets the region join another federation. The numbers of the former
// federation no longer count. They count again if the region returns to it. So an old copy
// of the log cannot pass for a log that was just rebound.
type RebindFederation struct {
	FederationID string
}

// SetLimits stores limits that later masters of the region rely on.
type SetLimits struct {
	// FeatureLevel replaces a lower Cluster.FeatureLevel.
	FeatureLevel uint32
	// NodeLease replaces Cluster.NodeLeaseMax. 0: no change.
	NodeLease time.Duration
	// LeasesOver ends Cluster.Recovered.
	LeasesOver bool
	// RegionLease replaces a greater Cluster.RegionLeaseMax. It has no effect if the log
	// has joined another leadership than LeadershipNonce names. 0: no change.
	RegionLease     time.Duration
	LeadershipNonce string
}

// Joined returns the cluster after JoinFederation.
func (c Cluster) Joined(j *JoinFederation) (Cluster, error) {
	switch {
	case c.FederationID != "" && c.FederationID != j.FederationID:
		return c, fmt.Errorf("%w: region %s belongs to federation %s, the global server to %s; `nusa region rebind --federation %s`, sent to a server of the region, lets the region join it",
			ErrOtherFederation, c.Region, c.FederationID, j.FederationID, j.FederationID)
	case j.Term < c.LeadershipTerm && !plant.Is(plant.DeposedServes) && !plant.Is(plant.OldStore):
		return c, fmt.Errorf("%w: it is %d, region %s knows %d", ErrOldLeadership, j.Term, c.Region, c.LeadershipTerm)
	case j.Term == c.LeadershipTerm && c.LeadershipNonce != "" && j.Nonce != c.LeadershipNonce:
		return c, fmt.Errorf("%w: region %s knows another term %d: the federation's store was restored from an old copy", ErrOldLeadership, c.Region, j.Term)
	}
	c.FederationID, c.LeadershipTerm, c.LeadershipNonce = j.FederationID, j.Term, j.Nonce
	c.Fence, c.StoreRevision = max(c.Fence, j.Fence), max(c.StoreRevision, j.StoreRevision)
	c.RegionLeaseMax = max(c.RegionLeaseMax, j.Lease)
	return c, nil
}

func applyJoin(t *txn, c *JoinFederation) error {
	next, err := t.cluster.Joined(c)
	if err != nil {
		return err
	}
	if t.cluster.FederationID == "" {
		addEvent(t, Event{Kind: EventRegionJoined, Message: c.FederationID})
	}
	t.res.Changed = t.res.Changed || next != t.cluster
	t.cluster = next
	return nil
}

func applyRebind(t *txn, c *RebindFederation) error {
	if c.FederationID == "" {
		return fmt.Errorf("%w: no federation is named", ErrInvalid)
	}
	if t.cluster.FederationID == c.FederationID {
		return nil
	}
	reboundOverrides(t, t.cluster.Former.FederationID == c.FederationID)
	t.cluster = t.cluster.rebound(c.FederationID)
	addEvent(t, Event{Kind: EventRegionRebound, Message: c.FederationID})
	t.slotsRevision = 0
	t.res.Changed = true
	var held []*group
	for _, g := range t.groups.All() {
		if !g.key.Local && len(g.slots) > 0 {
			held = append(held, g)
		}
	}
	for _, g := range held { // the other federation has revisions of its own
		slots := slices.Clone(g.slots)
		for i, s := range slots {
			forgotten := *s
			forgotten.Revision, forgotten.ModifyIndex = 0, t.index
			slots[i] = &forgotten
		}
		t.touch(g).slots = slots
	}
	return nil
}

// rebound returns the cluster after it was bound to another federation.
func (c Cluster) rebound(federation string) Cluster {
	next := FederationNumbers{FederationID: federation}
	if c.Former.FederationID == federation {
		next = c.Former
	}
	c.Former = FederationNumbers{c.FederationID, c.LeadershipTerm, c.LeadershipNonce, c.Fence, c.StoreRevision}
	c.FederationID, c.LeadershipTerm, c.LeadershipNonce = next.FederationID, next.LeadershipTerm, next.LeadershipNonce
	c.Fence, c.StoreRevision, c.Orders = next.Fence, next.StoreRevision, Position{}
	return c
}

func applyLimits(t *txn, c *SetLimits) error {
	next := t.cluster
	next.FeatureLevel = max(next.FeatureLevel, c.FeatureLevel)
	if next.FeatureLevel > t.cluster.FeatureLevel && next.FeatureLevel >= FieldsLevel {
		next.LevelIndex = t.index
	}
	if c.NodeLease > 0 {
		next.NodeLeaseMax = c.NodeLease
	}
	next.Recovered = next.Recovered && !c.LeasesOver
	if c.RegionLease > 0 && c.LeadershipNonce == next.LeadershipNonce {
		next.RegionLeaseMax = min(next.RegionLeaseMax, c.RegionLease)
	}
	raised := t.cluster.FeatureLevel < BindingLevel && next.FeatureLevel >= BindingLevel
	t.res.Changed = t.res.Changed || next != t.cluster
	t.cluster = next
	if raised {
		beginEpochs(t)
		repeatBindings(t)
	}
	return nil
}

// beginEpochs begins epochs of the region's own jobs that no earlier cluster or incarnation
// of the region has used. It depends on the wall clock of the master. A clock that was set back
// can make the epochs smaller than earlier ones, but hardly equal to them.
func beginEpochs(t *txn) {
	if t.cluster.FeatureLevel >= BindingLevel {
		t.cluster.EpochBase = max(t.cluster.EpochBase+1, t.now/1000)
	}
}

// noteRevision stores an etcd revision if the log has joined a federation. Before that, a
// server of the region may have a version that does not store revisions.
func noteRevision(t *txn, revision int64) {
	if t.cluster.FederationID != "" {
		t.cluster.StoreRevision = max(t.cluster.StoreRevision, revision)
	}
}

// OrdersStored says that the agent of a node follows every order up to an index, and that
// the supervisors of its tasks know the leases that bind them since.
type OrdersStored struct {
	NodeID string
	Index  uint64
}

// repeatBindings orders every allocation again that a lease binds and that may run. A
// region of an earlier feature level gave an allocation a new version of its job without an
// order. The agent then follows the earlier version, which other leases may bind.
func repeatBindings(t *txn) {
	if plant.Is(plant.BindingForgotten) {
		return
	}
	var bound []*Alloc
	for _, g := range t.groups.All() {
		for a := range g.attempts() {
			if a.Charged && bindingOf(t, a) != BindNone {
				bound = append(bound, a)
			}
		}
	}
	for _, old := range bound {
		a := *old
		t.order(&a)
		putBinding(t, &a, true)
	}
}

// bindingOf returns the leases that bind the version of an allocation. An unknown version
// counts as bound, so that the allocation is ordered again.
func bindingOf(t *txn, a *Alloc) Binding {
	job, ok := t.Job(a.Key().JobKey(), a.JobVersion)
	if !ok || job.Group(a.Group) == nil {
		return BindBoth
	}
	return job.Group(a.Group).Binding(a.Local)
}

// putBinding stores an allocation with another BindingUnknown.
func putBinding(t *txn, a *Alloc, unknown bool) {
	g, p := t.groupOf(a), *a.Placement
	p.BindingUnknown = unknown
	a.Placement = g.sharePlacement(p)
	t.putAllocOf(g, a)
}

func applyOrdersStored(t *txn, c *OrdersStored) error {
	n, err := findNode(t, c.NodeID)
	if err != nil {
		return err
	}
	for _, a := range copyAllocs(t, n.Num) {
		if a.unsure() && a.OrderIndex <= c.Index {
			putBinding(t, a, false)
		}
	}
	return nil
}
