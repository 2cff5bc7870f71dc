package global

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

func (s *testServer) topology() nusav1.TopologyClient { return nusav1.NewTopologyClient(s.conn) }

// row returns a region's row with the given round trips in milliseconds, by peer.
func row(ms map[string]float64) *nusav1.RegionMessage {
	out := &nusav1.LatencyRow{}
	for to, v := range ms {
		d := durationpb.New(time.Duration(v * float64(time.Millisecond)))
		out.Edges = append(out.Edges, &nusav1.Edge{
			To: to, State: nusav1.EdgeState_EDGE_STATE_OK, Source: nusav1.RTTSource_RTT_SOURCE_MEASURED,
			P50: d, P90: d, P99: d, Min: d, Samples: 10, Method: "udp",
		})
	}
	return &nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Latency{Latency: out}}
}

// waitEdge waits until ok returns true for an edge.
func (s *testServer) waitEdge(from, to, what string, ok func(*nusav1.Edge) bool) *nusav1.Edge {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testWait)
	defer cancel()
	watch, err := s.topology().Watch(ctx, &nusav1.MatrixRequest{From: from})
	if err != nil {
		s.t.Fatal(err)
	}
	var last *nusav1.Edge
	for {
		m, err := watch.Recv()
		if err != nil {
			s.t.Fatalf("%s to %s is not %s: %v; last: %v", from, to, what, err, last)
		}
		for _, e := range m.GetEdges() {
			if e.GetTo() == to {
				last = e
				if ok(e) {
					return e
				}
			}
		}
	}
}

func measured(e *nusav1.Edge) bool { return e.GetSource() == nusav1.RTTSource_RTT_SOURCE_MEASURED }

func TestPathsWeighed(t *testing.T) {
	s := newFederation().start(t, "g1")
	regions := map[string]*fakeRegion{}
	for _, name := range []string{"a", "b", "c"} {
		regions[name] = s.joined(name, func(r *fakeRegion) { r.fits = 1 })
	}
	regions["a"].send(row(map[string]float64{"b": 100, "c": 30}))
	regions["c"].send(row(map[string]float64{"b": 40}))
	s.waitEdge("a", "b", "measured", measured)
	s.waitEdge("c", "b", "measured", measured)
	ask := func(change func(*nusav1.PathRequest)) (*nusav1.PathResponse, error) {
		req := &nusav1.PathRequest{From: "a", To: "b"}
		change(req)
		return s.topology().Path(t.Context(), req)
	}
	best, err := ask(func(r *nusav1.PathRequest) { r.K = 2 })
	if err != nil || len(best.GetPaths()) != 2 {
		t.Fatalf("%v, %v", best, err)
	}
	p := best.GetPaths()[0]
	if fmt.Sprint(p.GetRegions()) != "[a c b]" || p.GetRtt().AsDuration() != 70e6 || p.GetCost().AsDuration() != 70e6 ||
		p.GetUpper().AsDuration() != 70e6 || p.GetState() != nusav1.EdgeState_EDGE_STATE_OK || len(p.GetNoLoad()) != 0 {
		t.Errorf("by latency: %v", p)
	}
	direct, err := ask(func(r *nusav1.PathRequest) { r.MaxRelays = -1 })
	if err != nil || len(direct.GetPaths()) != 1 || len(direct.GetPaths()[0].GetRegions()) != 2 {
		t.Errorf("without relays: %v, %v", direct, err)
	}
	// c's load is 90 %: the cost of queueing there makes the direct path cheaper.
	busy := regions["c"].report()
	busy.GetReport().Utilisation = &nusav1.Utilisation{Cpu: 0.9}
	regions["c"].send(busy)
	for name, cpu := range map[string]float64{"a": 0, "b": 0.5} {
		idle := regions[name].report()
		idle.GetReport().Utilisation, idle.GetReport().QueueLength = &nusav1.Utilisation{Cpu: cpu}, 4
		regions[name].send(idle)
	}
	s.waitLoads("a", "b", "c")
	weighed, err := ask(func(r *nusav1.PathRequest) {
		r.Weights = &nusav1.PathWeights{Cpu: durationpb.New(10 * time.Millisecond), Queue: durationpb.New(time.Millisecond)}
	})
	if err != nil {
		t.Fatal(err)
	}
	p = weighed.GetPaths()[0]
	if len(p.GetRegions()) != 2 || p.GetCostRtt().AsDuration() != 100e6 || p.GetCostCpu().AsDuration() != 5e6 ||
		p.GetCostQueue().AsDuration() != 4e6 || p.GetCost().AsDuration() != 109e6 || len(p.GetNoLoad()) != 0 {
		t.Errorf("weighed: %v", p)
	}
	for field, change := range map[string]func(*nusav1.PathRequest){
		"k":             func(r *nusav1.PathRequest) { r.K = 17 },
		"percentile":    func(r *nusav1.PathRequest) { r.Percentile = 60 },
		"max_relays":    func(r *nusav1.PathRequest) { r.MaxRelays = 7 },
		"weights.cpu":   func(r *nusav1.PathRequest) { r.Weights = &nusav1.PathWeights{Cpu: durationpb.New(-1)} },
		"weights.queue": func(r *nusav1.PathRequest) { r.Weights = &nusav1.PathWeights{Queue: durationpb.New(time.Hour)} },
		"to":            func(r *nusav1.PathRequest) { r.To = "nowhere" },
	} {
		if _, err := ask(change); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// waitLoads waits until the regions' latest reports contain their load.
func (s *testServer) waitLoads(names ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testWait)
	defer cancel()
	watch, err := nusav1.NewRegionsClient(s.conn).Watch(ctx, &nusav1.ListRegionsRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	left := map[string]bool{}
	for _, name := range names {
		left[name] = true
	}
	for len(left) > 0 {
		r, err := watch.Recv()
		if err != nil {
			s.t.Fatalf("no load of %v: %v", left, err)
		}
		if r.GetReport().GetUtilisation() != nil {
			delete(left, r.GetDefinition().GetName())
		}
	}
}

// TestWatchesAgree: all watches get the same numbers. A watch resumes where it ended, unless
// another server is active.
func TestWatchesAgree(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1")
	a, _ := s.joined("a"), s.joined("b")
	a.send(row(map[string]float64{"b": 50}))
	s.waitEdge("a", "b", "measured", measured)
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	first := watchMatrix(ctx, t, s, "")
	whole := first.next(t)
	if !whole.GetReset_() || len(whole.GetEdges()) != 2 || len(whole.GetRegions()) != 2 || whole.GetToken() == "" {
		t.Fatalf("at first: %v", whole)
	}
	a.send(row(map[string]float64{"b": 52})) // not noticeable
	a.send(row(map[string]float64{"b": 80}))
	change := first.next(t)
	if change.GetReset_() || len(change.GetEdges()) != 1 || change.GetEdges()[0].GetP50().AsDuration() != 80e6 {
		t.Fatalf("the change: %v", change)
	}
	a.send(row(map[string]float64{"b": 83}))
	s.waitView(t, "a", "b", 83*time.Millisecond)
	second := watchMatrix(ctx, t, s, "").next(t)
	for _, e := range second.GetEdges() {
		if e.GetFrom() == "a" && e.GetP50().AsDuration() != 80e6 {
			t.Errorf("another watch gets %v", e)
		}
	}
	resumed := watchMatrix(ctx, t, s, whole.GetToken()).next(t)
	if resumed.GetReset_() || len(resumed.GetEdges()) != 1 || resumed.GetToken() != change.GetToken() {
		t.Errorf("resumed: %v", resumed)
	}
	if _, err := s.topology().Watch(ctx, &nusav1.MatrixRequest{Token: strings.Repeat("x", 200)}); err == nil {
		other, _ := s.topology().Watch(ctx, &nusav1.MatrixRequest{Token: strings.Repeat("x", 200)})
		if _, err := other.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a long token: %v", err)
		}
	}
	for _, token := range []string{"nonsense", "e.1.1.", change.GetToken() + "b", strings.Replace(change.GetToken(), ".", ".f", 1)} {
		if got := watchMatrix(ctx, t, s, token).next(t); !got.GetReset_() {
			t.Errorf("token %q: %v", token, got)
		}
	}
	a.leave()
	s.stop()
	next := f.start(t, "g2")
	waitActive(t, next)
	if got := watchMatrix(ctx, t, next, change.GetToken()).next(t); !got.GetReset_() || len(got.GetRegions()) != 2 {
		t.Errorf("after the takeover: %v", got)
	}
}

type matrixWatch struct {
	grpc.ServerStreamingClient[nusav1.MatrixResponse]
}

func watchMatrix(ctx context.Context, t *testing.T, s *testServer, token string) matrixWatch {
	t.Helper()
	w, err := s.topology().Watch(ctx, &nusav1.MatrixRequest{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	return matrixWatch{w}
}

func (w matrixWatch) next(t *testing.T) *nusav1.MatrixResponse {
	t.Helper()
	m, err := w.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// waitView waits for a median in the matrix that the API returns.
func (s *testServer) waitView(t *testing.T, from, to string, p50 time.Duration) {
	t.Helper()
	deadline := time.Now().Add(testWait)
	for time.Now().Before(deadline) {
		m, err := s.topology().Matrix(t.Context(), &nusav1.MatrixRequest{From: from})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range m.GetEdges() {
			if e.GetTo() == to && e.GetP50().AsDuration() == p50 {
				return
			}
		}
	}
	t.Fatalf("%s to %s never was %s", from, to, p50)
}

// TestPredictions: pairs without a measurement are predicted from other pairs, a
// measurement that third regions contradict is shown as doubtful and not used, and
// each region gets the compact matrix.
func TestPredictions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		s := f.start(t, "g1", func(c *Config) {
			c.Clock = func() time.Duration { return time.Since(start) }
			c.ReportInterval, c.Lease = 5*time.Second, 30*time.Second
		})
		const n = 12
		name := func(i int) string { return fmt.Sprintf("r%02d", i) }
		// Regions on a line, 10 ms apart, each with 2 ms of access.
		rtt := func(i, j int) float64 { return math.Abs(float64(i-j))*10 + 2 }
		var regions []*fakeRegion
		for i := range n {
			regions = append(regions, s.joined(name(i), func(r *fakeRegion) {
				r.hello.Servers[0].Address = name(i) + ":7610"
			}))
		}
		for i, r := range regions {
			ms := map[string]float64{}
			for j := range n {
				if i != j && !(i < 2 && j > 9) && !(j < 2 && i > 9) {
					ms[name(j)] = rtt(i, j)
				}
			}
			if i == 5 {
				ms[name(6)] = 4000
			}
			r.send(row(ms))
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		m, err := s.topology().Matrix(t.Context(), &nusav1.MatrixRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range m.GetEdges() {
			far := (e.GetFrom() < "r02" && e.GetTo() > "r09") || (e.GetTo() < "r02" && e.GetFrom() > "r09")
			doubted := e.GetFrom() == "r05" && e.GetTo() == "r06"
			switch {
			case far != (e.GetSource() == nusav1.RTTSource_RTT_SOURCE_PREDICTED):
				t.Errorf("source of %v", e)
			case far && (e.GetError() <= 0 || e.GetP50().AsDuration() < 70*time.Millisecond || e.GetP50().AsDuration() > 150*time.Millisecond):
				t.Errorf("predicted: %v", e)
			case doubted != (e.GetDoubt() != ""):
				t.Errorf("wrong doubt: %v", e)
			case doubted && e.GetP50().AsDuration() != 4*time.Second:
				t.Errorf("a doubted measurement is not shown as it came: %v", e)
			}
		}
		check, err := s.topology().Check(t.Context(), &nusav1.CheckTopologyRequest{})
		if err != nil || check.GetTotals()["doubtful"] != 1 || check.GetRegions() != n || len(check.GetFindings()) == 0 ||
			check.GetFindings()[0].GetKind() != "doubtful" || check.GetFindings()[0].GetFrom() != "r05" {
			t.Errorf("check: %v, %v", check, err)
		}
		for _, req := range []*nusav1.CheckTopologyRequest{{Percentile: 1}, {MinGain: math.NaN()}, {MinGain: 1}, {Limit: -1}, {Limit: 1001}} {
			if _, err := s.topology().Check(t.Context(), req); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%v: %v", req, err)
			}
		}
		r := regions[3]
		r.mu.Lock()
		peers, compact, sent := r.peers, r.compact, r.matrices
		r.mu.Unlock()
		if got := peers.GetRegions()[0]; fmt.Sprint(got.GetGrpcAddresses()) != "[r00:7610]" {
			t.Errorf("peer %v", got)
		}
		medians, stale := map[string]time.Duration{}, 0
		if err := topo.Expand(compact, func(from, to string, p50 time.Duration, state topology.State) {
			medians[from+to] = p50
			if state != topology.OK {
				stale++
			}
		}); err != nil {
			t.Fatal(err)
		}
		if medians["r01r03"] != 22*time.Millisecond || medians["r00r11"] != 0 || medians["r05r06"] != 0 || len(medians) != n*(n-1)-9 || stale != 0 || sent != 1 {
			t.Errorf("%d matrices, the latest of %d medians, %d stale: %v", sent, len(medians), stale, medians)
		}
		for id := range uint64((5*time.Minute + 10*time.Second) / (10 * time.Second)) {
			for _, r := range regions {
				r.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Lease{Lease: &nusav1.LeaseRequest{Id: id + 1}}})
			}
			time.Sleep(10 * time.Second)
		}
		synctest.Wait()
		r.mu.Lock()
		if r.matrices != 2 {
			t.Errorf("%d matrices after five minutes more", r.matrices)
		}
		r.mu.Unlock()
		for _, r := range regions {
			r.leave()
		}
		s.stop()
	})
}

func TestHistoryNeedsARegion(t *testing.T) {
	s := newFederation().start(t, "g1")
	s.joined("alpha")
	for _, tc := range []struct {
		req  *nusav1.HistoryRequest
		code codes.Code
		text string
	}{
		{&nusav1.HistoryRequest{Kind: "cloud", Region: "alpha"}, codes.InvalidArgument, "kind"},
		{&nusav1.HistoryRequest{Kind: "node"}, codes.InvalidArgument, "alpha"},
		{&nusav1.HistoryRequest{Kind: "edge", Key: "alpha"}, codes.InvalidArgument, "region: is missing"},
		{&nusav1.HistoryRequest{Kind: "edge", Key: "nowhere"}, codes.InvalidArgument, `key: region "nowhere" does not exist; there are alpha`},
		{&nusav1.HistoryRequest{Kind: "pool", Region: "nowhere"}, codes.InvalidArgument, "alpha"},
		{&nusav1.HistoryRequest{Kind: "edge", Region: "alpha", Trend: true}, codes.InvalidArgument, "trend"},
		{&nusav1.HistoryRequest{Kind: "edge", Region: "alpha", Step: durationpb.New(-1)}, codes.InvalidArgument, "step"},
	} {
		if _, err := s.topology().History(t.Context(), tc.req); status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%v: %v", tc.req, err)
		}
	}
}
