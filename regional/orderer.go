package regional

import (
	"fmt"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Orders are most of what a master sends, and each is sent once. They are written
// as they stand on the wire: messages to be encoded would be as much again as all
// that the state holds of an allocation.

// Fields of AllocOrder, AllocOrders, Position and MasterMessage.
const (
	orderAlloc, orderGroup, orderIncarnation, orderIndex, orderJobType  = 1, 2, 3, 4, 5
	ordersFull, ordersLast, ordersOrders, ordersRemoved, ordersPosition = 1, 2, 3, 4, 5
	positionEpoch, positionSequence                                     = 1, 2
	masterOrders                                                        = 5
)

// orderer writes batches of orders for an agent. One is used for one agent after
// the other, by one goroutine at a time.
type orderer struct {
	l    *leader
	view *state.View
	// written are the batch's orders so far, ends where each of them does: at the
	// one before where there is no order, since it is no longer stored.
	written []byte
	ends    []int
	// group is the latest one, its allocations' job version among it, and shared
	// what orders of it have in common, as large jobs have many on a node.
	group  groupVersion
	shared []byte
	// alloc and order are scratch.
	alloc, order []byte
}

// groupVersion is a group of a version of a job.
type groupVersion struct {
	state.GroupKey
	version int64
}

// keptWritten bounds what an orderer keeps of its memory.
const keptWritten = 64 << 10

var orderers = sync.Pool{New: func() any { return new(orderer) }}

// done gives the orderer back.
func (o *orderer) done() {
	o.l, o.view, o.group = nil, nil, groupVersion{}
	if cap(o.written)+cap(o.shared)+cap(o.alloc)+cap(o.order) <= keptWritten {
		orderers.Put(o)
	}
}

// begin is about a batch that reads from the view.
func (o *orderer) begin(l *leader, view *state.View) {
	o.l, o.view, o.group = l, view, groupVersion{}
	o.written, o.ends = o.written[:0], o.ends[:0]
}

// size writes an item's order and answers how many bytes it has.
func (o *orderer) size(item link.Item[uint64]) int {
	before := len(o.written)
	if err := o.write(item); err != nil {
		// Forgotten since the outbox was filled: its removal follows.
		o.l.log.Debug("order left out", "alloc", item.Key, "error", err)
	}
	o.ends = append(o.ends, len(o.written))
	return len(o.written) - before
}

func (o *orderer) write(item link.Item[uint64]) error {
	a, found := o.view.Alloc(item.Key)
	if !found {
		return fmt.Errorf("allocation %s is not stored", item.Key)
	}
	if of := (groupVersion{a.Key(), a.JobVersion}); of != o.group {
		group, jobType, err := orderedGroup(o.view, a)
		if err != nil {
			return err
		}
		o.group = of
		o.shared = appendBytes(o.shared[:0], orderGroup, group)
		o.shared = appendBytes(o.shared, orderJobType, jobType)
	}
	o.alloc = appendAlloc(o.alloc[:0], a, o.l.s.cfg.Region.GetName())
	o.order = appendBytes(o.order[:0], orderAlloc, o.alloc)
	o.order = append(o.order, o.shared...)
	o.order = appendNumber(o.order, orderIncarnation, a.Incarnation)
	o.order = appendNumber(o.order, orderIndex, a.OrderIndex)
	o.written = appendBytes(o.written, ordersOrders, o.order)
	return nil
}

// batch is the message with one that was bounded by size; until the next begin.
func (o *orderer) batch(b link.Batch[uint64]) *wireMessage {
	end := 0
	if n := len(b.Items); n > 0 { // another may have been one too many
		end = o.ends[n-1]
	}
	out := appendFlag(o.written[:end], ordersFull, b.Full)
	out = appendFlag(out, ordersLast, b.Last)
	for _, id := range b.Removed {
		out = protowire.AppendString(protowire.AppendTag(out, ordersRemoved, protowire.BytesType), id)
	}
	o.order = appendBytes(o.order[:0], positionEpoch, b.Position.Epoch)
	o.order = appendNumber(o.order, positionSequence, b.Position.Sequence)
	out = appendBytes(out, ordersPosition, o.order)
	o.written = out
	o.order = protowire.AppendTag(o.order[:0], masterOrders, protowire.BytesType)
	o.order = protowire.AppendVarint(o.order, uint64(len(out)))
	return &wireMessage{o.order, out}
}

// appendAlloc is orderedAlloc on the wire.
func appendAlloc(b []byte, a *state.Alloc, region string) []byte {
	b = appendBytes(b, 1, a.ID)
	b = appendBytes(b, 2, a.Namespace)
	b = appendBytes(b, 3, jobName(a.Job, a.Local, region))
	b = appendBytes(b, 4, a.Group)
	b = appendNumber(b, 5, a.Index)
	b = appendNumber(b, 6, a.JobVersion)
	b = appendBytes(b, 7, region)
	b = appendBytes(b, 8, a.NodeID)
	b = appendBytes(b, 9, a.NodeName)
	b = appendNumber(b, 10, a.Desired)
	if a.Desired == state.Stop {
		b = appendNumber(b, 12, reasonToWire(a.Reason))
		b = appendBytes(b, 13, a.Message)
	}
	b = appendNumber(b, 14, a.Generation)
	b = appendNumber(b, 15, a.Epoch)
	var small [64]byte
	r := appendNumber(small[:0], 1, a.Resources.CPUMilli)
	r = appendNumber(r, 2, a.Resources.MemoryBytes)
	r = appendNumber(r, 3, a.Resources.DiskBytes)
	b = protowire.AppendBytes(protowire.AppendTag(b, 17, protowire.BytesType), r)
	for _, p := range a.Ports { // an item of a map: key and value
		item := appendNumber(appendBytes(small[:0], 1, p.Label), 2, p.Port)
		b = protowire.AppendBytes(protowire.AppendTag(b, 18, protowire.BytesType), item)
	}
	b = appendNumber(b, 21, a.Attempt)
	return appendNumber(b, 24, a.Incarnation)
}

// appendBytes adds a field unless it is empty, as proto3 leaves it out.
func appendBytes[T string | []byte](b []byte, field protowire.Number, v T) []byte {
	if len(v) == 0 {
		return b
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(len(v)))
	return append(b, v...)
}

// appendNumber adds a field unless it is zero; negative numbers have ten bytes.
func appendNumber[T ~int8 | ~uint8 | ~int32 | ~int64 | ~uint64 | ~int](b []byte, field protowire.Number, v T) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(v))
}

func appendFlag(b []byte, field protowire.Number, v bool) []byte {
	return appendNumber(b, field, protowire.EncodeBool(v))
}
