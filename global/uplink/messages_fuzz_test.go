package uplink

import (
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// regionMessages are examples of what a region sends after its hello.
func regionMessages() []*nusav1.RegionMessage {
	edge := func(to string) *nusav1.Edge {
		return &nusav1.Edge{To: to, State: nusav1.EdgeState_EDGE_STATE_OK, P50: durationpb.New(time.Millisecond)}
	}
	at := &nusav1.Coordinate{Vector: make([]float64, topology.Dimensions), Error: 0.5}
	odd := &nusav1.Coordinate{Vector: []float64{math.NaN(), math.Inf(1)}}
	long := string(make([]byte, 10_000))
	return []*nusav1.RegionMessage{
		{Kind: &nusav1.RegionMessage_Report{Report: &nusav1.RegionReport{Shape: &nusav1.RegionShape{Fits: []*nusav1.FitCount{{Ask: 7, Message: long}}, Bins: make([]*nusav1.ShapeBin, 100)}}}},
		{Kind: &nusav1.RegionMessage_Fits{Fits: &nusav1.FitCounts{Fits: []*nusav1.FitCount{{Ask: 7, Message: long}, {}}}}},
		{Kind: &nusav1.RegionMessage_Summaries{Summaries: &nusav1.JobSummaries{Full: true, Last: true, Summaries: []*nusav1.JobSummary{{Namespace: "default", Job: "web"}, {Job: "a/b"}}, Removed: []string{"x", "y/z"}, Position: &nusav1.Position{Epoch: "p", Sequence: 3}}}},
		{Kind: &nusav1.RegionMessage_Summaries{Summaries: &nusav1.JobSummaries{Summaries: []*nusav1.JobSummary{{}, {Disconnected: []*nusav1.DisconnectedInstances{{Node: long}}}}}}},
		{Kind: &nusav1.RegionMessage_Latency{Latency: &nusav1.LatencyRow{Full: true, Edges: []*nusav1.Edge{edge("beta"), edge("alpha"), edge("nowhere")}, Coordinate: at}}},
		{Kind: &nusav1.RegionMessage_Latency{Latency: &nusav1.LatencyRow{Edges: []*nusav1.Edge{{To: "beta", Loss: math.NaN()}}, Coordinate: odd}}},
		{Kind: &nusav1.RegionMessage_Row{Row: &nusav1.RowChanges{Full: true, Coordinate: odd, Confirmed: durationpb.New(-1), Position: &nusav1.Position{Epoch: "p"}}}},
		{Kind: &nusav1.RegionMessage_Row{Row: &nusav1.RowChanges{Edges: []byte("garbage"), Unconfirmed: []string{"beta"}}}},
		{Kind: &nusav1.RegionMessage_Update{Update: &nusav1.RegionUpdate{Servers: make([]*nusav1.RegionalServer, 100)}}},
		{Kind: &nusav1.RegionMessage_AuthAck{AuthAck: &nusav1.AuthAck{Hash: 7, Version: 1 << 60}}},
		{Kind: &nusav1.RegionMessage_Lease{Lease: &nusav1.LeaseRequest{Id: 1 << 63, Granted: 9}}, AppliedIndex: 1 << 63},
		{Kind: &nusav1.RegionMessage_OrdersAck{OrdersAck: &nusav1.Position{Epoch: "e", Sequence: 1 << 63}}},
		{Kind: &nusav1.RegionMessage_Goodbye{Goodbye: &nusav1.Goodbye{}}},
	}
}

// FuzzRegionMessages: whatever a region sends after its hello, the message is refused, or what is kept of it
// is bounded and plausible. Nothing that the global tier knows of another region changes.
func FuzzRegionMessages(f *testing.F) {
	for _, m := range regionMessages() {
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := &nusav1.RegionMessage{}
		if proto.Unmarshal(raw, m) != nil || m.GetAnswers() != nil { // those are those of FuzzAnswers in package region
			return
		}
		s := newServer(t, func() time.Duration { return time.Hour }, "alpha", "beta")
		c := s.live["alpha"]
		c.inbox = link.NewInbox[summary](maxSummaries)
		c.opened.Store(true)
		for _, r := range s.st.Regions {
			r.SummaryKeys = map[string]int32{}
		}
		beta := *s.st.Regions["beta"]
		if !s.handleLease(c, m) {
			if rest, err := s.handle(t.Context(), c, m, false); err != nil && len(rest) > 0 {
				t.Fatal(err)
			}
		}
		if now := *s.st.Regions["beta"]; now.Report != beta.Report || now.Life != beta.Life || now.Row != beta.Row || now.Coordinate != beta.Coordinate ||
			now.Auth != beta.Auth || len(now.Servers)+len(now.SummaryKeys) > 0 || now.SummariesAt != beta.SummariesAt {
			t.Fatalf("region beta became %+v", now)
		}
		if len(s.st.Regions) != 2 || len(s.st.Jobs) != 0 {
			t.Fatalf("%d regions, %d jobs", len(s.st.Regions), len(s.st.Jobs))
		}
		checkKept(t, s.st.Regions["alpha"])
		if e := s.st.TopologyView().Edge("alpha", "nowhere"); e.Source == topology.Measured {
			t.Fatalf("an edge to a region that does not exist: %+v", e)
		}
		if e := s.st.TopologyView().Edge("beta", "alpha"); e.Source == topology.Measured && !e.ReverseReachable {
			t.Fatalf("an edge of beta: %+v", e)
		}
	})
}

// checkKept checks what is kept of a region's messages.
func checkKept(t *testing.T, r *state.Region) {
	t.Helper()
	if n := proto.Size(r.Report); n > maxReport || len(r.Servers) > maxServers {
		t.Fatalf("a report of %d bytes, %d servers", n, len(r.Servers))
	}
	shape := r.Report.GetShape()
	if len(shape.GetFits()) > maxFits || len(shape.GetBins()) > maxBins {
		t.Fatalf("%d fits, %d bins", len(shape.GetFits()), len(shape.GetBins()))
	}
	for _, fit := range shape.GetFits() {
		if len(fit.GetMessage()) > state.MaxMessage {
			t.Fatalf("a message of %d bytes", len(fit.GetMessage()))
		}
	}
	if at := r.Coordinate; at != nil {
		if len(at.GetVector()) != topology.Dimensions {
			t.Fatalf("%d dimensions", len(at.GetVector()))
		}
		for _, v := range append([]float64{at.GetHeight(), at.GetError(), at.GetAdjustment()}, at.GetVector()...) {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				t.Fatalf("the coordinate %v", at)
			}
		}
	}
}

// TestImpossibleCoordinatesOfHellos: a hello with an impossible coordinate opens a session, and the
// coordinate is not kept.
func TestImpossibleCoordinatesOfHellos(t *testing.T) {
	good := &nusav1.Coordinate{Vector: make([]float64, topology.Dimensions), Error: 1}
	for what, c := range map[string]struct {
		at, want *nusav1.Coordinate
	}{
		"good":             {good, good},
		"none":             {nil, nil},
		"other dimensions": {&nusav1.Coordinate{Vector: []float64{1}}, nil},
		"not a number":     {&nusav1.Coordinate{Vector: make([]float64, topology.Dimensions), Height: math.NaN()}, nil},
	} {
		s := newServer(t, func() time.Duration { return time.Hour }, "alpha")
		session := s.newSession(func(error) {})
		session.region = "alpha"
		welcomed, err := s.welcome(session, &nusav1.RegionHello{
			Definition: &nusav1.RegionDefinition{Name: "alpha"}, ClusterId: "alpha", Incarnation: 1, Term: 1, Protocol: protocol, Coordinate: c.at,
		})
		if got := s.st.Regions["alpha"].Coordinate; err != nil || !welcomed || got != c.want {
			t.Errorf("%s: %v, %v, and the coordinate is %v", what, welcomed, err, got)
		}
	}
}
