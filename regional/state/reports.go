package state

import (
	"bytes"
	"fmt"
)

func applyReports(t *txn, c *AgentReports) error {
	n, err := findNode(t, c.NodeID)
	if err != nil {
		return err
	}
	have := t.reportsOf(n.Num)
	if c.Position.Epoch == have.Epoch && c.Position.Sequence < have.Sequence {
		return fmt.Errorf("%w: %d of node %s, stored %d", ErrStalePosition, c.Position.Sequence, n.Name, have.Sequence)
	}
	if !c.More && c.Position != have {
		p := c.Position
		t.reports.Set(t.own, n.Num, &p)
		t.res.Changed = true
	}
	for i := range c.Reports {
		applyReport(t, n, &c.Reports[i])
	}
	if c.Full {
		releaseUnmentioned(t, n, c.Reports)
	}
	for _, id := range c.Released {
		if old, ok := t.Alloc(id); ok && old.NodeID == n.ID && old.Charged && !old.Live() {
			a := *old
			a.Charged = false
			t.putAlloc(&a)
		}
	}
	return nil
}

func applyReport(t *txn, n *Node, r *AllocReport) {
	old, ok := t.Alloc(r.ID)
	switch {
	case !ok:
		t.skip(r.ID, ReasonStaleOrder, "no such allocation")
		return
	case old.NodeID != n.ID:
		t.skip(r.ID, ReasonStaleOrder, "it belongs to node %s", old.NodeName)
		return
	case r.State < Pending || r.State > Lost:
		t.skip(r.ID, ReasonStaleOrder, "state %d is unknown", r.State)
		return
	case !old.Live():
		if old.Charged && r.State.Terminal() {
			a := *old
			a.Charged = false
			t.putAlloc(&a)
		}
		return
	case r.State < old.State:
		t.skip(r.ID, ReasonStaleOrder, "it is %s already, not %s", old.State, r.State)
		return
	}
	down := old.State == Running && old.UpUnixNano == 0
	if r.State == old.State && r.Message == old.Message && r.Reason == old.Reason && bytes.Equal(r.Tasks, old.Tasks) &&
		r.Restarts == old.Restarts && r.Down == down && !resolves(old, r) {
		return
	}
	a := *old
	a.Tasks = r.Tasks
	if r.State == Running && a.RunningUnixNano == 0 {
		a.RunningUnixNano = t.now
	}
	if !r.State.Terminal() {
		a.State = r.State
		updateUp(t, &a, r)
		if a.Desired == Run {
			a.Reason, a.Message = r.Reason, r.Message
		}
		if resolves(old, r) {
			resolve(t, &a, r)
		}
		t.putAlloc(&a)
		if a.State != old.State || a.Restarts > old.Restarts {
			reportedEvent(t, &a, a.Restarts-old.Restarts)
		}
		return
	}
	applyEnd(t, &a, r)
	reportedEvent(t, &a, a.Restarts-old.Restarts)
}

// updateUp stores since when the tasks are up. After a restart of a task, the allocation
// must become proven again.
func updateUp(t *txn, a *Alloc, r *AllocReport) {
	if a.State == Running && a.Desired == Run && (r.Down || r.Restarts > a.Restarts) {
		a.Proving = true
	}
	switch {
	case a.State != Running || r.Down:
		a.UpUnixNano = 0
	case a.UpUnixNano == 0 || r.Restarts != a.Restarts:
		a.UpUnixNano = t.now
	}
	a.Restarts = r.Restarts
}

// applyEnd applies the end of a live allocation.
func applyEnd(t *txn, a *Alloc, r *AllocReport) {
	asked := a.Desired == Stop
	reason, message := r.Reason, r.Message
	if asked && r.State == Stopped { // the reason in the order is more precise
		reason = a.Reason
		if message == "" {
			message = a.Message
		}
	}
	end(a, r.State, reason, message)
	a.Charged = false
	if r.Declined {
		a.State, a.Declined = Failed, true
		if a.Reason == "" {
			a.Reason = ReasonDeclined
		}
	}
	t.forgets(a.NodeID) // the node knows about the end, so it needs no order
	t.recordEnd(a)
	t.recordFailure(a, asked, r.Failure)
	t.putAlloc(a)
}

// releaseUnmentioned releases the lost allocations for which the node is charged but which
// the node no longer holds.
func releaseUnmentioned(t *txn, n *Node, reports []AllocReport) {
	mentioned := make(map[string]struct{}, len(reports))
	for i := range reports {
		mentioned[reports[i].ID] = struct{}{}
	}
	for _, a := range copyAllocs(t, n.Num) {
		if _, ok := mentioned[a.ID]; !ok && a.Charged && !a.Live() {
			a.Charged = false
			t.putAlloc(a)
		}
	}
}
