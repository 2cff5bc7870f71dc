package state

import "github.com/nusa-scheduler/nusa/internal/plant"

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
