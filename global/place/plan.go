package place

import (
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
)

// Kind says what an action does to the stored slots.
type Kind string

const (
	// Offer puts a new slot: state offered, desired run, generation = the
	// revision of the write. Its key must not exist.
	Offer Kind = "offer"
	// Update rewrites a slot in place for a new job version: state offered,
	// generation = the revision of the write, the same key and region.
	Update Kind = "update"
	// Stop sets desired stop for a slot, or for a part of it, which splits it.
	Stop Kind = "stop"
	// Revoke sets desired revoke: the indices are placed elsewhere once the
	// region confirmed.
	Revoke Kind = "revoke"
)

// Action is one step of a plan. Changes are its writes.
type Action struct {
	Kind                  Kind
	Namespace, Job, Group string
	// Indices From ≤ i < To; for Stop possibly a part of Slot. Of an Update the
	// part that is kept: what of Slot lies behind it is out of range now, and its
	// Changes stop that too.
	From, To   int
	Region     string
	JobVersion int64
	Run        int64
	// Slot is the stored slot that is acted on; zero for Offer.
	Slot region.Slot
	// System marks the slot of a system job.
	System bool
	// Hold of an Offer: see region.Slot.
	Hold time.Duration
	// UnlessConnected of a Revoke: see region.Slot.
	UnlessConnected bool
	// Reason is typed and empty for offers and updates; Why is one line.
	Reason, Why string
}

// Changes are the writes of the action, to be done in one transaction with the
// compares that region.Change tells of. Actions of a plan touch distinct slots.
func (a Action) Changes() []region.Change {
	switch a.Kind {
	case Offer:
		return []region.Change{{Slot: region.Slot{
			Namespace: a.Namespace, Job: a.Job, Group: a.Group, From: a.From, To: a.To,
			Region: a.Region, System: a.System, State: region.Offered, Desired: region.DesiredRun,
			JobVersion: a.JobVersion, Run: a.Run, Hold: a.Hold, PlacedBecause: a.Why,
		}}}
	case Update:
		changes := region.StopPart(a.Slot, a.To, a.Slot.To, region.DesiredStop)
		kept := a.Slot
		kept.To, kept.State, kept.Generation, kept.JobVersion = a.To, region.Offered, 0, a.JobVersion
		kept.Run, kept.Hold = a.Run, 0
		kept.Reason, kept.Message = "", ""
		if len(changes) == 0 {
			return []region.Change{{Slot: kept}}
		}
		changes[0].Slot = kept // StopPart puts the part that stays first
		return changes
	case Stop:
		return region.StopPart(a.Slot, a.From, a.To, region.DesiredStop)
	case Revoke:
		if a.UnlessConnected {
			return region.RevokeUnlessConnected(a.Slot, a.From, a.To)
		}
		return region.StopPart(a.Slot, a.From, a.To, region.DesiredRevoke)
	}
	return nil
}

// Plan is what should be done, and why.
type Plan struct {
	// Actions in the order of the jobs; stops before offers within a job. What is
	// placed as was promised (Group.Freed) comes first.
	Actions []Action
	// Groups explains each group that was looked at: those with work to do and
	// those of jobs with Explain. Sorted by job order, then group.
	Groups []GroupExplanation
	// Moves say what follows of each sustained breach.
	Moves []Move
	// RolloutStages are the regions which a new version has not reached, and why.
	RolloutStages []RolloutStage
}

// Empty says that nothing is to be done.
func (p Plan) Empty() bool { return len(p.Actions) == 0 }

// GroupExplanation explains one group.
type GroupExplanation struct {
	Namespace, Job, Group string
	// Desired instances; for system jobs the number of regions.
	Desired int
	// Unplaced instances have no owner after this plan.
	Unplaced int
	// Pending are the counted reasons of that, most frequent first.
	Pending []region.CountedReason
	// Regions are all of the federation, best first; empty with Terse.
	Regions []RegionVerdict
}

// RegionVerdict says how a region fared.
type RegionVerdict struct {
	Region string
	// Taken instances it owns after this plan, New those of them by this plan.
	Taken, New int
	// Fits is how many more it could take when the group's turn came.
	Fits int
	// Reason is empty when New > 0, or when it keeps what it has and could take
	// more.
	Reason, Message string
	// Score is the sum of Terms; 0 for refused regions.
	Score  float64
	Terms  []Term
	Inputs []Input
}

// Term is one part of a score.
type Term struct {
	Name  string
	Value float64
	// Detail says where the value comes from: "p50 68ms measured to japaneast".
	Detail string
}

// Input is how old something was that the verdict depends on.
type Input struct {
	Name string
	Age  time.Duration
}

// Reasons of this package; the wire enum is REASON_ + upper case.
const (
	ReasonNotAllowed       = "region_not_allowed"
	ReasonCordoned         = "region_cordoned"
	ReasonDisconnected     = "region_disconnected"
	ReasonLost             = "region_lost"
	ReasonNoReport         = "region_no_report"
	ReasonRTTTooHigh       = "rtt_too_high"
	ReasonRTTUnknown       = "rtt_unknown"
	ReasonRTTStale         = "rtt_stale"
	ReasonNearNothing      = "near_nothing"
	ReasonNoCapacity       = "no_capacity"
	ReasonSpreadLimit      = "spread_limit"
	ReasonColocation       = "colocation"
	ReasonReturnedRecently = "returned_recently"
	ReasonLowerScore       = "lower_score"
	ReasonStoppedByUser    = "stopped_by_user"
	ReasonOutOfRange       = "out_of_range"
	ReasonSuperseded       = "superseded"
	ReasonNodeLost         = "node_lost"
)
