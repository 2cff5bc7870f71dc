package topo

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// ReportToProto converts the findings of a check. The kinds are in the order of
// importance, and the worst finding of each kind is first.
func ReportToProto(r topology.CheckResult) *nusav1.CheckTopologyResponse {
	out := &nusav1.CheckTopologyResponse{
		Regions: int32(r.Regions), Measured: int32(r.Pairs.Measured + r.Pairs.Stale), Totals: map[string]int32{},
	}
	add := func(f *nusav1.TopologyFinding, text fmt.Stringer) {
		f.Message = text.String()
		out.Findings = append(out.Findings, f)
	}
	for kind, total := range map[string]int{
		"impossible": r.Impossible.Total, "location": len(r.Suspects), "doubtful": r.Doubtful.Total, "one_way": r.Cuts.Total,
		"unreachable": r.Unreached.Total, "stale": r.Stale.Total, "asymmetric": r.Asymmetries.Total, "detour": r.Violations.Total,
	} {
		if total > 0 {
			out.Totals[kind] = int32(total)
		}
	}
	for _, x := range r.Impossible.List {
		add(&nusav1.TopologyFinding{
			Kind: "impossible", From: x.Edge.From, To: x.Edge.To, Rtt: durationpb.New(x.RTT), Other: durationpb.New(x.Light),
		}, x)
	}
	for _, x := range r.Suspects {
		add(&nusav1.TopologyFinding{Kind: "location", From: x.Region}, x)
	}
	for _, x := range r.Doubtful.List {
		f := &nusav1.TopologyFinding{Kind: "doubtful", From: x.Edge.From, To: x.Edge.To, Rtt: durationpb.New(x.Edge.P50)}
		if x.Guess.Source != topology.None {
			f.Other = durationpb.New(x.Guess.P50)
		}
		add(f, x)
	}
	for _, x := range r.Cuts.List {
		add(&nusav1.TopologyFinding{Kind: "one_way", From: x.Blocked.From, To: x.Blocked.To, Other: durationpb.New(x.Working.P50)}, x)
	}
	for _, x := range r.Unreached.List {
		add(&nusav1.TopologyFinding{Kind: "unreachable", To: x.Region}, x)
	}
	for _, x := range r.Stale.List {
		add(&nusav1.TopologyFinding{Kind: "stale", From: x.From, To: x.To, Rtt: durationpb.New(x.P50)}, stale(x))
	}
	for _, x := range r.Asymmetries.List {
		add(&nusav1.TopologyFinding{
			Kind: "asymmetric", From: x.Slow.From, To: x.Slow.To, Rtt: durationpb.New(x.Slow.P50), Other: durationpb.New(x.Fast.P50),
		}, x)
	}
	for _, x := range r.Violations.List {
		add(&nusav1.TopologyFinding{
			Kind: "detour", From: x.From, To: x.To, Via: x.Via, Gain: x.Gain, Rtt: durationpb.New(x.Direct), Other: durationpb.New(x.Relayed),
		}, x)
	}
	return out
}

type stale topology.Edge

func (e stale) String() string {
	return fmt.Sprintf("%s → %s: the latest response is %s old", e.From, e.To, e.Age.Round(time.Second))
}
