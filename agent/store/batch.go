package store

import (
	"maps"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Batch holds changes that are written in one transaction. Each map has at most one entry
// for each allocation.
type Batch struct {
	Orders    map[string]*nusav1.AllocOrder
	Forgotten map[string]bool // allocations that the region has forgotten
	Records   map[string]Record
	Removed   map[string]bool // allocations that have been removed
	Position  *link.Position  // position of the orders
	Master    *MasterTerm
}

// Record is the latest stored state of an allocation. It may be older than the state that
// the drivers know.
type Record struct {
	Actual reconcile.Actual `json:"actual"`
	Report []byte           `json:"report"` // AllocReport
}

// NewBatch returns a batch without changes. Changes can be added to its maps.
func NewBatch() Batch {
	return Batch{Orders: map[string]*nusav1.AllocOrder{}, Forgotten: map[string]bool{}, Records: map[string]Record{}, Removed: map[string]bool{}}
}

// OrderBatch returns the batch of a change of orders.
func OrderBatch(orders []*nusav1.AllocOrder, forgotten []string, at link.Position) Batch {
	b := NewBatch()
	for _, o := range orders {
		b.Orders[o.GetAllocation().GetId()] = o
	}
	for _, id := range forgotten {
		b.Forgotten[id] = true
	}
	b.Position = &at
	return b
}

// MasterBatch returns the batch that stores the latest known master.
func MasterBatch(m MasterTerm) Batch {
	b := NewBatch()
	b.Master = &m
	return b
}

func (b Batch) empty() bool {
	return len(b.Orders)+len(b.Forgotten)+len(b.Records)+len(b.Removed) == 0 && b.Position == nil && b.Master == nil
}

// with returns b with later changes added. b itself does not change.
func (b Batch) with(later Batch) Batch {
	out := Batch{Orders: maps.Clone(b.Orders), Forgotten: maps.Clone(b.Forgotten), Records: maps.Clone(b.Records), Removed: maps.Clone(b.Removed),
		Position: b.Position, Master: b.Master}
	for id, o := range later.Orders {
		out.Orders[id] = o
		delete(out.Forgotten, id)
		delete(out.Removed, id)
	}
	maps.Copy(out.Forgotten, later.Forgotten)
	maps.Copy(out.Records, later.Records)
	for id := range later.Removed {
		out.Removed[id] = true
		delete(out.Records, id)
		delete(out.Orders, id)
		delete(out.Forgotten, id)
	}
	if later.Position != nil {
		out.Position = later.Position
	}
	if later.Master != nil {
		out.Master = later.Master
	}
	return out
}

// recordOf returns the record of an allocation's state and report.
func recordOf(act reconcile.Actual, rep *nusav1.AllocReport) (Record, error) {
	data, err := proto.Marshal(rep)
	return Record{Actual: act, Report: data}, err
}
