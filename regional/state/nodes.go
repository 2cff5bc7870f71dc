package state

import (
	"cmp"
	"fmt"
	"reflect"

	"github.com/nusa-scheduler/nusa/regional/state/persist"
)

func findNode(t *txn, id string) (*Node, error) {
	n, ok := t.nodes.Get(str(id))
	if !ok {
		return nil, fmt.Errorf("%w %q", ErrUnknownNode, id)
	}
	return n, nil
}

func putNode(t *txn, n Node) {
	n.ModifyIndex = t.index
	t.nodes.Set(t.own, str(n.ID), &n)
	t.res.Changed = true
}

func applyUpsertNode(t *txn, in *Node) error {
	if in.ID == "" {
		return fmt.Errorf("%w: a node without an id", ErrInvalid)
	}
	n := *in
	old, known := t.nodes.Get(str(in.ID))
	if !known {
		if t.NodeCount() >= MaxNodes {
			return fmt.Errorf("%w: %d nodes are registered", ErrFull, MaxNodes)
		}
		n.Num = t.nextNum
		t.nextNum++
		n.Cordoned, n.Draining, n.DrainUntilUnixNano, n.KeepSystem = false, false, 0, false
		n.RegisteredUnixNano, n.StatusUnixNano = t.now, t.now
		n.Status, n.InventoryIndex = NodeReady, t.index
		t.uses.Set(t.own, n.Num, newUse(t.own, &n))
		putNode(t, n)
		nodeEvent(t, EventNodeRegistered, &n)
		return nil
	}
	n.Num, n.RegisteredUnixNano, n.ModifyIndex = old.Num, old.RegisteredUnixNano, old.ModifyIndex
	n.Cordoned, n.Draining, n.DrainUntilUnixNano, n.KeepSystem = old.Cordoned, old.Draining, old.DrainUntilUnixNano, old.KeepSystem
	n.Status, n.StatusUnixNano, n.InventoryIndex = old.Status, old.StatusUnixNano, old.InventoryIndex
	if !reflect.DeepEqual(&n, old) {
		n.InventoryIndex = t.index
		putNode(t, n)
		if n.Name != old.Name {
			t.useFor(n.Num).node = n.ref()
		}
		if len(n.GPUs) > 0 || len(old.GPUs) > 0 {
			t.recountGPUs(&n)
		}
	}
	return applyNodeStatus(t, &SetNodeStatus{ID: in.ID, Status: NodeReady})
}

func newUse(own *persist.Owner, n *Node) *use {
	return &use{own: own, node: n.ref(), Use: Use{GPUMilli: make([]int32, len(n.GPUs))}}
}

func (n *Node) ref() *NodeRef { return &NodeRef{n.ID, n.Name, n.Num} }

// statusEvents are the kinds of the events about a new status.
var statusEvents = map[NodeStatus]EventKind{NodeReady: EventNodeReady, NodeLost: EventNodeLost, NodeLeft: EventNodeLeft}

func applyNodeStatus(t *txn, c *SetNodeStatus) error {
	old, err := findNode(t, c.ID)
	if err != nil {
		return err
	}
	if c.Status < NodeReady || c.Status > NodeLeft {
		return fmt.Errorf("%w: %v of node %q", ErrInvalid, c.Status, c.ID)
	}
	if old.Status == c.Status {
		return nil
	}
	n := *old
	n.Status, n.StatusUnixNano = c.Status, c.SinceUnixNano
	if n.StatusUnixNano == 0 {
		n.StatusUnixNano = t.now
	}
	putNode(t, n)
	nodeEvent(t, statusEvents[c.Status], &n)
	changeLive(t, n.Num, func(a *Alloc) { a.Disconnected = c.Status != NodeReady })
	return nil
}

func applyCordon(t *txn, c *CordonNode) error {
	old, err := findNode(t, c.ID)
	if err != nil {
		return err
	}
	if old.Cordoned != c.Cordon {
		n := *old
		n.Cordoned = c.Cordon
		putNode(t, n)
		kind := EventNodeUncordoned
		if c.Cordon {
			kind = EventNodeCordoned
		}
		nodeEvent(t, kind, &n)
	}
	return nil
}

// DrainLevel is the feature level from which on the state has deadlines of drains.
const DrainLevel = 11

func applyDrain(t *txn, c *DrainNode) error {
	old, err := findNode(t, c.ID)
	if err != nil {
		return err
	}
	n := *old
	n.Draining = c.Drain
	if !c.Drain {
		n.DrainUntilUnixNano, n.KeepSystem = 0, false
	} else if t.cluster.FeatureLevel >= DrainLevel {
		n.DrainUntilUnixNano, n.KeepSystem = cmp.Or(c.DeadlineUnixNano, old.DrainUntilUnixNano), c.KeepSystem || old.KeepSystem
	}
	if old.Draining == c.Drain && n.DrainUntilUnixNano == old.DrainUntilUnixNano && n.KeepSystem == old.KeepSystem {
		return nil
	}
	putNode(t, n)
	if old.Draining == c.Drain {
		return nil
	}
	kind := EventNodeUndrained
	if c.Drain {
		kind = EventNodeDraining
	}
	nodeEvent(t, kind, &n)
	changeLive(t, n.Num, func(a *Alloc) { a.Moving = c.Drain })
	return nil
}

func applyRemoveNode(t *txn, c *RemoveNode) error {
	n, err := findNode(t, c.ID)
	if err != nil {
		return err
	}
	if n.Status == NodeReady {
		return fmt.Errorf("%w: node %q", ErrNodeReady, n.Name)
	}
	held := copyAllocs(t, n.Num)
	for _, a := range held {
		if a.Live() {
			asked := a.Desired == Stop
			end(a, Lost, ReasonNodeLost, "node "+n.Name+" was removed")
			t.recordEnd(a)
			t.recordLoss(a, asked)
			addEvent(t, allocEvent(EventInstanceLost, a, 0))
		}
		if a.Charged {
			a.Charged = false
			t.putAlloc(a)
		}
	}
	t.nodes.Delete(t.own, str(n.ID))
	t.uses.Delete(t.own, n.Num)
	t.reports.Delete(t.own, n.Num)
	t.res.Changed = true
	nodeEvent(t, EventNodeRemoved, n)
	for _, g := range systemGroupsOn(t, n.Num) { // the groups no longer want an instance on this node
		t.refresh(t.touch(g), int32(n.Num))
	}
	return nil
}

// systemGroupsOn returns the system groups that have an instance for a node, even if the
// allocations of that instance were purged.
func systemGroupsOn(t *txn, num uint32) []*group {
	var on []*group
	for r := range t.undecided.All() { // undecided has every system group
		if g, _ := t.groups.Get(r.gid); g.typ == System && g.insts.get(int32(num)) != nil {
			on = append(on, g)
		}
	}
	return on
}

// changeLive changes every live allocation of a node and stores it.
func changeLive(t *txn, num uint32, change func(*Alloc)) {
	for _, a := range copyAllocs(t, num) {
		if a.Live() {
			change(a)
			t.putAlloc(a)
		}
	}
}

// copyAllocs copies a node's allocations, because a collection must not be changed while it
// is read.
func copyAllocs(t *txn, num uint32) []*Alloc {
	var out []*Alloc
	for a := range t.allocsOn(num) {
		c := *a
		out = append(out, &c)
	}
	return out
}
