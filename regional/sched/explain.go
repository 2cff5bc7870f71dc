package sched

import (
	"cmp"
	"slices"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// Verdict says how a node fares for one more instance of a group.
type Verdict struct {
	NodeID   string
	NodeName string
	Taken    int32        // live instances of the group there
	Reason   state.Reason // empty: it would do
	Message  string       // figures: "needs 500m cpu, 300m free of 4"
	Score    float64
	Terms    []Term
}

// Explain answers for every node, best first, the refused ones after them by
// id. Nil when the group is not held. It looks at each node by itself, without
// the index that Make uses.
func Explain(in Input, key state.GroupKey) []Verdict {
	g, ok := in.View.Group(key)
	if !ok || len(g.Slots) == 0 {
		return nil
	}
	version := g.Slots[0].JobVersion
	for _, s := range g.Slots {
		version = max(version, s.JobVersion)
	}
	job, ok := in.View.Job(key.JobKey(), version)
	if !ok {
		return nil
	}
	return ExplainAsk(in, job, key.Group)
}

// ExplainAsk is Explain for a job that need not be stored: a dry run. Live
// instances of a stored job of that name count.
func ExplainAsk(in Input, job *state.Job, group string) []Verdict {
	spec := job.Group(group)
	if spec == nil {
		return nil
	}
	key := state.GroupKey{Namespace: job.Key.Namespace, Job: job.Key.Job, Group: group, Local: job.Key.Local}
	t := newTable(in.View)
	c := newClass(t, in.Funcs, &spec.Ask, job.Key)
	here, there := map[string]int32{}, map[string]int32{}
	for a := range in.View.GroupAllocs(key) {
		if pos, ok := t.byNum[a.NodeNum]; ok && a.Live() && a.Desired == state.Run {
			here[a.NodeID]++
			if n := &t.nodes[pos]; c.refuseStatus(n) == "" && c.refuseKind(n) == "" {
				there[c.value(n)]++
			}
		}
	}
	declined := declinedBy(in, key)
	out := make([]Verdict, 0, len(t.nodes))
	for i := range t.nodes {
		n := &t.nodes[i]
		v := Verdict{NodeID: n.ID, NodeName: n.Name, Taken: here[n.ID], Reason: c.refuse(n)}
		switch {
		case v.Reason != "":
			v.Message = c.describe(n, v.Reason)
		case declined[n.ID] != "":
			v.Reason, v.Message = state.ReasonDeclined, declined[n.ID]
		default:
			v.Terms = c.terms(n, c.affinity(n), here[n.ID], there[c.value(n)])
			for _, term := range v.Terms {
				v.Score += term.Value
			}
		}
		out = append(out, v)
	}
	slices.SortStableFunc(out, func(a, b Verdict) int {
		if af, bf := a.Reason == "", b.Reason == ""; af != bf {
			if af {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.Score, a.Score)
	})
	return out
}

// declinedBy are the nodes that declined an instance which still waits.
func declinedBy(in Input, key state.GroupKey) map[string]string {
	out := map[string]string{}
	for inst := range in.View.Instances(key) {
		exclude, _ := in.excluded(&inst)
		if inst.FreedUnixNano == 0 || inst.Finished() {
			continue
		}
		for _, id := range exclude {
			out[id] = "its agent declined a waiting instance: " + string(inst.Reason)
			if inst.Message != "" {
				out[id] += ", " + inst.Message
			}
		}
	}
	return out
}
