package client

import (
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func sampleMatrix() *nusav1.MatrixResponse {
	const ms = time.Millisecond
	ok, stale, unreachable := nusav1.EdgeState_EDGE_STATE_OK, nusav1.EdgeState_EDGE_STATE_STALE, nusav1.EdgeState_EDGE_STATE_UNREACHABLE
	measured, predicted, estimated := nusav1.RTTSource_RTT_SOURCE_MEASURED, nusav1.RTTSource_RTT_SOURCE_PREDICTED, nusav1.RTTSource_RTT_SOURCE_ESTIMATED
	guess := edge("eastus", "japaneast", 158*ms, nusav1.EdgeState_EDGE_STATE_UNKNOWN, predicted)
	guess.Error, guess.Samples, guess.Method = 0.12, 0, ""
	doubted := edge("westus", "japaneast", 254*ms, ok, measured)
	doubted.Doubt = "is more than twice what third regions allow"
	return &nusav1.MatrixResponse{Regions: []string{"eastus", "japaneast", "southeastasia", "westus"}, Edges: []*nusav1.Edge{
		guess, edge("eastus", "southeastasia", 224*ms, stale, measured), edge("eastus", "westus", 400*time.Microsecond, ok, measured),
		edge("japaneast", "eastus", 163*ms, ok, measured), edge("japaneast", "southeastasia", 68400*time.Microsecond, ok, measured), edge("japaneast", "westus", 105*ms, ok, estimated),
		edge("southeastasia", "eastus", 400*ms, unreachable, measured), edge("southeastasia", "japaneast", 69*ms, ok, measured),
		{From: "southeastasia", To: "westus"},
		edge("westus", "eastus", 7250*time.Microsecond, ok, measured), doubted,
	}}
}

// seenMatrix is one as a region sees it.
func seenMatrix(alone *durationpb.Duration) *nusav1.MatrixResponse {
	return &nusav1.MatrixResponse{
		Regions: []string{"eastus", "japaneast"}, SeenBy: "eastus", Alone: alone,
		Edges: []*nusav1.Edge{edge("eastus", "japaneast", 156*time.Millisecond, nusav1.EdgeState_EDGE_STATE_OK, nusav1.RTTSource_RTT_SOURCE_MEASURED)},
	}
}

func samplePaths() *nusav1.PathResponse {
	return &nusav1.PathResponse{Paths: []*nusav1.Path{
		{Regions: []string{"southeastasia", "eastus"}, Rtt: lasting(224 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_MEASURED},
		{Regions: []string{"southeastasia", "japaneast", "eastus"}, Rtt: lasting(231 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_PREDICTED},
	}}
}

func sampleNearest() *nusav1.NearestResponse {
	return &nusav1.NearestResponse{Regions: []*nusav1.NearRegion{
		{Region: "japaneast", Rtt: lasting(69 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_MEASURED, State: nusav1.EdgeState_EDGE_STATE_OK},
		{Region: "westus", Rtt: lasting(180 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_ESTIMATED, State: nusav1.EdgeState_EDGE_STATE_UNKNOWN},
	}}
}

// sampleWeighed are paths in which load counts.
func sampleWeighed() *nusav1.PathResponse {
	ok := nusav1.EdgeState_EDGE_STATE_OK
	return &nusav1.PathResponse{Paths: []*nusav1.Path{
		{Regions: []string{"southeastasia", "eastus"}, Rtt: lasting(224 * time.Millisecond), Upper: lasting(224 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_MEASURED, State: ok,
			Cost: lasting(234 * time.Millisecond), CostRtt: lasting(224 * time.Millisecond), CostCpu: lasting(10 * time.Millisecond), CostQueue: lasting(0)},
		{Regions: []string{"southeastasia", "japaneast", "eastus"}, Rtt: lasting(231 * time.Millisecond), Upper: lasting(260 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_PREDICTED, State: nusav1.EdgeState_EDGE_STATE_STALE,
			Cost: lasting(270 * time.Millisecond), CostRtt: lasting(260 * time.Millisecond), CostCpu: lasting(10 * time.Millisecond), NoLoad: []string{"japaneast"}},
	}}
}

// sampleDoubted are paths of which one has become old, and one is not believed.
func sampleDoubted() *nusav1.PathResponse {
	return &nusav1.PathResponse{Paths: []*nusav1.Path{
		{Regions: []string{"southeastasia", "eastus"}, Rtt: lasting(224 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_MEASURED, State: nusav1.EdgeState_EDGE_STATE_STALE},
		{Regions: []string{"southeastasia", "japaneast", "eastus"}, Rtt: lasting(931 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_MEASURED, State: nusav1.EdgeState_EDGE_STATE_OK,
			Doubts: []string{"japaneast → eastus as measured is too long beside the round trips to third regions"}},
	}}
}

func sampleCheck() *nusav1.CheckTopologyResponse {
	const ms = time.Millisecond
	return &nusav1.CheckTopologyResponse{Regions: 4, Measured: 9, Totals: map[string]int32{"impossible": 1, "location": 1, "one_way": 1, "detour": 12, "novelty": 1}, Findings: []*nusav1.TopologyFinding{
		{Kind: "impossible", From: "eastus", To: "westus", Rtt: lasting(400 * time.Microsecond), Other: lasting(36 * ms), Message: "eastus → westus: 0.4ms over 3700 km, for which light in fibre takes 36.2ms: a wrong location, or somebody nearer answers"},
		{Kind: "location", From: "eastus", Message: "the location of eastus would explain 1 of them"},
		{Kind: "one_way", From: "southeastasia", To: "eastus", Other: lasting(224 * ms), Message: "southeastasia cannot reach eastus, which reaches it in 224.0ms: does it let probes in?"},
		{Kind: "detour", From: "westus", To: "japaneast", Via: "southeastasia", Gain: 0.31, Rtt: lasting(254 * ms), Other: lasting(175 * ms), Message: "westus → japaneast: 254.0ms, by southeastasia 175.0ms: 31% less"},
		{Kind: "detour", From: "eastus", To: "southeastasia", Via: "westus", Gain: 0.2, Rtt: lasting(224 * ms), Other: lasting(179 * ms), Message: "eastus → southeastasia: 224.0ms, by westus 179.0ms: 20% less"},
		{Kind: "novelty", From: "eastus", Message: "something that this client does not know"},
	}}
}

// wave is a field of so many points around a value; the tenth is missing.
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

func sampleEdges() []*nusav1.HistorySeries {
	var out []*nusav1.HistorySeries
	for i, to := range []string{"eastus", "southeastasia", "westus"} {
		rtt := float64(163 - 50*i)
		s := &nusav1.HistorySeries{Kind: kindEdge, Region: "japaneast", Key: to, Start: ago(time.Hour), Step: lasting(time.Minute), Resolution: lasting(5 * time.Second), Fields: []*nusav1.HistoryField{
			wave("p50_ms", 60, rtt, rtt/50), wave("p99_ms", 60, rtt*1.2, rtt/10), wave("loss", 60, 0.01, 0.01)}}
		if i == 2 {
			s.Fields = nil // never answered
		}
		out = append(out, s)
	}
	return out
}

// sampleUse fills its memory in twelve days.
func sampleUse() *nusav1.HistorySeries {
	memory := &nusav1.HistoryField{Name: "memory_used"}
	for i := range 60 {
		v := float64(8<<30) * (1 + float64(i)/100)
		memory.Mean, memory.Min, memory.Max, memory.Count = append(memory.Mean, v), append(memory.Min, v), append(memory.Max, v), append(memory.Count, 12)
	}
	in := func(days float64) *timestamppb.Timestamp { return ago(-time.Duration(days * float64(day))) }
	return &nusav1.HistorySeries{Kind: kindNode, Region: "japaneast", Key: "aaaabbbb-cccc", Name: "n1", Start: ago(6 * day), Step: lasting(144 * time.Minute), Resolution: lasting(10 * time.Minute),
		Fields: []*nusav1.HistoryField{wave("cpu", 60, 0.25, 0.1), memory, wave("network_in", 60, 2e6, 1e6), wave("load1", 60, 2.5, 0.5)},
		Trends: []*nusav1.HistoryTrend{
			{Field: "memory_used", Limit: 32 << 30, Known: true, At: in(12.2), Earliest: in(9.1), Latest: in(20.3), Why: "rising for 144h0m0s; the line explains 93 %"},
			{Field: "disk_used", Limit: 500 << 30, Why: "no trend: the values vary"},
		}}
}

func sampleOrigins() []*nusav1.OriginRecord {
	return []*nusav1.OriginRecord{
		{Domain: "*.example.com", Revision: 7, Origins: []*nusav1.Origin{{Region: "eastus", Weight: 2, Address: "203.0.113.7:443"}, {Region: "japaneast", Drained: true}}, Policy: &nusav1.OriginPolicy{Percentile: 99, MaxRtt: lasting(80 * time.Millisecond), MaxRelays: -1, NoGuesses: true}},
		{Domain: "shop.example.com", Revision: 12, Origins: []*nusav1.Origin{{Region: "southeastasia"}}},
	}
}

func sampleResolved() *nusav1.ResolveOriginResponse {
	return &nusav1.ResolveOriginResponse{Record: "*.example.com", Age: lasting(4 * time.Second),
		Choice: &nusav1.OriginChoice{Region: "eastus", Address: "203.0.113.7:443", Weight: 2, Why: "directly southeastasia → eastus 224.0ms measured; weight 2 makes 112ms of 224ms", Score: lasting(112 * time.Millisecond), Cost: lasting(224 * time.Millisecond), Path: samplePaths().GetPaths()[0]},
		Others: []*nusav1.OriginChoice{
			{Region: "japaneast", Weight: 1, Score: lasting(231 * time.Millisecond), Why: "119ms further: by a relay", Path: samplePaths().GetPaths()[1]},
			{Region: "westus", Weight: 1, Refused: true, Why: "is unreachable from southeastasia, and no relay helps"},
		}}
}
