package region

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// SlotState is the state of a stored slot, or of an answer. Rejected, returned, revoked and stopped
// are never stored, because such an answer takes indices out of a slot. Kept is never stored,
// because its indices get a new offer. The wire enum is SLOT_STATE_ and upper case.
type SlotState string

// Stored states only advance: offered → accepted → done.
const (
	// Offered: the region owns the slot although it has not answered.
	Offered SlotState = "offered"
	// Accepted: the region has accepted the slot.
	Accepted SlotState = "accepted"
	// Done: every instance of a batch slot has ended. The slot keeps its indices.
	Done SlotState = "done"
	// Rejected is an answer: the region refused the slot when it arrived.
	Rejected SlotState = "rejected"
	// Returned is an answer: the region accepted the slot, and found later that
	// it cannot run it.
	Returned SlotState = "returned"
	// Revoked is an answer to desired Revoke: nothing of the slot runs any more.
	Revoked SlotState = "revoked"
	// Stopped is an answer to desired Stop: nothing of the slot runs any more.
	Stopped SlotState = "stopped"
	// Kept is an answer to desired Revoke with UnlessConnected: the node has reconnected, and the
	// region keeps the instance. Kept is also a former owner's answer to DesiredHold: the instance
	// runs in that region.
	Kept SlotState = "kept"
)

// rank orders the states that are stored.
func (s SlotState) rank() int { return slices.Index([]SlotState{Offered, Accepted, Done}, s) }

func (s SlotState) isAnswer() bool {
	return slices.Contains([]SlotState{Accepted, Done, Rejected, Returned, Revoked, Stopped, Kept}, s)
}

// Desired is the state that the global tier orders for a slot. For one generation it only advances:
// run → stop, or run → revoke → stop. The wire enum is SLOT_DESIRED_ and upper case.
type Desired string

const (
	DesiredRun    Desired = "run"
	DesiredStop   Desired = "stop"
	DesiredRevoke Desired = "revoke"
	// DesiredHold is sent only to former owners, and is never stored: running instances continue,
	// and nothing is started.
	DesiredHold Desired = "hold"
)

func (d Desired) rank() int {
	return slices.Index([]Desired{DesiredRun, DesiredRevoke, DesiredStop}, d)
}

// Slot is a range of instance indices of a group. One region owns the slot as long as the record
// exists, in every state and desired state, unless the slot is vacant.
type Slot struct {
	Namespace, Job, Group string
	// From and To are the bounds of the indices: From ≤ i < To. Slots of one group never overlap,
	// except for system jobs: these have one slot [0,1) in each region.
	From, To int
	Region   string
	// System marks the slot of a system job. See Key.
	System  bool
	State   SlotState
	Desired Desired
	// Generation is the etcd revision of the offer. In a Put, 0 stands for the revision of that
	// transaction. When a slot is split, the part with the old key keeps the generation, and each
	// part with a new key gets a new generation.
	Generation int64
	// Revision is the etcd revision at which the record was last written. The next write compares
	// it. 0: the slot is not stored.
	Revision   int64
	JobVersion int64
	// Run is the run of the job that the slot belongs to: the etcd revision of the submit that
	// began the run. 0: the record was written before runs existed. In a Put, RunBegins stands for
	// the revision of that transaction.
	Run int64
	// Hold is how long the region keeps instances that fit nowhere before it returns them, counted
	// from the arrival of the offer. 0: about a second.
	Hold time.Duration
	// UnlessConnected goes with desired Revoke: the region gives up only instances on disconnected
	// nodes, and answers Kept for the others.
	UnlessConnected bool
	// Reason and Message come from the latest answer that has a reason.
	Reason, Message string
	// PlacedBecause says in one line why the owner was chosen.
	PlacedBecause string
	// Former are the earlier owners that have not confirmed yet that they run nothing of the slot,
	// oldest first, at most MaxFormer. The list is never changed in place, because parts of a split
	// slot share it.
	Former []FormerOwner
	// ReturnTo is set only with desired Revoke: it is the region that gets the slot once the
	// present owner has confirmed. Empty: the placer chooses.
	ReturnTo string
	// Home is the region from which the first verdict moved the slot. Empty: no verdict did.
	Home string
	// Bound: the owner may run a version that the region's lease binds. StopTime is the longest
	// stop time (from the stop signal to the kill) of those versions.
	Bound    bool
	StopTime time.Duration
	// Unbound: the owner may run a version that the region's lease does not bind. Bound and Unbound
	// are both set after an update from one kind of version to the other.
	Unbound bool
	// Parallel is the slot's part of Group.Parallel of the job: see place.Share.
	Parallel int
	// Vacant: the owner has given the slot up. The record stays because a former owner may still
	// run the slot. The owner that gave it up can be such a former owner. The placer gives the
	// indices to a region as if no region owned them.
	Vacant bool
}

// RunBegins is the run of a slot that is written together with the submit that begins the run.
const RunBegins = -1

// MaxFormer bounds Slot.Former. If the list is full, the oldest owner that cannot run the slot is
// dropped.
const MaxFormer = 4

// FormerOwner is a region that owned a slot before and may still run it.
type FormerOwner struct {
	Region string
	// Generation is the generation of the slot when the region owned it.
	Generation int64
	// Moved is when the slot moved, by the wall clock. It is only shown.
	Moved time.Time
	// Fence is the fence of the verdict. 0: the region has given the slot up itself.
	Fence uint64
	// Hold: the region is back, and has the order to hold the slot.
	Hold bool
	// MayRun: the region may still run the slot, because no lease stops its instances or because
	// they are on a lost node.
	MayRun bool
	// Bound and StopTime are as in Slot, from when the region owned the slot.
	Bound    bool
	StopTime time.Duration
}

// Key returns the key of the stored record: "namespace/job/group/from". For system jobs, whose
// slots are all [0,1), it is "namespace/job/group/0@region". The wire uses WireKey instead, since a
// region sees only its own slots.
func (s Slot) Key() string {
	if s.System {
		return s.WireKey() + "@" + s.Region
	}
	return s.WireKey()
}

// WireKey returns the key on the wire, as in SlotOrders.removed: "namespace/job/group/from".
func (s Slot) WireKey() string {
	return s.Namespace + "/" + s.Job + "/" + s.Group + "/" + strconv.Itoa(s.From)
}

// OfRun reports whether the slot belongs to a run. A slot or a run without a number matches any.
func (s Slot) OfRun(run int64) bool { return s.Run == run || s.Run == 0 || run == 0 }

// Count returns the number of indices.
func (s Slot) Count() int { return s.To - s.From }

// String prints the slot, for example "default/api/web[0-5] at sea offered run g12 v1". The former
// owners, the home and the region that the slot returns to follow.
func (s Slot) String() string {
	out := fmt.Sprintf("%s/%s/%s%s at %s %s %s g%d v%d", s.Namespace, s.Job, s.Group,
		FormatRange(s.From, s.To), s.Region, s.State, s.Desired, s.Generation, s.JobVersion)
	if s.Parallel > 0 {
		out += fmt.Sprintf(" parallel %d", s.Parallel)
	}
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

// FormatRange prints the indices from ≤ i < to as "[0-5]", or as "[3]" if there is only one.
func FormatRange(from, to int) string {
	if to-from == 1 {
		return "[" + strconv.Itoa(from) + "]"
	}
	return "[" + strconv.Itoa(from) + "-" + strconv.Itoa(to-1) + "]"
}

// CountedReason is a typed reason and how many regions, nodes or instances have it. What says which
// of these are counted.
type CountedReason struct {
	Reason  string
	Count   int
	Message string
	What    string
	// Brief is a shorter text than Message, for one line. It is set only where Message joins the
	// texts of several regions.
	Brief string
}

// Answer is a region's answer about a slot or a part of a slot.
type Answer struct {
	Namespace, Job, Group string
	From, To              int
	// Generation is the generation of the answered slot.
	Generation int64
	// State is Accepted, Rejected, Returned, Revoked, Stopped, Kept or Done.
	State           SlotState
	Reason, Message string
	Counts          []CountedReason
	// Bound: the region's lease binds everything that may run for the range.
	Bound bool
	// StopTime belongs to Bound: it is the longest stop time (from the stop signal to the kill) of
	// the instances that may run. It is 0 if the region is of an earlier version of Nusa, which
	// does not report it.
	StopTime time.Duration
	// MayRun: the region gives the range up, but a lost node of the region may still run it. At is
	// the time of the answer by the wall clock. It is only shown.
	MayRun bool
	At     time.Time
	// Fence is the region's fence at the welcome of the session in which the answer came; 0:
	// unknown. An answer of an earlier session has a lower fence than a later verdict.
	Fence uint64
}

// String prints the answer, for example "default/api/web[0-5] g12 accepted".
func (a Answer) String() string {
	return fmt.Sprintf("%s/%s/%s%s g%d %s", a.Namespace, a.Job, a.Group,
		FormatRange(a.From, a.To), a.Generation, a.State)
}

// Change is one write to the stored slots. All changes of one call belong in one transaction, which
// compares each Slot.Revision (0: the key must not exist). If a compare fails, the caller reads the
// slots and decides again. A Put with generation 0 is stored with the revision of its transaction.
type Change struct {
	// Delete removes the record at Slot.Key(). Without Delete, the record is written.
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
