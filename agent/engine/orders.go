package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/agent/store"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// minFree is the free space, in bytes, that new work needs on the disk of the data folder.
// With less space a task could not write its first lines.
const minFree = 8 << 20

// Errors of Apply.
var (
	// ErrNotStored: the agent acts on the orders, but could not store them yet.
	ErrNotStored = errors.New("orders not stored")
	// ErrSuperseded: the sender is no longer the master.
	ErrSuperseded = errors.New("a newer master has taken over")

	errTooMany = errors.New("too many allocations for one node")
)

// Apply applies a change of orders. When Apply returns nil, the change is durable, and the
// engine acts on it later. Immediately before the change the loop calls valid, which
// reports whether the sender is still the master.
func (e *Engine) Apply(ctx context.Context, c link.Change[*nusav1.AllocOrder], valid func() bool) error {
	err := ErrSuperseded
	if !e.do(ctx, func() {
		if valid() {
			err = e.change(c)
		}
	}) {
		return ctx.Err()
	}
	return err
}

// Newest returns the newest order by (incarnation, index), or nil if there is none. stop is
// the longest kill timeout of the tasks that a lease binds and that may still run.
func (e *Engine) Newest(ctx context.Context) (newest *nusav1.AllocOrder, stop time.Duration, err error) {
	if !e.do(ctx, func() {
		for _, a := range e.allocs {
			if newest == nil || newerThan(a.wire, newest) {
				newest = a.wire
			}
			if a.spec.Binding == lease.None || a.act.End != nil {
				continue
			}
			for _, t := range a.spec.Tasks {
				stop = max(stop, t.KillTimeout)
			}
		}
	}) {
		return nil, 0, ctx.Err()
	}
	return newest, stop, nil
}

// Known returns the ids of all allocations that the region has not forgotten.
func (e *Engine) Known(ctx context.Context) ([]string, error) {
	var ids []string
	if !e.do(ctx, func() {
		for id, a := range e.allocs {
			if a.spec.Want != reconcile.Forget {
				ids = append(ids, id)
			}
		}
	}) {
		return nil, ctx.Err()
	}
	return ids, nil
}

// Orders returns the positions of the orders that the region has not forgotten.
func (e *Engine) Orders(ctx context.Context) ([]*nusav1.HeldOrder, error) {
	var out []*nusav1.HeldOrder
	if !e.do(ctx, func() {
		for id, a := range e.allocs {
			if a.spec.Want != reconcile.Forget {
				out = append(out, &nusav1.HeldOrder{Id: id, Index: a.wire.GetIndex()})
			}
		}
	}) {
		return nil, ctx.Err()
	}
	return out, nil
}

// change stores a change of orders and then uses the new orders.
func (e *Engine) change(c link.Change[*nusav1.AllocOrder]) error {
	fresh, added := e.newOrders(c)
	if len(e.allocs)+added > MaxAllocs {
		return fmt.Errorf("%w: %d, at most %d", errTooMany, len(e.allocs)+added, MaxAllocs)
	}
	var removed []string
	for _, id := range c.Removed {
		if a := e.allocs[id]; a != nil {
			removed = append(removed, id)
		}
	}
	b := store.OrderBatch(fresh, removed, c.Position)
	failure := e.cfg.Writer.Write(b)
	if failure != nil {
		e.cfg.Writer.Enqueue(b)
	}
	for _, o := range fresh {
		id := o.GetAllocation().GetId()
		known := e.allocs[id] != nil
		e.setOrder(o)
		if failure != nil && !known {
			e.declineUnstored(id, failure)
		}
	}
	for _, id := range removed {
		a := e.allocs[id]
		a.spec.Want, a.dirty = reconcile.Forget, true
	}
	if failure != nil {
		return fmt.Errorf("%w: %w", ErrNotStored, failure)
	}
	return nil
}

// newOrders returns the orders of a change that this node does not have yet. added is the
// number of these orders that add an allocation.
func (e *Engine) newOrders(c link.Change[*nusav1.AllocOrder]) (fresh []*nusav1.AllocOrder, added int) {
	for _, item := range c.Upserts {
		o := item.Value
		id := o.GetAllocation().GetId()
		if !allocName().MatchString(id) {
			// The id becomes part of paths and of reports. The other orders of the change
			// are accepted.
			e.log.Error("order ignored: its allocation's id is not valid", "alloc", Clip(id))
			continue
		}
		old := e.allocs[id]
		switch {
		case old == nil:
			added++
		case newerThan(old.wire, o):
			e.log.Warn("older order refused", "alloc", id, "reason", nusav1.Reason_REASON_STALE_ORDER,
				"index", o.GetIndex(), "known_index", old.wire.GetIndex(), "incarnation", o.GetIncarnation())
			e.cfg.Metrics.stale.Inc()
			old.dirty, old.repeat = true, true
			continue
		case !newerThan(o, old.wire) && old.spec.Want != reconcile.Forget:
			continue // the master sent the same order again
		}
		if old != nil && !old.names(o) {
			e.log.Error("the order lacks a running task: its group is ignored", "alloc", id, "index", o.GetIndex())
			o = proto.CloneOf(o)
			o.Group = old.wire.GetGroup()
		}
		fresh = append(fresh, o)
	}
	return fresh, added
}

// setOrder makes the engine use an order.
func (e *Engine) setOrder(wire *nusav1.AllocOrder) {
	id := wire.GetAllocation().GetId()
	o := readOrder(wire, e.cfg.Node, false)
	if a := e.allocs[id]; a != nil {
		rebound := a.spec.Binding != o.spec.Binding
		a.order, a.dirty = o, true
		if rebound {
			e.renewAlloc(a)
		}
		return
	}
	e.allocs[id] = newAlloc(o)
}

// declineUnstored declines a new allocation whose order could not be stored. An order about
// a known allocation is applied at once, because a stop may free space on the disk. Such an
// order is stored and acknowledged later.
func (e *Engine) declineUnstored(id string, cause error) {
	a := e.allocs[id]
	if a.spec.Want != reconcile.Run {
		return
	}
	a.unstored = true
	a.act.End = &reconcile.Outcome{State: reconcile.Failed, Declined: true, Reason: reconcile.ReasonInsufficientDisk, Message: cause.Error()}
	e.log.Warn("allocation declined", "alloc", id, "reason", a.act.End.Reason, "message", a.act.End.Message)
}

// diskProblem returns why the disk has no space for new work, or "" if it has space.
func (e *Engine) diskProblem() string {
	if err := e.cfg.Writer.Err(); err != nil {
		return err.Error()
	}
	dir := e.cfg.Node.AllocsDir
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fmt.Sprintf("the data folder %s: %v", dir, err)
	}
	if free := int64(s.Bavail) * s.Bsize; free < minFree {
		return fmt.Sprintf("%d bytes are free on the disk of the data folder %s, at least %d are needed", free, dir, minFree)
	}
	return ""
}
