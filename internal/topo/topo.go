package topo

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// EdgeToProto converts an edge. An edge without a value has no durations. An edge that was
// not measured has no minimum, no jitter and no age.
func EdgeToProto(e topology.Edge) *nusav1.Edge {
	out := &nusav1.Edge{
		From: e.From, To: e.To, State: nusav1.EdgeState(e.State), Source: nusav1.RTTSource(e.Source),
		Loss: e.Loss, Samples: int32(e.Samples), Method: e.Method, Error: e.Error,
		LossOut: e.LossOut, LossBack: e.LossBack, SetAside: int32(e.SetAside), Heard: e.ReverseReachable, Doubt: e.Doubt,
	}
	if e.Source == topology.None {
		return out
	}
	out.P50, out.P90, out.P99 = durationpb.New(e.P50), durationpb.New(e.P90), durationpb.New(e.P99)
	if e.Source == topology.Measured {
		out.Min, out.Jitter, out.Age = durationpb.New(e.Min), durationpb.New(e.Jitter), durationpb.New(e.Age)
	}
	return out
}

// EdgeFromProto converts an edge.
func EdgeFromProto(e *nusav1.Edge) topology.Edge {
	return topology.Edge{
		From: e.GetFrom(), To: e.GetTo(), State: topology.State(e.GetState()), Source: topology.Source(e.GetSource()),
		P50: e.GetP50().AsDuration(), P90: e.GetP90().AsDuration(), P99: e.GetP99().AsDuration(),
		Min: e.GetMin().AsDuration(), Jitter: e.GetJitter().AsDuration(),
		Loss: e.GetLoss(), Samples: int(e.GetSamples()), Age: e.GetAge().AsDuration(),
		Method: e.GetMethod(), Error: e.GetError(), Doubt: e.GetDoubt(),
		LossOut: e.GetLossOut(), LossBack: e.GetLossBack(), SetAside: int(e.GetSetAside()), ReverseReachable: e.GetHeard(),
	}
}

const (
	// maxRTT is more than any round trip that a probe waits for.
	maxRTT = time.Minute
	// maxAge is more than any age of a measurement, and far below the overflow of
	// time.Duration.
	maxAge = 100 * 365 * 24 * time.Hour
)

// PlausibleEdge reports whether the values of an edge that a region sent are possible.
func PlausibleEdge(e *nusav1.Edge) bool {
	for _, d := range []time.Duration{
		e.GetP50().AsDuration(), e.GetP90().AsDuration(), e.GetP99().AsDuration(),
		e.GetMin().AsDuration(), e.GetJitter().AsDuration(),
	} {
		if d < 0 || d > maxRTT {
			return false
		}
	}
	share := func(f float64) bool { return f >= 0 && f <= 1 } // false for NaN
	age := e.GetAge().AsDuration()
	return share(e.GetLoss()) && share(e.GetLossOut()) && share(e.GetLossBack()) && age >= 0 && age <= maxAge &&
		e.GetState() >= 0 && e.GetState() <= nusav1.EdgeState_EDGE_STATE_UNREACHABLE
}

// LocationFromProto converts a location, which may be invalid. It returns nil for nil.
func LocationFromProto(l *nusav1.Location) *topology.Location {
	if l == nil {
		return nil
	}
	return &topology.Location{Latitude: l.GetLatitude(), Longitude: l.GetLongitude(), Name: l.GetName()}
}

// CoordinateFromProto converts a network coordinate. It returns nil for nil.
func CoordinateFromProto(c *nusav1.Coordinate) *topology.Coordinate {
	if c == nil {
		return nil
	}
	return &topology.Coordinate{Vector: c.GetVector(), Error: c.GetError(), Adjustment: c.GetAdjustment(), Height: c.GetHeight()}
}

// PlausibleCoordinate returns a coordinate that a region sent, or nil if its values are impossible.
// Other regions would get it, and one with other dimensions would displace theirs.
func PlausibleCoordinate(c *nusav1.Coordinate) *nusav1.Coordinate {
	if c == nil || !CoordinateFromProto(c).Valid() {
		return nil
	}
	return c
}

// CoordinateToProto converts a network coordinate. It returns nil for nil.
func CoordinateToProto(c *topology.Coordinate) *nusav1.Coordinate {
	if c == nil {
		return nil
	}
	return &nusav1.Coordinate{Vector: c.Vector, Error: c.Error, Adjustment: c.Adjustment, Height: c.Height}
}

// pageBytes is the size at which a message of edges ends. The last row of a message, of
// less than half a megabyte, may exceed this size. gRPC accepts 4 MiB by default.
const pageBytes = 2 << 20

// MatrixPage returns the response to a request for edges: the row of the region `from`, or
// as many rows after the region `after` as fit into a message.
func MatrixPage(v *topology.View, req *nusav1.MatrixRequest) *nusav1.MatrixResponse {
	names := v.Names()
	out := &nusav1.MatrixResponse{Regions: names}
	first, last := 0, len(names)-1
	if from := req.GetFrom(); from != "" {
		first, _ = slices.BinarySearch(names, from)
		last = min(first, last)
	} else if after := req.GetAfter(); after != "" {
		at, there := slices.BinarySearch(names, after)
		first = at
		if there {
			first++
		}
	}
	size := 0
	for i := first; i <= last; i++ {
		for j := range names {
			if i != j {
				e := EdgeToProto(v.EdgeAt(i, j))
				out.Edges = append(out.Edges, e)
				size += proto.Size(e)
			}
		}
		if size >= pageBytes && i < last {
			out.Next = names[i]
			break
		}
	}
	return out
}

// sendRows sends edges to a watch. row returns the edges of the region with index i in
// names. If from is not empty, only the edges of that region are sent. Each message has as
// many whole rows as fit, and the last message has the token. If there are no edges and
// reset is false, sendRows sends nothing. It returns false if row does, which means that
// the change log was replaced meanwhile.
func sendRows(names []string, from string, row func(i int) ([]topology.Edge, bool), reset bool, token string, send func(*nusav1.MatrixResponse) error) (bool, error) {
	out, size := &nusav1.MatrixResponse{Regions: names, Reset_: reset}, 0
	for i, name := range names {
		if from != "" && name != from {
			continue
		}
		edges, same := row(i)
		if !same {
			return false, nil
		}
		if size >= pageBytes && len(edges) > 0 {
			if err := send(out); err != nil {
				return true, err
			}
			out, size = &nusav1.MatrixResponse{}, 0
		}
		for _, e := range edges {
			w := EdgeToProto(e)
			out.Edges = append(out.Edges, w)
			size += proto.Size(w)
		}
	}
	if len(out.GetEdges()) == 0 && !reset {
		return true, nil
	}
	out.Token = token
	return true, send(out)
}

func PathToProto(p topology.Path) *nusav1.Path {
	out := &nusav1.Path{
		Regions: p.Regions, Rtt: durationpb.New(p.RTT), Source: nusav1.RTTSource(p.Source),
		Upper: durationpb.New(p.Upper), State: nusav1.EdgeState(p.State), Cost: durationpb.New(p.Cost.Total()),
		CostRtt: durationpb.New(p.Cost.RTT), CostCpu: durationpb.New(p.Cost.CPU), CostQueue: durationpb.New(p.Cost.Queue),
		NoLoad: p.UnknownLoad,
	}
	for _, d := range p.Doubts {
		out.Doubts = append(out.Doubts, d.String())
	}
	return out
}

func PathsToProto(paths []topology.Path) *nusav1.PathResponse {
	out := &nusav1.PathResponse{}
	for _, p := range paths {
		out.Paths = append(out.Paths, PathToProto(p))
	}
	return out
}

func NeighboursToProto(near []topology.Neighbour) *nusav1.NearestResponse {
	out := &nusav1.NearestResponse{}
	for _, n := range near {
		out.Regions = append(out.Regions, &nusav1.NearRegion{
			Region: n.Region, Rtt: durationpb.New(n.Distance.RTT),
			Source: nusav1.RTTSource(n.Distance.Source), State: nusav1.EdgeState(n.Distance.State),
		})
	}
	return out
}

// Plausible does what PlausibleEdge does, for an edge in the form of package topology.
func Plausible(e *topology.Edge) bool {
	for _, d := range []time.Duration{e.P50, e.P90, e.P99, e.Min, e.Jitter} {
		if d < 0 || d > maxRTT {
			return false
		}
	}
	share := func(f float64) bool { return f >= 0 && f <= 1 } // false for NaN
	return share(e.Loss) && share(e.LossOut) && share(e.LossBack) && e.Age >= 0 && e.Age <= maxAge && e.State <= topology.Unreachable
}
