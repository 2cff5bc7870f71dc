package wire

import (
	"fmt"
	"log/slog"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
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

// OrderEncoder writes batches of orders for an agent. One is used for one agent after
// the other, by one goroutine at a time.
type OrderEncoder struct {
	region string
	log    *slog.Logger
	view   *state.View
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

// maxPooledBytes bounds what an orderer keeps of its memory.
const maxPooledBytes = 64 << 10

var orderEncoders = sync.Pool{New: func() any { return new(OrderEncoder) }}

// GetOrderEncoder takes an orderer from the pool; done gives it back.
func GetOrderEncoder() *OrderEncoder { return orderEncoders.Get().(*OrderEncoder) }

// Release gives the orderer back.
func (o *OrderEncoder) Release() {
	o.log, o.view, o.group = nil, nil, groupVersion{}
	if cap(o.written)+cap(o.shared)+cap(o.alloc)+cap(o.order) <= maxPooledBytes {
		orderEncoders.Put(o)
	}
}

// Reset is about a batch that reads from the view.
func (o *OrderEncoder) Reset(region string, log *slog.Logger, view *state.View) {
	o.region, o.log, o.view, o.group = region, log, view, groupVersion{}
	o.written, o.ends = o.written[:0], o.ends[:0]
}

// Size writes an item's order and answers how many bytes it has.
func (o *OrderEncoder) Size(item link.Item[uint64]) int {
	before := len(o.written)
	if err := o.write(item); err != nil {
		// Forgotten since the outbox was filled: its removal follows.
		o.log.Debug("order left out", "alloc", item.Key, "error", err)
	}
	o.ends = append(o.ends, len(o.written))
	return len(o.written) - before
}

func (o *OrderEncoder) write(item link.Item[uint64]) error {
	a, found := o.view.Alloc(item.Key)
	if !found {
		return fmt.Errorf("allocation %s is not stored", item.Key)
	}
	if of := (groupVersion{a.Key(), a.JobVersion}); of != o.group {
		group, jobType, err := encodedGroup(o.view, a)
		if err != nil {
			return err
		}
		o.group = of
		o.shared = appendBytes(o.shared[:0], orderGroup, group)
		o.shared = appendBytes(o.shared, orderJobType, jobType)
	}
	o.alloc = appendAlloc(o.alloc[:0], a, o.region)
	o.order = appendBytes(o.order[:0], orderAlloc, o.alloc)
	o.order = append(o.order, o.shared...)
	o.order = appendVarint(o.order, orderIncarnation, a.Incarnation)
	o.order = appendVarint(o.order, orderIndex, a.OrderIndex)
	o.written = appendBytes(o.written, ordersOrders, o.order)
	return nil
}

// encodedGroup is the encoded group that an allocation is of, and the type of
// its job.
func encodedGroup(view *state.View, a *state.Alloc) (group []byte, jobType string, err error) {
	j, found := view.Job(a.Key().JobKey(), a.JobVersion)
	if !found {
		return nil, "", fmt.Errorf("allocation %s: version %d of job %s is not stored", a.ID, a.JobVersion, a.Key().JobKey().In(view.Cluster().Region))
	}
	if group, err = EncodedGroup(j.Spec, a.Group); err != nil {
		return nil, "", fmt.Errorf("stored spec of job %s: %w", j.Key, err)
	}
	return group, jobTypeName(nusav1.JobType(j.Type)), nil
}

// Batch is the message with one that was bounded by size; until the next begin.
func (o *OrderEncoder) Batch(b link.Batch[uint64]) *EncodedMessage {
	end := 0
	if n := len(b.Items); n > 0 { // another may have been one too many
		end = o.ends[n-1]
	}
	out := appendBool(o.written[:end], ordersFull, b.Full)
	out = appendBool(out, ordersLast, b.Last)
	for _, id := range b.Removed {
		out = protowire.AppendString(protowire.AppendTag(out, ordersRemoved, protowire.BytesType), id)
	}
	o.order = appendBytes(o.order[:0], positionEpoch, b.Position.Epoch)
	o.order = appendVarint(o.order, positionSequence, b.Position.Sequence)
	out = appendBytes(out, ordersPosition, o.order)
	o.written = out
	o.order = protowire.AppendTag(o.order[:0], masterOrders, protowire.BytesType)
	o.order = protowire.AppendVarint(o.order, uint64(len(out)))
	return &EncodedMessage{o.order, out}
}

// appendAlloc is orderedAllocToProto on the wire.
func appendAlloc(b []byte, a *state.Alloc, region string) []byte {
	b = appendBytes(b, 1, a.ID)
	b = appendBytes(b, 2, a.Namespace)
	b = appendBytes(b, 3, JobName(a.Job, a.Local, region))
	b = appendBytes(b, 4, a.Group)
	b = appendVarint(b, 5, a.Index)
	b = appendVarint(b, 6, a.JobVersion)
	b = appendBytes(b, 7, region)
	b = appendBytes(b, 8, a.NodeID)
	b = appendBytes(b, 9, a.NodeName)
	b = appendVarint(b, 10, a.Desired)
	if a.Desired == state.Stop {
		b = appendVarint(b, 12, ReasonToProto(a.Reason))
		b = appendBytes(b, 13, a.Message)
	}
	b = appendVarint(b, 14, a.Generation)
	b = appendVarint(b, 15, a.Epoch)
	var small [64]byte
	r := appendVarint(small[:0], 1, a.Resources.CPUMilli)
	r = appendVarint(r, 2, a.Resources.MemoryBytes)
	r = appendVarint(r, 3, a.Resources.DiskBytes)
	b = protowire.AppendBytes(protowire.AppendTag(b, 17, protowire.BytesType), r)
	for _, p := range a.Ports { // an item of a map: key and value
		item := appendVarint(appendBytes(small[:0], 1, p.Label), 2, p.Port)
		b = protowire.AppendBytes(protowire.AppendTag(b, 18, protowire.BytesType), item)
	}
	b = appendVarint(b, 21, a.Attempt)
	return appendVarint(b, 24, a.Incarnation)
}

// appendBytes adds a field unless it is empty, as proto3 leaves it out.
func appendBytes[T string | []byte](b []byte, field protowire.Number, v T) []byte {
	if len(v) == 0 {
		return b
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(len(v)))
	return append(b, v...)
}

// appendVarint adds a field unless it is zero; negative numbers have ten bytes.
func appendVarint[T ~int8 | ~uint8 | ~int32 | ~int64 | ~uint64 | ~int](b []byte, field protowire.Number, v T) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(v))
}

func appendBool(b []byte, field protowire.Number, v bool) []byte {
	return appendVarint(b, field, protowire.EncodeBool(v))
}
