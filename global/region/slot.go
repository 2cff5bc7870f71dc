// Package region holds the life of one region as the global tier sees it: who
// may speak for it, what lease it holds, and what its answers do to the slots
// it owns. Pure: states and events in, states and effects as values out; times
// are readings of the caller's monotonic clock.
package region

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// SlotState is where a stored slot stands. Answers use the same words; of
// those, rejected, returned, revoked and stopped are never stored: they take
// indices out of a slot; nor is kept, which makes an offer anew. The wire enum is SLOT_STATE_ + upper case.
type SlotState string

// States only advance: offered → accepted → done.
const (
	// Offered belongs to the region although it has not answered.
	Offered SlotState = "offered"
	// Accepted was answered with yes.
	Accepted SlotState = "accepted"
	// Done: every instance of a batch slot has ended. It keeps its indices.
	Done SlotState = "done"
	// Rejected is an answer: refused on arrival.
	Rejected SlotState = "rejected"
	// Returned is an answer: accepted, and later found impossible.
	Returned SlotState = "returned"
	// Revoked is an answer to desired Revoke: nothing of it runs any more.
	Revoked SlotState = "revoked"
	// Stopped is an answer to desired Stop: nothing of it runs any more.
	Stopped SlotState = "stopped"
	// Kept is an answer to desired Revoke with UnlessConnected: the region hears of it
	// again, and has not given it up.
	Kept SlotState = "kept"
)

// rank orders the stored states.
func (s SlotState) rank() int { return slices.Index([]SlotState{Offered, Accepted, Done}, s) }

func (s SlotState) isAnswer() bool {
	return slices.Contains([]SlotState{Accepted, Done, Rejected, Returned, Revoked, Stopped, Kept}, s)
}

// Desired is what the global tier wants of a slot. For one generation it only
// advances: run → stop, run → revoke → stop. The wire enum is SLOT_DESIRED_ +
// upper case.
type Desired string

const (
	DesiredRun    Desired = "run"
	DesiredStop   Desired = "stop"
	DesiredRevoke Desired = "revoke"
)

func (d Desired) rank() int {
	return slices.Index([]Desired{DesiredRun, DesiredRevoke, DesiredStop}, d)
}

// Slot is a range of instance indices of a group, owned by one region for as
// long as the record exists, whatever its state and desired say.
type Slot struct {
	Namespace, Job, Group string
	// Indices From ≤ i < To. Slots of one group never overlap, but for system
	// jobs: those have one slot [0,1) in each region.
	From, To int
	Region   string
	// System marks the slot of a system job, see Key.
	System  bool
	State   SlotState
	Desired Desired
	// Generation is the etcd revision of the offer; 0 in a Put means "the
	// revision of this transaction". Where a slot is split, the part under the
	// old key keeps it and every part under a new key gets a new one.
	Generation int64
	// Revision is the etcd revision of the stored record's last change, for the
	// compare of the next one; 0 = not stored.
	Revision   int64
	JobVersion int64
	// Run of the job that the slot belongs to: the etcd revision of the submit
	// that began it. 0 = written before there were runs.
	Run int64
	// Hold is for how long the region keeps what fits nowhere before it gives it
	// back, counted from the arrival; 0 = about a second.
	Hold time.Duration
	// UnlessConnected goes with desired Revoke: only what the region does not hear of,
	// since its node is lost, is to be given up; the rest is answered Kept.
	UnlessConnected bool
	// Reason and Message of the latest answer that says more than yes.
	Reason, Message string
	// PlacedBecause says in one line why this region.
	PlacedBecause string
}

// Key names the stored record: "namespace/job/group/from", and for system
// jobs, whose slots are all [0,1), "namespace/job/group/0@region". On the wire
// to a region the key is always WireKey, since a region sees only its own.
func (s Slot) Key() string {
	if s.System {
		return s.WireKey() + "@" + s.Region
	}
	return s.WireKey()
}

// WireKey is the key of SlotOrders.removed: "namespace/job/group/from".
func (s Slot) WireKey() string {
	return s.Namespace + "/" + s.Job + "/" + s.Group + "/" + strconv.Itoa(s.From)
}

// OfRun says that the slot belongs to a run.
func (s Slot) OfRun(run int64) bool { return s.Run == run || s.Run == 0 || run == 0 }

// Count is the number of indices.
func (s Slot) Count() int { return s.To - s.From }

// String prints "default/api/web[0-5] at sea offered run g12 v1".
func (s Slot) String() string {
	return fmt.Sprintf("%s/%s/%s%s at %s %s %s g%d v%d", s.Namespace, s.Job, s.Group,
		FormatRange(s.From, s.To), s.Region, s.State, s.Desired, s.Generation, s.JobVersion)
}

// FormatRange prints the indices from ≤ i < to as "[0-5]", or "[3]" for one.
func FormatRange(from, to int) string {
	if to-from == 1 {
		return "[" + strconv.Itoa(from) + "]"
	}
	return "[" + strconv.Itoa(from) + "-" + strconv.Itoa(to-1) + "]"
}

// CountedReason is a typed reason and how many of What ("region", "node",
// "instance") it concerns.
type CountedReason struct {
	Reason  string
	Count   int
	Message string
	What    string
}

// Answer is what a region says about all or a part of a slot.
type Answer struct {
	Namespace, Job, Group string
	From, To              int
	// Generation of the slot that is answered.
	Generation int64
	// State is Accepted, Rejected, Returned, Revoked, Stopped, Kept or Done.
	State           SlotState
	Reason, Message string
	Counts          []CountedReason
}

// String prints "default/api/web[0-5] g12 accepted".
func (a Answer) String() string {
	return fmt.Sprintf("%s/%s/%s%s g%d %s", a.Namespace, a.Job, a.Group,
		FormatRange(a.From, a.To), a.Generation, a.State)
}

// Change is one write to the stored slots. All changes of one call belong in
// one transaction, each compared with Slot.Revision (0: the key must not
// exist); if a compare fails, read again and decide again. A Put with
// generation 0 is stored with the revision of that transaction.
type Change struct {
	// Delete removes the record at Slot.Key(); otherwise it is put.
	Delete bool
	Slot   Slot
}

// String prints "put …" or "delete …".
func (c Change) String() string {
	if c.Delete {
		return "delete " + c.Slot.String()
	}
	return "put " + c.Slot.String()
}
