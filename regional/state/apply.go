package state

import (
	"fmt"
	"maps"
	"slices"
)

// txn applies one command. Its methods are operations that several commands need. The
// commands themselves are functions that take a txn.
type txn struct {
	*State
	index   uint64
	now     int64
	res     *Result
	forget  map[string]struct{} // nodes that may forget allocations; made when first needed
	touched []*group
}

// Apply changes the state by one committed command. Equal states, indices and commands give
// equal states and results. index must grow. Apply stores index even if the command changes
// nothing.
func (s *State) Apply(index uint64, cmd Command) Result {
	s.View.index = index
	if cmd.Batch == nil {
		var res Result
		s.applyOne(index, &cmd, &res)
		s.storeEvents(index)
		return res
	}
	const follow = 4 // room for the results of later commands in the same entry
	res := Result{Batch: make([]Result, len(cmd.Batch), len(cmd.Batch)+follow), Incarnation: s.cluster.Incarnation}
	for i := range cmd.Batch {
		s.applyOne(index, &cmd.Batch[i], &res.Batch[i])
		res.Changed = res.Changed || res.Batch[i].Changed
	}
	s.storeEvents(index)
	return res
}

func (s *State) applyOne(index uint64, cmd *Command, res *Result) {
	s.commands++
	t := &txn{State: s, index: index, now: cmd.NowUnixNano, res: res, touched: s.touched[:0]}
	res.Err = t.dispatch(cmd)
	t.finish()
	if cmd.Audit != nil && res.Err == nil && res.Changed && (!res.Same || res.tagged) {
		record(t, cmd.Audit)
	}
	clear(t.touched)
	s.touched = t.touched
}

func (t *txn) dispatch(cmd *Command) error {
	switch {
	case cmd.Bootstrap != nil:
		return applyBootstrap(t, cmd.Bootstrap)
	case cmd.BumpIncarnation != nil:
		return applyBump(t, cmd.BumpIncarnation)
	case cmd.UpsertNode != nil:
		return applyUpsertNode(t, &cmd.UpsertNode.Node)
	case cmd.SetNodeStatus != nil:
		return applyNodeStatus(t, cmd.SetNodeStatus)
	case cmd.CordonNode != nil:
		return applyCordon(t, cmd.CordonNode)
	case cmd.DrainNode != nil:
		return applyDrain(t, cmd.DrainNode)
	case cmd.RemoveNode != nil:
		return applyRemoveNode(t, cmd.RemoveNode)
	case cmd.ApplyOrders != nil:
		return applyOrders(t, cmd.ApplyOrders)
	case cmd.ApplyPlan != nil:
		return applyPlan(t, cmd.ApplyPlan)
	case cmd.AgentReports != nil:
		return applyReports(t, cmd.AgentReports)
	case cmd.AnswerSlots != nil:
		return applyAnswers(t, cmd.AnswerSlots)
	case cmd.SubmitLocalJob != nil:
		return applySubmit(t, cmd.SubmitLocalJob)
	case cmd.StopLocalJob != nil:
		return applyStop(t, cmd.StopLocalJob)
	case cmd.Purge != nil:
		return applyPurge(t, cmd.Purge)
	case cmd.JoinFederation != nil:
		return applyJoin(t, cmd.JoinFederation)
	case cmd.RebindFederation != nil:
		return applyRebind(t, cmd.RebindFederation)
	case cmd.SetLimits != nil:
		return applyLimits(t, cmd.SetLimits)
	case cmd.OrdersStored != nil:
		return applyOrdersStored(t, cmd.OrdersStored)
	case cmd.ChangeDocuments != nil:
		return applyDocuments(t, cmd.ChangeDocuments)
	case cmd.SetOverride != nil:
		return applyOverride(t, cmd.SetOverride)
	case cmd.TagVersion != nil:
		return applyTag(t, cmd.TagVersion)
	case cmd.Audit != nil:
		t.res.Changed = true
		return nil
	case cmd.Batch != nil:
		return fmt.Errorf("%w at index %d", ErrNestedBatch, t.index)
	}
	return fmt.Errorf("%w at index %d: upgrade this server", ErrUnknownCommand, t.index)
}

// finish updates the ranks of the touched groups and sets the fields of the result.
func (t *txn) finish() {
	forgetEndedLocals(t)
	for _, g := range t.touched {
		t.rank(g)
	}
	t.res.Incarnation = t.cluster.Incarnation
	if len(t.forget) > 0 {
		t.res.Nodes = slices.Sorted(maps.Keys(t.forget))
	}
	if len(t.touched) > 0 {
		t.res.Groups = make([]GroupKey, 0, len(t.touched))
		for _, g := range t.touched {
			t.res.Groups = append(t.res.Groups, g.key)
		}
		slices.SortFunc(t.res.Groups, GroupKey.Compare)
	}
	t.res.Changed = t.res.Changed || len(t.res.Orders) > 0 || len(t.forget) > 0 || len(t.touched) > 0
}

func (t *txn) skip(id string, reason Reason, format string, args ...any) {
	t.res.Skipped = append(t.res.Skipped, Skip{id, reason, fmt.Sprintf(format, args...)})
}

func applyBootstrap(t *txn, c *Bootstrap) error {
	if t.cluster.ID == c.ClusterID && t.cluster.Region == c.Region {
		return nil
	}
	if t.cluster.ID != "" {
		return fmt.Errorf("%w: it is %s of region %s, not %s of region %s",
			ErrOtherCluster, t.cluster.ID, t.cluster.Region, c.ClusterID, c.Region)
	}
	t.cluster.ID, t.cluster.Region = c.ClusterID, c.Region
	t.cluster.Incarnation = max(t.cluster.Incarnation, 1)
	t.res.Changed = true
	return nil
}

func applyBump(t *txn, c *BumpIncarnation) error {
	if c.Incarnation > t.cluster.Incarnation {
		t.cluster.Incarnation, t.cluster.RestoreID, t.cluster.Recovered = c.Incarnation, c.RestoreID, true
		beginEpochs(t)
		beginNumbers(t)
		addEvent(t, Event{Kind: EventRegionRecovered, Version: int64(c.Incarnation)})
		t.res.Changed = true
	}
	return nil
}

// touch returns a writable version of the group.
func (t *txn) touch(g *group) *group {
	if have, ok := t.groups.Get(g.gid); ok { // g may be older than the group's writable version
		g = have
	}
	if g.own != t.own {
		c := *g
		c.own = t.own
		g = &c
		t.groups.Set(t.own, g.gid, g)
	} else if g.touched == t.commands {
		return g
	}
	g.modify, g.touched = t.index, t.commands
	t.touched = append(t.touched, g)
	return g
}

// groupOf returns the writable group of an allocation.
func (t *txn) groupOf(a *Alloc) *group {
	g, _ := t.groups.Get(a.gid)
	return t.touch(g)
}

// forgets records that a node may forget one of its allocations: see Result.Nodes.
func (t *txn) forgets(nodeID string) {
	if t.forget == nil {
		t.forget = map[string]struct{}{}
	}
	t.forget[nodeID] = struct{}{}
}

// groupFor returns the writable group of a key. If there is none it creates one.
func (t *txn) groupFor(key GroupKey) *group {
	if g, ok := t.View.group(key); ok {
		return t.touch(g)
	}
	g := &group{own: t.own, gid: t.nextGID, key: key}
	t.nextGID++
	t.addGroup(key, g.gid)
	t.groups.Set(t.own, g.gid, g)
	return t.touch(g)
}

// rank adds a touched group to the undecided groups, or removes it from them. It deletes a
// group without slots and allocations.
func (t *txn) rank(g *group) {
	r := rank{g.priority, g.gid}
	if len(g.slots) == 0 && g.allocs == 0 {
		t.undecided.Delete(t.own, r)
		t.groups.Delete(t.own, g.gid)
		t.dropGroup(g.key)
		return
	}
	if g.undecided() {
		t.undecided.Set(t.own, r, struct{}{})
	} else {
		t.undecided.Delete(t.own, r)
	}
}

func (g *group) undecided() bool {
	return g.wanted > g.recorded || g.unsteady > 0 || g.typ == System && len(g.slots) > 0
}

// SlotOf returns the slot that governs an index. While a change of orders is incomplete,
// several slots may cover the index. The newest slot that wants the index then governs it,
// otherwise any slot that covers it. SlotOf returns nil if no slot covers it.
func SlotOf(slots []*Slot, i int32) *Slot {
	var covers, wants *Slot
	for _, s := range slots {
		switch {
		case i < s.From || i >= s.To:
		case !s.Wants(i):
			covers = s
		case wants == nil || s.Revision > wants.Revision:
			wants = s
		}
	}
	if wants != nil {
		return wants
	}
	return covers
}

// systemSlot returns the slot that governs all indices of a system group: the first slot
// that must run, or else the first slot. It returns nil if the group has no slot.
func (g *group) systemSlot() *Slot {
	for _, s := range g.slots {
		if s.Desired == Run {
			return s
		}
	}
	if len(g.slots) > 0 {
		return g.slots[0]
	}
	return nil
}
