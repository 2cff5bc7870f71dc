package uplink

import (
	"fmt"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/accept"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// maxDisconnected bounds the ranges of disconnected instances in a summary.
const maxDisconnected = 256

// disconnected returns the instances of a group that may still run on lost nodes, and for
// which the newest plan found no other node.
func (r *Reporter) disconnected(view *state.View, key state.GroupKey) []accept.DisconnectedRange {
	return accept.Disconnected(view, key, r.Plan.Unplaced(key))
}

// Disconnected returns why the disconnected instances of a group wait. It returns nil
// without such instances, otherwise one reason.
func (r *Reporter) Disconnected(view *state.View, key state.GroupKey) []*nusav1.CountedReason {
	return disconnectedReason(r.disconnected(view, key), time.Now())
}

func disconnectedToProto(group string, ranges []accept.DisconnectedRange) []*nusav1.DisconnectedInstances {
	var out []*nusav1.DisconnectedInstances
	for _, d := range ranges {
		out = append(out, &nusav1.DisconnectedInstances{Group: group, From: d.From, To: d.To, Generation: d.Generation, Node: d.NodeName})
	}
	return out
}

// disconnectedReason counts the instances in one reason. The message names the node that
// has been silent for the longest time.
func disconnectedReason(ranges []accept.DisconnectedRange, now time.Time) []*nusav1.CountedReason {
	if len(ranges) == 0 {
		return nil
	}
	out := &nusav1.CountedReason{Reason: nusav1.Reason_REASON_NODE_LOST, What: "instance"}
	first := ranges[0]
	nodes := map[string]bool{}
	for _, d := range ranges {
		out.Count += d.To - d.From
		nodes[d.NodeName] = true
		if d.SinceUnixNano < first.SinceUnixNano {
			first = d
		}
	}
	who, them := first.NodeName+" has", "it"
	if more := len(nodes) - 1; more > 0 {
		who, them = fmt.Sprintf("%s and %d more have", first.NodeName, more), "them"
	}
	out.Message = fmt.Sprintf("%s been silent for %s and may still run %s (`nusa node remove %s` if it is gone for good)",
		who, silenceText(now.Sub(time.Unix(0, first.SinceUnixNano))), them, first.NodeName)
	return []*nusav1.CountedReason{out}
}

// silenceText formats a duration in whole minutes.
func silenceText(d time.Duration) string {
	switch {
	case d < time.Minute:
		return "less than a minute"
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	}
	return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
}
