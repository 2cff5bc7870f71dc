package place

import (
	"fmt"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
)

// Kind says what an action does to the stored slots.
type Kind string

const (
	// Offer puts a new slot with state offered, desired state run, and the revision of the write as
	// generation. The slot's key must not exist.
	Offer Kind = "offer"
	// Update rewrites a slot in place for a new job version, with state offered and the revision of
	// the write as generation. The key and the region stay.
	Update Kind = "update"
	// Stop sets desired state stop for a slot, or for a part of it, which splits the slot.
	Stop Kind = "stop"
	// Revoke sets desired state revoke. The instances are placed elsewhere after the region has
	// confirmed.
	Revoke Kind = "revoke"
	// Share changes the part of Group.Parallel that a slot has. See divide.go.
	Share Kind = "share"
	// Takeover gives a slot of a lost region, a vacant slot, or parts of such a slot, to other
	// regions.
	Takeover Kind = "takeover"
)

// Action is one step of a plan. Changes returns its writes.
type Action struct {
	Kind                  Kind
	Namespace, Job, Group string
	// From and To are the bounds of the indices that the action concerns: From ≤ i < To. For Stop
	// they may be a part of Slot. For Update they are the part that stays. The rest of Slot is out
	// of range, and Changes stops it.
	From, To   int
	Region     string
	JobVersion int64
	Run        int64
	// Slot is the stored slot that the action changes. It is zero for Offer.
	Slot region.Slot
	// System marks the slot of a system job.
	System bool
	// Bound and StopTime are set for an Offer, an Update and a Takeover. See region.Slot.
	Bound    bool
	StopTime time.Duration
	// Parts are the parts of a Takeover, in ascending order. From, To and Region then describe the
	// whole slot and its owner.
	Parts []Part
	// Fence and NothingRuns are set for a Takeover: see Movable. The write compares Fence with the
	// region's record.
	Fence       uint64
	NothingRuns bool
	// Set, for a Takeover, names the actions of one job that are written together or not at all.
	// Empty: the action is independent.
	Set string
	// Moved is the time of a takeover. The caller sets it before Changes.
	Moved time.Time
	// Hold belongs to an Offer. See region.Slot.
	Hold time.Duration
	// Parallel belongs to a Share. See region.Slot.
	Parallel int
	// UnlessConnected and ReturnTo belong to a Revoke. See region.Slot.
	UnlessConnected bool
	ReturnTo        string
	// Reason is a typed reason; it is empty for offers and updates. Why is the reason in one line.
	Reason, Why string
}

// Part is a part of a slot that a takeover gives to a region.
type Part struct {
	From, To int
	Region   string
	Why      string
	// Hold is as in Action.
	Hold time.Duration
}

// Changes returns the writes of the action, for one transaction with the compares that
// region.Change describes. The actions of a plan change distinct slots.
func (a Action) Changes() []region.Change {
	switch a.Kind {
	case Offer:
		s := region.Slot{
			Namespace: a.Namespace, Job: a.Job, Group: a.Group, From: a.From, To: a.To,
			Region: a.Region, System: a.System, State: region.Offered, Desired: region.DesiredRun,
			JobVersion: a.JobVersion, Run: a.Run, Hold: a.Hold, PlacedBecause: a.Why,
		}
		s.Bind(a.Bound, a.StopTime)
		return []region.Change{{Slot: s}}
	case Update:
		if a.Slot.Region == "" { // no region has the slot; the next plan places its indices
			return []region.Change{region.GiveUp(a.Slot)}
		}
		changes := region.StopPart(a.Slot, a.To, a.Slot.To, region.DesiredStop)
		kept := a.Slot
		kept.To, kept.State, kept.Generation, kept.JobVersion = a.To, region.Offered, 0, a.JobVersion
		if a.Run != kept.Run {
			kept.Parallel = 0 // everything of the earlier run has ended, so the next plan divides again
		}
		kept.Run, kept.Hold = a.Run, 0
		kept.Reason, kept.Message = "", ""
		kept.Bind(a.Bound, a.StopTime)
		if len(changes) == 0 {
			return []region.Change{{Slot: kept}}
		}
		changes[0].Slot = kept // StopPart returns the part that stays first
		return changes
	case Share:
		kept := a.Slot
		kept.Parallel = a.Parallel
		return []region.Change{{Slot: kept}}
	case Stop:
		return region.StopPart(a.Slot, a.From, a.To, region.DesiredStop)
	case Revoke:
		switch {
		case a.UnlessConnected:
			return region.RevokeUnlessConnected(a.Slot, a.From, a.To)
		case a.ReturnTo != "":
			return region.ReturnPart(a.Slot, a.From, a.To, a.ReturnTo)
		}
		return region.StopPart(a.Slot, a.From, a.To, region.DesiredRevoke)
	case Takeover:
		parts := make([]region.Takeover, 0, len(a.Parts))
		for _, p := range a.Parts {
			parts = append(parts, region.Takeover{
				From: p.From, To: p.To, Region: p.Region, JobVersion: a.JobVersion, Run: a.Run, Bound: a.Bound, StopTime: a.StopTime,
				Because: a.Why + ": " + p.Why, Fence: a.Fence, NothingRuns: a.NothingRuns, Moved: a.Moved,
				Hold: p.Hold,
			})
		}
		return region.TakeOver(a.Slot, parts...)
	}
	return nil
}

// Plan is the list of actions, with the reasons.
type Plan struct {
	// Actions are in the order of the jobs. Within a job, stops come before offers. Placements of
	// released instances (Group.Released) come first of all.
	Actions []Action
	// Groups explains the groups with work, and the groups of jobs with Explain. They are in the
	// order of the jobs, then sorted by group.
	Groups []GroupExplanation
	// Moves says how the plan reacts to each sustained breach.
	Moves []Move
	// Stays are the slots of lost regions that are due but have found no other region.
	Stays []Stay
	// Leaves says what happens to each group that has instances in a draining region.
	Leaves []Leave
	// Returns are the slots that return to the region from which a verdict moved them.
	Returns []Return
	// Undecided are the jobs that the plan left out. See Snapshot.MaxVerdicts.
	Undecided []*Job
	// RolloutStages are the regions that wait for their turn to get a new version, and why.
	RolloutStages []RolloutStage
	// RegionEnds are the regions in which a rollout has ended and that Job.RegionOrder does not name
	// yet. The caller stores them.
	RegionEnds []RegionEnd
}

// Empty reports whether the plan has no action.
func (p Plan) Empty() bool { return len(p.Actions) == 0 }

// GroupExplanation explains one group.
type GroupExplanation struct {
	Namespace, Job, Group string
	// Desired is the number of instances; for system jobs it is the number of regions.
	Desired int
	// Unplaced is how many instances have no owner after this plan.
	Unplaced int
	// Moved: the plan moves instances of the group away from a lost region.
	Moved bool
	// Rule says how the instances are divided among regions.
	Rule Rule
	// Pending counts the reasons for unplaced instances, ordered by rank, then by count.
	Pending []region.CountedReason
	// Regions holds a verdict for each region of the federation, the best region first. It is empty
	// with Terse.
	Regions []RegionVerdict
}

// RegionVerdict says why a region was taken or refused for a group.
type RegionVerdict struct {
	Region string
	// Taken is how many instances the region owns after this plan. New is how many of these the
	// plan placed there.
	Taken, New int
	// Fits is how many more instances had room when the group was evaluated.
	Fits int
	// Reason is empty if New > 0, or if the region keeps its instances and has room for more.
	Reason, Message string
	// Score is the sum of Terms. It is 0 for a refused region.
	Score  float64
	Terms  []Term
	Inputs []Input
}

// Term is one part of a score.
type Term struct {
	Name  string
	Value float64
	// Detail says where the value comes from, for example "p50 68ms measured to japaneast".
	Detail string
}

// Input is the age of a report or a measurement that the verdict depends on.
type Input struct {
	Name string
	Age  time.Duration
}

// The reasons of this package. The wire enum is REASON_ and upper case.
const (
	ReasonNotAllowed       = "region_not_allowed"
	ReasonCordoned         = "region_cordoned"
	ReasonDisconnected     = "region_disconnected"
	ReasonLost             = "region_lost"
	ReasonDraining         = "region_draining"
	ReasonFailback         = "failback"
	ReasonNoCommit         = "region_no_commit"
	ReasonFeatureLevel     = "feature_level"
	ReasonConfigInvalid    = "config_invalid"
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

// String prints the plan: the actions, then each group with its regions.
func (p Plan) String() string {
	var b strings.Builder
	if len(p.Actions) == 0 {
		b.WriteString("nothing to do\n")
	}
	for _, a := range p.Actions {
		fmt.Fprintln(&b, a)
	}
	for _, s := range p.Stays {
		fmt.Fprintln(&b, s)
	}
	for _, l := range p.Leaves {
		fmt.Fprintln(&b, l)
	}
	for _, r := range p.Returns {
		fmt.Fprintln(&b, r)
	}
	for _, s := range p.RolloutStages {
		fmt.Fprintln(&b, s)
	}
	for _, e := range p.RegionEnds {
		fmt.Fprintln(&b, e)
	}
	for _, m := range p.Moves {
		fmt.Fprintln(&b, m)
	}
	for _, g := range p.Groups {
		b.WriteString(g.String())
	}
	return b.String()
}

// String prints, for example, "offer default/api/web[0-5] v1 to sea: score 61.3 (…), fits 8".
func (a Action) String() string {
	slot := fmt.Sprintf("%s/%s/%s%s", a.Namespace, a.Job, a.Group, region.FormatRange(a.From, a.To))
	if a.Kind == Offer {
		return fmt.Sprintf("%s %s v%d to %s: %s", a.Kind, slot, a.JobVersion, a.Region, a.Why)
	}
	if a.Kind == Takeover {
		out := fmt.Sprintf("%s %s from %s: %s", a.Kind, slot, a.Region, a.Why)
		for _, p := range a.Parts {
			out += fmt.Sprintf("; %s to %s: %s", region.FormatRange(p.From, p.To), p.Region, p.Why)
		}
		return out
	}
	why := a.Why
	if a.Reason != "" {
		why = a.Reason + ": " + why
	}
	return fmt.Sprintf("%s %s at %s: %s", a.Kind, slot, a.Region, why)
}

// String prints one line for the group, then one line for each region.
func (g GroupExplanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%s/%s: %d desired, %d unplaced\n", g.Namespace, g.Job, g.Group, g.Desired, g.Unplaced)
	fmt.Fprintf(&b, "  divide: %s\n", g.Rule)
	for _, c := range g.Pending {
		fmt.Fprintf(&b, "  pending: %s %d %s", c.Reason, c.Count, c.What)
		if c.Message != "" {
			fmt.Fprintf(&b, " (%s)", c.Message)
		}
		b.WriteByte('\n')
	}
	for _, r := range g.Regions {
		fmt.Fprintln(&b, "  "+r.String())
	}
	return b.String()
}

// String prints the verdict in one line.
func (v RegionVerdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d/%d", v.Region, v.Taken, v.Fits)
	if v.Reason != "" {
		fmt.Fprintf(&b, " %s:", v.Reason)
	}
	fmt.Fprintf(&b, " %s", v.Message)
	for i, t := range v.Terms {
		sep := " +"
		if i == 0 {
			sep = fmt.Sprintf("; %.1f =", v.Score)
		}
		fmt.Fprintf(&b, "%s %s %.1f (%s)", sep, t.Name, t.Value, t.Detail)
	}
	for i, in := range v.Inputs {
		sep := ","
		if i == 0 {
			sep = "; ages:"
		}
		fmt.Fprintf(&b, "%s %s %s", sep, in.Name, in.Age.Round(100*time.Millisecond))
	}
	return b.String()
}
