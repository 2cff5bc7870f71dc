package wire

import (
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// CountedReason is a reason with the number of nodes or instances to which it applies.
type CountedReason struct {
	state.Count
	// What says which things are counted: "node" or "instance".
	What string
}

// The values of CountedReason.What.
const (
	countsNodes     = "node"
	countsInstances = "instance"
)

// waitMessages explain why instances are placed only later.
var waitMessages = map[state.Reason]string{
	state.ReasonBackoff:     "it failed and waits before the next attempt",
	state.ReasonNodeLost:    "its node is silent, and its replacement is not due yet",
	state.ReasonRegionLease: "the region was recovered, and earlier leases may still last",
	state.ReasonParallel:    "",
	state.ReasonDeclined:    "its node declined it and is asked again soon",
}

// PlanReasons returns for each group why instances have no node after the plan.
func PlanReasons(plan *sched.Plan) map[state.GroupKey][]CountedReason {
	out := map[state.GroupKey][]CountedReason{}
	for _, u := range plan.Unplaced {
		out[u.Key] = append(out[u.Key], unplacedReasons(&u)...)
	}
	for _, w := range plan.Waiting {
		out[w.Key] = append(out[w.Key], CountedReason{
			state.Count{Reason: w.Reason, Count: sched.Instances(w.Ranges), Message: waitMessages[w.Reason]}, countsInstances,
		})
	}
	return out
}

// unplacedReasons returns the reasons of unplaced instances. The first reason is the one
// that prevents the placement. It counts nodes if the plan counted nodes for it, otherwise
// instances.
func unplacedReasons(u *sched.Unplaced) []CountedReason {
	out := []CountedReason{{state.Count{Reason: u.Reason, Message: u.Message, Count: sched.Instances(u.Ranges)}, countsInstances}}
	for _, c := range u.Counts {
		if c.Reason == u.Reason {
			out[0].Count.Count, out[0].What = c.Count, countsNodes
		} else {
			out = append(out, CountedReason{c, countsNodes})
		}
	}
	return out
}

// CountedReasonsToProto converts counted reasons.
func CountedReasonsToProto(reasons []CountedReason) []*nusav1.CountedReason {
	var out []*nusav1.CountedReason
	for _, r := range reasons {
		out = append(out, &nusav1.CountedReason{Reason: ReasonToProto(r.Reason), Count: r.Count.Count, Message: r.Message, What: r.What})
	}
	return out
}
