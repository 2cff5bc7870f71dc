package regional

import (
	"fmt"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/accept"
	"github.com/nusa-scheduler/nusa/regional/state"
)

const (
	// maxAway bounds the ranges of instances that are away in one summary.
	maxAway = 256
	// repeatAway is how often it is said anew for how long a node is silent. It
	// is also what tells a global server of this session that they still are.
	repeatAway = time.Minute
)

// away are the instances of a group that may still run on lost nodes and fit
// no other, by the newest plan.
func (l *leader) away(view *state.View, key state.GroupKey) []accept.DisconnectedRange {
	return accept.Disconnected(view, key, l.sched.without(key))
}

func awayToWire(group string, away []accept.DisconnectedRange) []*nusav1.DisconnectedInstances {
	var out []*nusav1.DisconnectedInstances
	for _, a := range away {
		out = append(out, &nusav1.DisconnectedInstances{Group: group, From: a.From, To: a.To, Generation: a.Generation, Node: a.NodeName})
	}
	return out
}

// awayReasons say of the instances that are away what they wait for: one reason,
// in the words of the node that is silent for longest.
func awayReasons(away []accept.DisconnectedRange, now time.Time) []*nusav1.CountedReason {
	if len(away) == 0 {
		return nil
	}
	out := &nusav1.CountedReason{Reason: nusav1.Reason_REASON_NODE_LOST, What: "instance"}
	first := away[0]
	nodes := map[string]bool{}
	for _, a := range away {
		out.Count += a.To - a.From
		nodes[a.NodeName] = true
		if a.SinceUnixNano < first.SinceUnixNano {
			first = a
		}
	}
	who, them := first.NodeName+" has", "it"
	if more := len(nodes) - 1; more > 0 {
		who, them = fmt.Sprintf("%s and %d more have", first.NodeName, more), "them"
	}
	out.Message = fmt.Sprintf("%s been silent for %s and may still run %s (`nusa node remove %s` if it is gone for good)",
		who, silentFor(now.Sub(time.Unix(0, first.SinceUnixNano))), them, first.NodeName)
	return []*nusav1.CountedReason{out}
}

// silentFor is in whole minutes where there are any.
func silentFor(d time.Duration) string {
	switch {
	case d < time.Minute:
		return "less than a minute"
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	}
	return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
}

// noteAway remembers whether instances of a job are away. mu is held.
func (u *uplink) noteAway(k state.JobKey, sum *nusav1.JobSummary) {
	if len(sum.GetDisconnected()) == 0 {
		delete(u.away, k)
		return
	}
	if len(u.away) == 0 {
		u.awayAt = time.Now().Add(repeatAway)
	}
	u.away[k] = struct{}{}
}

// awayAgain has jobs summed up anew of which instances are away, when that is
// due, and answers when it is next; zero = never. mu is held.
func (u *uplink) awayAgain(now time.Time) time.Time {
	if len(u.away) == 0 {
		return time.Time{}
	}
	if !now.Before(u.awayAt) {
		u.awayAt = now.Add(repeatAway)
		for k := range u.away {
			u.dirty[k] = struct{}{}
		}
	}
	return u.awayAt
}
