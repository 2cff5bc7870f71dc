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

// OrderEncoder encodes batches of orders for an agent. One encoder serves one agent after
// another. It is not safe for concurrent use.
//
// Most of the bytes that a master sends are orders, and each order is sent once. So orders
// are encoded directly from the state. Messages in between would need as much memory again
// as the state needs for the allocations.
type OrderEncoder struct {
	region string
	log    *slog.Logger
	view   *state.View
	// encoded has the orders of the batch. ends holds the end offset of each order. An
	// order that was left out repeats the previous offset.
	encoded []byte
	ends    []int
	// group is the group of the latest order. shared are the encoded fields that all orders
	// of that group have in common. They are cached because a node often has many instances
	// of one group.
	group  groupVersion
	shared []byte
	// alloc and order are buffers that are used again for each order.
	alloc, order []byte
}

// groupVersion is a group of one version of a job.
type groupVersion struct {
	state.GroupKey
	version int64
}

// maxPooledBytes bounds the memory of an encoder that returns to the pool.
const maxPooledBytes = 64 << 10

var orderEncoders = sync.Pool{New: func() any { return new(OrderEncoder) }}

// GetOrderEncoder returns an encoder from a pool. The caller must call Release.
func GetOrderEncoder() *OrderEncoder { return orderEncoders.Get().(*OrderEncoder) }

// Release returns the encoder to the pool.
func (o *OrderEncoder) Release() {
	o.log, o.view, o.group = nil, nil, groupVersion{}
	if cap(o.encoded)+cap(o.shared)+cap(o.alloc)+cap(o.order) <= maxPooledBytes {
		orderEncoders.Put(o)
	}
}

// Reset begins a batch that reads from the view.
func (o *OrderEncoder) Reset(region string, log *slog.Logger, view *state.View) {
	o.region, o.log, o.view, o.group = region, log, view, groupVersion{}
	o.encoded, o.ends = o.encoded[:0], o.ends[:0]
}

// Size encodes the order of an item and returns its size in bytes. It returns 0 when the
// state no longer has the allocation.
func (o *OrderEncoder) Size(item link.Item[uint64]) int {
	before := len(o.encoded)
	if err := o.append(item); err != nil {
		// The allocation was purged after the outbox was filled. The removal is sent later.
		o.log.Debug("an order was left out", "alloc", item.Key, "error", err)
	}
	o.ends = append(o.ends, len(o.encoded))
	return len(o.encoded) - before
}

// append encodes the order of an item.
func (o *OrderEncoder) append(item link.Item[uint64]) error {
	a, found := o.view.Alloc(item.Key)
	if !found {
		return fmt.Errorf("allocation %s is not stored", item.Key)
	}
	if g := (groupVersion{a.Key(), a.JobVersion}); g != o.group {
		group, jobType, binding, err := encodedGroup(o.view, a)
		if err != nil {
			return err
		}
		o.group = g
		o.shared = appendBytes(o.shared[:0], orderGroup, group)
		o.shared = appendBytes(o.shared, orderJobType, jobType)
		o.shared = appendVarint(o.shared, orderBinding, binding)
	}
	o.alloc = appendAlloc(o.alloc[:0], a, o.region)
	o.order = appendBytes(o.order[:0], orderAllocation, o.alloc)
	o.order = append(o.order, o.shared...)
	o.order = appendVarint(o.order, orderIncarnation, a.Incarnation)
	o.order = appendVarint(o.order, orderIndex, a.OrderIndex)
	o.order = appendBool(o.order, orderResized, a.Resized)
	for _, g := range a.GPUs {
		o.alloc = appendVarint(appendBytes(o.alloc[:0], grantDevice, g.Device), grantShare, g.ShareMilli)
		o.order = appendBytes(o.order, orderGPUs, o.alloc)
	}
	o.encoded = appendBytes(o.encoded, ordersOrders, o.order)
	return nil
}

// encodedGroup returns the encoded group of an allocation, the type of its job, and the
// leases that bind it.
func encodedGroup(view *state.View, a *state.Alloc) (group []byte, jobType string, binding state.Binding, err error) {
	j, found := view.Job(a.Key().JobKey(), a.JobVersion)
	if !found {
		return nil, "", 0, fmt.Errorf("allocation %s: version %d of job %s is not stored", a.ID, a.JobVersion, a.Key().JobKey().In(view.Cluster().Region))
	}
	if group, err = EncodedGroup(j.Spec, a.Group); err != nil {
		return nil, "", 0, fmt.Errorf("stored spec of job %s: %w", j.Key, err)
	}
	binding = state.BindNone
	if g := j.Group(a.Group); g != nil {
		binding = g.Binding(a.Local)
	}
	return group, jobTypeName(nusav1.JobType(j.Type)), binding, nil
}

// Batch returns the message with a batch whose items were passed to Size. The message is
// valid until the next call of Reset.
func (o *OrderEncoder) Batch(b link.Batch[uint64]) *EncodedMessage {
	end := 0
	if n := len(b.Items); n > 0 { // the item after these did not fit
		end = o.ends[n-1]
	}
	out := appendBool(o.encoded[:end], ordersFull, b.Full)
	out = appendBool(out, ordersLast, b.Last)
	for _, id := range b.Removed {
		out = protowire.AppendString(protowire.AppendTag(out, ordersRemoved, protowire.BytesType), id)
	}
	o.order = appendBytes(o.order[:0], positionEpoch, b.Position.Epoch)
	o.order = appendVarint(o.order, positionSequence, b.Position.Sequence)
	out = appendBytes(out, ordersPosition, o.order)
	o.encoded = out
	o.order = protowire.AppendTag(o.order[:0], masterOrders, protowire.BytesType)
	o.order = protowire.AppendVarint(o.order, uint64(len(out)))
	return &EncodedMessage{o.order, out}
}

// appendAlloc appends the encoding of the message that orderedAllocToProto would return.
func appendAlloc(b []byte, a *state.Alloc, region string) []byte {
	b = appendBytes(b, allocID, a.ID)
	b = appendBytes(b, allocNamespace, a.Namespace)
	b = appendBytes(b, allocJob, JobName(a.Job, a.Local, region))
	b = appendBytes(b, allocGroup, a.Group)
	b = appendVarint(b, allocIndex, a.Index)
	b = appendVarint(b, allocJobVersion, a.JobVersion)
	b = appendBytes(b, allocRegion, region)
	b = appendBytes(b, allocNodeID, a.NodeID)
	b = appendBytes(b, allocNodeName, a.NodeName)
	b = appendVarint(b, allocDesired, a.Desired)
	if a.Desired == state.Stop {
		b = appendVarint(b, allocReason, ReasonToProto(a.Reason))
		b = appendBytes(b, allocMessage, a.Message)
	}
	b = appendVarint(b, allocGeneration, a.Generation)
	b = appendVarint(b, allocEpoch, a.Epoch)
	var small [64]byte
	r := appendVarint(small[:0], resourcesCPUMilli, a.Resources.CPUMilli)
	r = appendVarint(r, resourcesMemoryBytes, a.Resources.MemoryBytes)
	r = appendVarint(r, resourcesDiskBytes, a.Resources.DiskBytes)
	b = protowire.AppendBytes(protowire.AppendTag(b, allocResources, protowire.BytesType), r)
	for _, p := range a.Ports {
		entry := appendVarint(appendBytes(small[:0], entryKey, p.Label), entryValue, p.Port)
		b = protowire.AppendBytes(protowire.AppendTag(b, allocPorts, protowire.BytesType), entry)
	}
	b = appendVarint(b, allocAttempt, a.Attempt)
	return appendVarint(b, allocIncarnation, a.Incarnation)
}

// appendBytes appends a field. An empty field is left out, as in proto3.
func appendBytes[T string | []byte](b []byte, field protowire.Number, v T) []byte {
	if len(v) == 0 {
		return b
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(len(v)))
	return append(b, v...)
}

// appendVarint appends a field. Zero is left out. A negative number takes ten bytes.
func appendVarint[T ~int8 | ~uint8 | ~int32 | ~int64 | ~uint64 | ~int](b []byte, field protowire.Number, v T) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(v))
}

// appendBool appends a field. false is left out.
func appendBool(b []byte, field protowire.Number, v bool) []byte {
	return appendVarint(b, field, protowire.EncodeBool(v))
}
