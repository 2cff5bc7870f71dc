package sample

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func Matrix() *nusav1.MatrixResponse {
	const ms = time.Millisecond
	ok, stale, unreachable := nusav1.EdgeState_EDGE_STATE_OK, nusav1.EdgeState_EDGE_STATE_STALE, nusav1.EdgeState_EDGE_STATE_UNREACHABLE
	measured, predicted, estimated := nusav1.RTTSource_RTT_SOURCE_MEASURED, nusav1.RTTSource_RTT_SOURCE_PREDICTED, nusav1.RTTSource_RTT_SOURCE_ESTIMATED
	guess := Edge("eastus", "japaneast", 158*ms, nusav1.EdgeState_EDGE_STATE_UNKNOWN, predicted)
	guess.Error, guess.Samples, guess.Method = 0.12, 0, ""
	disbelieved := Edge("westus", "japaneast", 254*ms, ok, measured)
	disbelieved.Doubt = "is more than twice what third regions allow"
	return &nusav1.MatrixResponse{Regions: []string{"eastus", "japaneast", "southeastasia", "westus"}, Edges: []*nusav1.Edge{
		guess, Edge("eastus", "southeastasia", 224*ms, stale, measured), Edge("eastus", "westus", 400*time.Microsecond, ok, measured),
		Edge("japaneast", "eastus", 163*ms, ok, measured), Edge("japaneast", "southeastasia", 68400*time.Microsecond, ok, measured), Edge("japaneast", "westus", 105*ms, ok, estimated),
		Edge("southeastasia", "eastus", 400*ms, unreachable, measured), Edge("southeastasia", "japaneast", 69*ms, ok, measured),
		{From: "southeastasia", To: "westus"},
		Edge("westus", "eastus", 7250*time.Microsecond, ok, measured), disbelieved,
	}}
}

// SeenMatrix returns a matrix as one region sees it.
func SeenMatrix(alone *durationpb.Duration) *nusav1.MatrixResponse {
	return &nusav1.MatrixResponse{
		Regions: []string{"eastus", "japaneast"}, SeenBy: "eastus", Alone: alone,
		Edges: []*nusav1.Edge{Edge("eastus", "japaneast", 156*time.Millisecond, nusav1.EdgeState_EDGE_STATE_OK, nusav1.RTTSource_RTT_SOURCE_MEASURED)},
	}
}

func Paths() *nusav1.PathResponse {
	return &nusav1.PathResponse{Paths: []*nusav1.Path{
		{Regions: []string{"southeastasia", "eastus"}, Rtt: Lasting(224 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_MEASURED},
		{Regions: []string{"southeastasia", "japaneast", "eastus"}, Rtt: Lasting(231 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_PREDICTED},
	}}
}

func Nearest() *nusav1.NearestResponse {
	return &nusav1.NearestResponse{Regions: []*nusav1.NearRegion{
		{Region: "japaneast", Rtt: Lasting(69 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_MEASURED, State: nusav1.EdgeState_EDGE_STATE_OK},
		{Region: "westus", Rtt: Lasting(180 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_ESTIMATED, State: nusav1.EdgeState_EDGE_STATE_UNKNOWN},
	}}
}

// WeighedPaths returns paths whose cost includes load.
func WeighedPaths() *nusav1.PathResponse {
	ok := nusav1.EdgeState_EDGE_STATE_OK
	return &nusav1.PathResponse{Paths: []*nusav1.Path{
		{Regions: []string{"southeastasia", "eastus"}, Rtt: Lasting(224 * time.Millisecond), Upper: Lasting(224 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_MEASURED, State: ok,
			Cost: Lasting(234 * time.Millisecond), CostRtt: Lasting(224 * time.Millisecond), CostCpu: Lasting(10 * time.Millisecond), CostQueue: Lasting(0)},
		{Regions: []string{"southeastasia", "japaneast", "eastus"}, Rtt: Lasting(231 * time.Millisecond), Upper: Lasting(260 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_PREDICTED, State: nusav1.EdgeState_EDGE_STATE_STALE,
			Cost: Lasting(270 * time.Millisecond), CostRtt: Lasting(260 * time.Millisecond), CostCpu: Lasting(10 * time.Millisecond), NoLoad: []string{"japaneast"}},
	}}
}

// DoubtedPaths returns a path with a stale edge, and a path with an edge whose value is
// doubted.
func DoubtedPaths() *nusav1.PathResponse {
	return &nusav1.PathResponse{Paths: []*nusav1.Path{
		{Regions: []string{"southeastasia", "eastus"}, Rtt: Lasting(224 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_MEASURED, State: nusav1.EdgeState_EDGE_STATE_STALE},
		{Regions: []string{"southeastasia", "japaneast", "eastus"}, Rtt: Lasting(931 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_MEASURED, State: nusav1.EdgeState_EDGE_STATE_OK,
			Doubts: []string{"japaneast → eastus as measured is too long beside the round trips to third regions"}},
	}}
}

func Check() *nusav1.CheckTopologyResponse {
	const ms = time.Millisecond
	return &nusav1.CheckTopologyResponse{Regions: 4, Measured: 9, Totals: map[string]int32{"impossible": 1, "location": 1, "one_way": 1, "detour": 12, "novelty": 1}, Findings: []*nusav1.TopologyFinding{
		{Kind: "impossible", From: "eastus", To: "westus", Rtt: Lasting(400 * time.Microsecond), Other: Lasting(36 * ms), Message: "eastus → westus: 0.4ms over 3700 km, for which light in fibre takes 36.2ms: a wrong location, or a nearer host answers"},
		{Kind: "location", From: "eastus", Message: "the location of eastus would explain 1 of them"},
		{Kind: "one_way", From: "southeastasia", To: "eastus", Other: Lasting(224 * ms), Message: "southeastasia cannot reach eastus, which reaches it in 224.0ms: does it let probes in?"},
		{Kind: "detour", From: "westus", To: "japaneast", Via: "southeastasia", Gain: 0.31, Rtt: Lasting(254 * ms), Other: Lasting(175 * ms), Message: "westus → japaneast: 254.0ms, by southeastasia 175.0ms: 31% less"},
		{Kind: "detour", From: "eastus", To: "southeastasia", Via: "westus", Gain: 0.2, Rtt: Lasting(224 * ms), Other: Lasting(179 * ms), Message: "eastus → southeastasia: 224.0ms, by westus 179.0ms: 20% less"},
		{Kind: "novelty", From: "eastus", Message: "something that this client does not know"},
	}}
}

// wave returns a field of n points that swing around a value. The tenth point has no value.
func wave(name string, n int, value, swing float64) *nusav1.HistoryField {
	f := &nusav1.HistoryField{Name: name}
	for i := range n {
		v := value + swing*math.Sin(float64(i)/5)
		c := int32(12)
		if i == 9 {
			v, c = 0, 0
		}
		f.Mean, f.Min, f.Max, f.Count = append(f.Mean, v), append(f.Min, v*0.95), append(f.Max, v*1.1), append(f.Count, c)
	}
	return f
}

func EdgeHistory() []*nusav1.HistorySeries {
	var out []*nusav1.HistorySeries
	for i, to := range []string{"eastus", "southeastasia", "westus"} {
		rtt := float64(163 - 50*i)
		s := &nusav1.HistorySeries{Kind: "edge", Region: "japaneast", Key: to, Start: Ago(time.Hour), Step: Lasting(time.Minute), Resolution: Lasting(5 * time.Second), Fields: []*nusav1.HistoryField{
			wave("p50_ms", 60, rtt, rtt/50), wave("p99_ms", 60, rtt*1.2, rtt/10), wave("loss", 60, 0.01, 0.01)}}
		if i == 2 {
			s.Fields = nil // no probe of the region ever succeeded
		}
		out = append(out, s)
	}
	return out
}

// NodeHistory returns the history of a node whose memory will be full in twelve days.
func NodeHistory() *nusav1.HistorySeries {
	memory := &nusav1.HistoryField{Name: "memory_used"}
	for i := range 60 {
		v := float64(8<<30) * (1 + float64(i)/100)
		memory.Mean, memory.Min, memory.Max, memory.Count = append(memory.Mean, v), append(memory.Min, v), append(memory.Max, v), append(memory.Count, 12)
	}
	in := func(days float64) *timestamppb.Timestamp { return Ago(-time.Duration(days * float64(cli.Day))) }
	return &nusav1.HistorySeries{Kind: "node", Region: "japaneast", Key: "aaaabbbb-cccc", Name: "n1", Start: Ago(6 * cli.Day), Step: Lasting(144 * time.Minute), Resolution: Lasting(10 * time.Minute),
		Fields: []*nusav1.HistoryField{wave("cpu", 60, 0.25, 0.1), memory, wave("network_in", 60, 2e6, 1e6), wave("load1", 60, 2.5, 0.5)},
		Trends: []*nusav1.HistoryTrend{
			{Field: "memory_used", Limit: 32 << 30, Known: true, At: in(12.2), Earliest: in(9.1), Latest: in(20.3), Why: "rising for 144h0m0s; the line explains 93 %"},
			{Field: "disk_used", Limit: 500 << 30, Why: "no trend: the values vary"},
		}}
}

func Origins() []*nusav1.OriginRecord {
	return []*nusav1.OriginRecord{
		{Domain: "*.example.com", Revision: 7, Origins: []*nusav1.Origin{{Region: "eastus", Weight: 2, Address: "203.0.113.7:443"}, {Region: "japaneast", Drained: true}}, Policy: &nusav1.OriginPolicy{Percentile: 99, MaxRtt: Lasting(80 * time.Millisecond), MaxRelays: -1, NoGuesses: true}},
		{Domain: "shop.example.com", Revision: 12, Origins: []*nusav1.Origin{{Region: "southeastasia"}}},
	}
}

func Resolved() *nusav1.ResolveOriginResponse {
	return &nusav1.ResolveOriginResponse{Record: "*.example.com", Age: Lasting(4 * time.Second),
		Choice: &nusav1.OriginChoice{Region: "eastus", Address: "203.0.113.7:443", Weight: 2, Why: "directly southeastasia → eastus 224.0ms measured; weight 2 makes 112ms of 224ms", Score: Lasting(112 * time.Millisecond), Cost: Lasting(224 * time.Millisecond), Path: Paths().GetPaths()[0]},
		Others: []*nusav1.OriginChoice{
			{Region: "japaneast", Weight: 1, Score: Lasting(231 * time.Millisecond), Why: "119ms further: by a relay", Path: Paths().GetPaths()[1]},
			{Region: "westus", Weight: 1, Refused: true, Why: "is unreachable from southeastasia, and no relay helps"},
		}}
}

func Edge(from, to string, p50 time.Duration, state nusav1.EdgeState, source nusav1.RTTSource) *nusav1.Edge {
	return &nusav1.Edge{From: from, To: to, State: state, Source: source, P50: durationpb.New(p50), P90: durationpb.New(p50 + p50/10), P99: durationpb.New(p50 + p50/5),
		Min: durationpb.New(p50 - p50/20), Jitter: durationpb.New(p50 / 100), Loss: 0.015, Samples: 20, Age: durationpb.New(12 * time.Second), Method: "udp"}
}

// FederationOf returns a matrix of n regions on a line, 3 ms apart, with every kind of
// edge.
func FederationOf(n int) *nusav1.MatrixResponse {
	m := &nusav1.MatrixResponse{}
	for i := range n {
		m.Regions = append(m.Regions, fmt.Sprintf("region-%02d", i+1))
	}
	for i, a := range m.Regions {
		for j, b := range m.Regions {
			if i == j {
				continue
			}
			e := Edge(a, b, time.Duration(3*max(i-j, j-i))*time.Millisecond, nusav1.EdgeState_EDGE_STATE_OK, nusav1.RTTSource_RTT_SOURCE_MEASURED)
			switch (7*i + 3*j) % 50 {
			case 1:
				e.State = nusav1.EdgeState_EDGE_STATE_STALE
			case 2:
				e.State = nusav1.EdgeState_EDGE_STATE_UNREACHABLE
			case 3:
				e.Source = nusav1.RTTSource_RTT_SOURCE_PREDICTED
			}
			m.Edges = append(m.Edges, e)
		}
	}
	return m
}

// CrowdedTree returns a tree in which one region has four nodes.
func CrowdedTree() *nusav1.TopologyTree {
	t := Tree()
	well := func(name string) *nusav1.Node {
		return &nusav1.Node{Id: name + "-id", Name: name, Region: "japaneast", State: nusav1.NodeState_NODE_STATE_READY}
	}
	t.Nodes = append([]*nusav1.Node{well("n0")}, append(t.Nodes, well("n3"))...)
	return t
}
