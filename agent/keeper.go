package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// keeper is all that writes to the store while the agent runs. Records are
// written behind: all but an end may be lost in a crash, because the drivers
// know the truth, so many changes share one transaction. What cannot be
// written, because the disk is full, is kept and tried again.
type keeper struct {
	store func(notes) error // all of them, durably, or none
	log   *slog.Logger
	work  chan struct{} // capacity 1
	// written is called by run after a write that comes after a failed one.
	written func(context.Context)

	writing sync.Mutex // held until what was taken is durable

	mu      sync.Mutex
	owed    notes
	failure error // of the last write
}

// notes are changes of the store that are written together. There are at most
// as many of a kind as the agent has allocations.
type notes struct {
	orders   map[string]*nusav1.AllocOrder
	forget   map[string]bool // allocations that the region has forgotten
	records  map[string]record
	gone     map[string]bool // allocations of which nothing is left
	position *link.Position  // of the orders
	master   *masterMark
}

func newNotes() notes {
	return notes{orders: map[string]*nusav1.AllocOrder{}, forget: map[string]bool{}, records: map[string]record{}, gone: map[string]bool{}}
}

func (n notes) empty() bool {
	return len(n.orders)+len(n.forget)+len(n.records)+len(n.gone) == 0 && n.position == nil && n.master == nil
}

// with is n and what was noted later. n is as before.
func (n notes) with(later notes) notes {
	out := notes{orders: maps.Clone(n.orders), forget: maps.Clone(n.forget), records: maps.Clone(n.records), gone: maps.Clone(n.gone),
		position: n.position, master: n.master}
	for id, o := range later.orders {
		out.orders[id] = o
		delete(out.forget, id)
		delete(out.gone, id)
	}
	maps.Copy(out.forget, later.forget)
	maps.Copy(out.records, later.records)
	for id := range later.gone {
		out.gone[id] = true
		delete(out.records, id)
		delete(out.orders, id)
		delete(out.forget, id)
	}
	if later.position != nil {
		out.position = later.position
	}
	if later.master != nil {
		out.master = later.master
	}
	return out
}

func newKeeper(s *store, log *slog.Logger) *keeper {
	return &keeper{store: s.write, log: log, work: make(chan struct{}, 1), owed: newNotes(), written: func(context.Context) {}}
}

// keep notes the latest record of an allocation.
func (k *keeper) keep(id string, act reconcile.Actual, rep *nusav1.AllocReport) {
	data, err := proto.Marshal(rep)
	if err != nil {
		panic(fmt.Sprintf("report of %s: %v", id, err)) // made here, of valid texts
	}
	k.mu.Lock()
	k.owed.records[id] = record{Actual: act, Report: data}
	k.mu.Unlock()
	k.wake()
}

// drop forgets an allocation altogether.
func (k *keeper) drop(id string) {
	n := newNotes()
	n.gone[id] = true
	k.owe(n)
}

// owe notes what is to be written when that can be.
func (k *keeper) owe(n notes) {
	k.mu.Lock()
	k.owed = k.owed.with(n)
	k.mu.Unlock()
	k.wake()
}

func (k *keeper) wake() {
	select {
	case k.work <- struct{}{}:
	default:
	}
}

// run writes until ctx ends; what is left then is for flush.
func (k *keeper) run(ctx context.Context) error {
	for {
		select {
		case <-k.work:
		case <-ctx.Done():
			return nil
		}
		retry := newBackOff()
		failed := k.failed() != nil
		for k.flush() != nil {
			failed = true
			if !sleep(ctx, retry.NextBackOff()) {
				return nil
			}
		}
		if failed {
			k.written(ctx)
		}
	}
}

// flush returns when everything kept so far is durable.
func (k *keeper) flush() error { return k.write(newNotes()) }

// write makes notes durable, with all that is owed. An error: they are not, and
// are not owed either.
func (k *keeper) write(more notes) error {
	k.writing.Lock()
	defer k.writing.Unlock()
	k.mu.Lock()
	taken := k.owed
	k.owed = newNotes()
	k.mu.Unlock()
	all := taken
	if !more.empty() {
		all = taken.with(more)
	}
	if all.empty() {
		return nil
	}
	err := k.store(all)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("write to the local store: %w", err)
		k.owed = taken.with(k.owed)
	}
	switch {
	case err != nil && k.failure == nil:
		k.log.Error("new work is declined, and ends are not reported, until the local store can be written again", "error", err)
		k.wake()
	case err == nil && k.failure != nil:
		k.log.Info("the local store is written again")
	}
	k.failure = err
	return err
}

// failed is why the last write failed; nil = it did not.
func (k *keeper) failed() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failure
}
