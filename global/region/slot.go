package region

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// SlotState is the state of a stored slot, or of an answer. Rejected, returned,
// revoked and stopped are never stored: such an answer takes indices out of a
// slot. Kept is never stored either: its indices get a new offer. The wire enum is
// SLOT_STATE_ + upper case.
type SlotState string

// Stored states only advance: offered → accepted → done.
const (
	// Offered: the region owns the slot although it has not answered.
	Offered SlotState = "offered"
	// Accepted: the region has accepted the slot.
	Accepted SlotState = "accepted"
	// Done: every instance of a batch slot has ended. The slot keeps its
	// indices.
	Done SlotState = "done"
	// Rejected is an answer: the region refused the slot when it arrived.
	Rejected SlotState = "rejected"
	// Returned is an answer: the region accepted the slot, and found later that
	// it cannot run it.
	Returned SlotState = "returned"
	// Revoked is an answer to desired Revoke: nothing of the slot runs any
	// more.
	Revoked SlotState = "revoked"
	// Stopped is an answer to desired Stop: nothing of the slot runs any more.
	Stopped SlotState = "stopped"
	// Kept is an answer to desired Revoke with UnlessConnected: the node has
	// reconnected, and the region keeps the instance. It is also a former owner's
	// answer to DesiredHold: the instance runs there.
	Kept SlotState = "kept"
)

// rank orders the stored states.
func (s SlotState) rank() int { return slices.Index([]SlotState{Offered, Accepted, Done}, s) }

func (s SlotState) isAnswer() bool {
	return slices.Contains([]SlotState{Accepted, Done, Rejected, Returned, Revoked, Stopped, Kept}, s)
}

// Desired is the state that the global tier orders for a slot. For one
// generation it only advances: run → stop, run → revoke → stop. The wire enum
// is SLOT_DESIRED_ + upper case.
type Desired string

const (
	DesiredRun    Desired = "run"
	DesiredStop   Desired = "stop"
	DesiredRevoke Desired = "revoke"
	// DesiredHold is only in orders to former owners and never stored: running
	// instances continue, nothing is started.
	DesiredHold Desired = "hold"
)

func (d Desired) rank() int {
	return slices.Index([]Desired{DesiredRun, DesiredRevoke, DesiredStop}, d)
}

// Slot is a range of instance indices of a group. One region owns it for as
// long as the record exists, whatever its state and desired state are.
type Slot struct {
	Namespace, Job, Group string
	// From and To: the slot has the indices From ≤ i < To. Slots of one group
	// never overlap, except for system jobs, which have one slot [0,1) in each
	// region.
	From, To int
	Region   string
	// System marks the slot of a system job, see Key.
	System  bool
	State   SlotState
	Desired Desired
	// Generation is the etcd revision of the offer; 0 in a Put means the revision
	// of this transaction. When a slot is split, the part with the old key keeps
	// the generation, and every part with a new key gets a new generation.
	Generation int64
	// Revision is the etcd revision of the stored record's last change, for the
	// compare of the next one; 0 = not stored.
	Revision   int64
	JobVersion int64
	// Run of the job that the slot belongs to: the etcd revision of the submit
	// that began the run. 0 = written before runs existed. RunBegins in a Put means the
	// revision of this transaction.
	Run int64
	// Hold is for how long the region keeps instances that fit nowhere before
	// it returns them, counted from the arrival of the offer; 0 = about a
	// second.
	Hold time.Duration
	// UnlessConnected goes with desired Revoke: the region gives up only
	// instances on disconnected nodes, and answers Kept for the others.
	UnlessConnected bool
	// Reason and Message of the latest answer that has one.
	Reason, Message string
	// PlacedBecause says in one line why this region was chosen.
	PlacedBecause string
	// Former are the owners from which verdicts moved the slot and which have not
	// confirmed yet that nothing of it runs, oldest first, at most MaxFormer. The list
	// is never changed in place: parts of a split slot share it.
	Former []FormerOwner
	// ReturnTo goes with desired Revoke: the region that owns the slot once the present
	// owner has confirmed; empty: the placer chooses.
	ReturnTo string
	// Home is the region from which the first verdict moved the slot; empty for none.
	Home string
	// Bound: the owner may run a version that the region's lease binds. StopTime is the
	// longest time between the stop signal and the kill, over those versions.
	Bound    bool
	StopTime time.Duration
	// Unbound: the owner may run a version that the region's lease does not bind. Both
	// are set after an update from one kind to the other.
	Unbound bool
	// Vacant: the owner has given the slot up. The record stays because a former owner may
	// still run it, or the owner itself, which is a former owner then. The placer gives the
	// indices to a region as if nobody owned them.
	Vacant bool
}

// RunBegins is the run of a slot that is written together with the submit.
const RunBegins = -1

// MaxFormer bounds Slot.Former. The oldest owner that cannot run the slot is dropped first.
const MaxFormer = 4

// FormerOwner is a region that a verdict took a slot from.
type FormerOwner struct {
	Region string
	// Generation of the slot that the region owned.
	Generation int64
	// Moved is when the slot moved, by the wall clock, for people.
	Moved time.Time
	// Fence of the verdict; 0: the region has given the slot up itself.
	Fence uint64
	// Hold: the region is back, and is ordered to hold the slot.
	Hold bool
	// MayRun: the policy of the group lets the region run its instances while it is cut
	// off.
	MayRun bool
	// Bound and StopTime as in Slot, of the slot that the region owned.
	Bound    bool
	StopTime time.Duration
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

// WireKey returns the key of SlotOrders.removed: "namespace/job/group/from".
func (s Slot) WireKey() string {
	return s.Namespace + "/" + s.Job + "/" + s.Group + "/" + strconv.Itoa(s.From)
}

// OfRun reports whether the slot belongs to a run.
func (s Slot) OfRun(run int64) bool { return s.Run == run || s.Run == 0 || run == 0 }

// Count returns the number of indices.
func (s Slot) Count() int { return s.To - s.From }

// String prints "default/api/web[0-5] at sea offered run g12 v1", with the former
// owners, the home and the region that it returns to.
func (s Slot) String() string {
	out := fmt.Sprintf("%s/%s/%s%s at %s %s %s g%d v%d", s.Namespace, s.Job, s.Group,
		FormatRange(s.From, s.To), s.Region, s.State, s.Desired, s.Generation, s.JobVersion)
	if s.Vacant {
		out += " vacant"
	}
	if s.ReturnTo != "" {
		out += " return to " + s.ReturnTo
	}
	for i, f := range s.Former {
		out += fmt.Sprintf(", %s g%d %s", f.Region, f.Generation, s.DesiredOfFormer(i))
	}
	if s.Home != "" {
		out += ", home " + s.Home
	}
	return out
}

// FormatRange prints the indices from ≤ i < to as "[0-5]", or "[3]" for one.
func FormatRange(from, to int) string {
	if to-from == 1 {
		return "[" + strconv.Itoa(from) + "]"
	}
	return "[" + strconv.Itoa(from) + "-" + strconv.Itoa(to-1) + "]"
}

// CountedReason is a typed reason and the number of regions, nodes or instances
// (What) that it concerns.
type CountedReason struct {
	Reason  string
	Count   int
	Message string
	What    string
	// Brief is a shorter message for one line, where Message joins the texts of
	// several regions; otherwise empty.
	Brief string
}

// Answer is a region's answer about a slot or a part of it.
type Answer struct {
	Namespace, Job, Group string
	From, To              int
	// Generation of the answered slot.
	Generation int64
	// State is Accepted, Rejected, Returned, Revoked, Stopped, Kept or Done.
	State           SlotState
	Reason, Message string
	Counts          []CountedReason
	// Bound: the region's lease binds everything that may run for the range.
	Bound bool
	// StopTime goes with Bound: the longest time between the stop signal and the kill of what
	// may run for the range; 0 also if the region is too old to say it.
	StopTime time.Duration
	// MayRun: the region gives the range up, but a lost node of the region may still run it. At
	// is the time of the answer by the wall clock, for people.
	MayRun bool
	At     time.Time
	// Fence of the region at the welcome of the session in which the answer came; 0 =
	// unknown. An answer of an earlier session has a lower fence than a later verdict.
	Fence uint64
}

// String prints "default/api/web[0-5] g12 accepted".
func (a Answer) String() string {
	return fmt.Sprintf("%s/%s/%s%s g%d %s", a.Namespace, a.Job, a.Group,
		FormatRange(a.From, a.To), a.Generation, a.State)
}

// Change is one write to the stored slots. All changes of one call belong in
// one transaction, each compared with Slot.Revision (0: the key must not
// exist). If a compare fails, read and decide again. A Put with generation 0 is
// stored with the revision of that transaction.
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
