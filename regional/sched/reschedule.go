package sched

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// DeclineMemory is how long a node that declined an instance is left out, counted from the
// instance's latest decline. The cause of a decline may pass, and an instance that only one
// node can run must not wait for ever.
const DeclineMemory = time.Minute

// BusyMemory replaces DeclineMemory if the agent declined because it already starts as many
// tasks as it may. That cause passes within seconds.
const BusyMemory = 5 * time.Second

// declinedBy returns the nodes to which an instance is not given again, and until when. It
// returns nil after that time. A node that has connected again since the decline is left
// out of the list, because an agent that was leaving has been started again.
func (in *Input) declinedBy(inst *state.Instance) ([]string, int64) {
	until := inst.EndedUnixNano + int64(DeclineMemory)
	if inst.Reason == state.ReasonAgentBusy {
		until = inst.EndedUnixNano + int64(BusyMemory)
	}
	if len(inst.Declined) == 0 || in.NowUnixNano >= until {
		return nil, 0
	}
	back := func(id string) bool {
		n, ok := in.View.Node(id)
		return ok && n.Status == state.NodeReady && n.StatusUnixNano > inst.EndedUnixNano
	}
	if !slices.ContainsFunc(inst.Declined, back) {
		return inst.Declined, until
	}
	if left := slices.DeleteFunc(slices.Clone(inst.Declined), back); len(left) > 0 {
		return left, until
	}
	return nil, 0
}

// otherTerms is greater than the whole span of the terms fit (0..1), affinity (-1..1) and
// anti-affinity (-0.5..0).
const otherTerms = 4

// failureScore returns the penalty of a node on which the instance failed the given number
// of times. A single failure outweighs all other terms together. So such a node is chosen
// only if no other node fits, and then the one with the fewest failures. The penalty is
// like Nomad's node-reschedule-penalty, except that in Nomad other terms may outweigh the
// penalty. most is the greatest number of the group's instances that share a spread value.
func failureScore(times int, most int32) float64 {
	return (spreadScore(most) - otherTerms) * float64(times)
}

// failureTerm returns the term of a score for failures on the node.
func failureTerm(times int, most int32) Term {
	detail := "failed here before"
	if times > 1 {
		detail = "failed here " + plural(times, "time")
	}
	return Term{Name: "reschedule", Value: failureScore(times, most), Detail: detail}
}

// nodeFailures is how often an instance failed on a node.
type nodeFailures struct {
	node  string // id
	times int
}

// failuresOf returns the nodes on which an instance failed since its last success, in the
// order of the first failures. It knows only attempts that are still stored.
func (in *Input) failuresOf(key state.GroupKey, inst *state.Instance) []nodeFailures {
	if inst.Failures == 0 {
		return nil
	}
	var nodes []string // the node of each failure, the oldest first
	for a := range in.View.InstanceAllocs(key, inst.Index) {
		if a.Failure() && a.GroupHash == inst.Hash {
			nodes = append(nodes, a.NodeID)
		}
	}
	var out []nodeFailures
	for _, id := range nodes[max(0, len(nodes)-int(inst.Failures)):] {
		if i := slices.IndexFunc(out, func(f nodeFailures) bool { return f.node == id }); i >= 0 {
			out[i].times++
			continue
		}
		out = append(out, nodeFailures{id, 1})
	}
	return out
}

func timesOn(failed []nodeFailures, node string) int {
	for _, f := range failed {
		if f.node == node {
			return f.times
		}
	}
	return 0
}
