package sim_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
	"github.com/nusa-scheduler/nusa/sim/simnet"
)

// islands are the regions of these tests. From alpha to delta the path over beta is shorter than
// the direct one.
var islands = []string{"alpha", "beta", "gamma", "delta"}

// distances are the changeable round trips between hosts of islands, in ms.
type distances struct {
	mu sync.Mutex
	ms [4][4]float64
}

func newDistances() *distances {
	return &distances{ms: [4][4]float64{
		{0.2, 20, 60, 200},
		{20, 0.2, 50, 40},
		{60, 50, 0.2, 90},
		{200, 40, 90, 0.2},
	}}
}

func (d *distances) set(a, b string, ms float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i, j := slices.Index(islands, a), slices.Index(islands, b)
	d.ms[i][j], d.ms[j][i] = ms, ms
}

func (d *distances) of(a, b string) float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ms[slices.Index(islands, a)][slices.Index(islands, b)]
}

// oneWay returns the latency between two hosts. Hosts outside the regions, such as operators'
// hosts, are near to all.
func (d *distances) oneWay(from, to string) time.Duration {
	var i, j, rest int
	fmt.Sscanf(from, "10.%d.%d", &i, &rest)
	fmt.Sscanf(to, "10.%d.%d", &j, &rest)
	if i < 1 || j < 1 || i > len(islands) || j > len(islands) {
		return time.Millisecond
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Duration(d.ms[i-1][j-1] / 2 * float64(time.Millisecond))
}

// whole checks that a server's matrix has every edge of the federation measured, in the expected
// state, and with its real round trip.
func (d *distances) whole(ctx context.Context, conn *grpc.ClientConn, state nusav1.EdgeState) error {
	m, err := nusav1.NewTopologyClient(conn).Matrix(ctx, &nusav1.MatrixRequest{})
	if err != nil {
		return err
	}
	if got := len(m.GetEdges()); got != len(islands)*(len(islands)-1) {
		return fmt.Errorf("%d edges", got)
	}
	for _, e := range m.GetEdges() {
		want := d.of(e.GetFrom(), e.GetTo())
		ms := e.GetP50().AsDuration().Seconds() * 1000
		if e.GetSource() != nusav1.RTTSource_RTT_SOURCE_MEASURED || math.Abs(ms-want) > 0.01*want+0.3 {
			return fmt.Errorf("%s → %s: %v ms %v, it is %v", e.GetFrom(), e.GetTo(), ms, e.GetSource(), want)
		}
		if e.GetState() != state {
			return fmt.Errorf("%s → %s is %v after %v", e.GetFrom(), e.GetTo(), e.GetState(), e.GetAge().AsDuration())
		}
	}
	return nil
}

// answers checks the queries over matrix and origin records as the server's region serves them.
func answers(ctx context.Context, conn *grpc.ClientConn, region string, record *nusav1.OriginRecord) error {
	topology, origins := nusav1.NewTopologyClient(conn), nusav1.NewOriginsClient(conn)
	near, err := topology.Nearest(ctx, &nusav1.NearestRequest{Region: "delta"})
	if err != nil {
		return err
	}
	var order []string
	for _, n := range near.GetRegions() {
		order = append(order, n.GetRegion())
	}
	if got := strings.Join(order, " "); got != "delta beta gamma alpha" && got != "beta gamma alpha" {
		return fmt.Errorf("nearest to delta: %s", got)
	}
	path, err := topology.Path(ctx, &nusav1.PathRequest{From: "alpha", To: "delta", K: 2})
	if err != nil {
		return err
	}
	if best := path.GetPaths()[0]; strings.Join(best.GetRegions(), " ") != "alpha beta delta" || math.Abs(best.GetRtt().AsDuration().Seconds()-0.06) > 0.002 {
		return fmt.Errorf("path: %v", best)
	}
	list, err := origins.List(ctx, &nusav1.ListOriginsRequest{})
	if err != nil {
		return err
	}
	if got := list.GetRecords(); len(got) != 1 || !proto.Equal(got[0].GetPolicy(), record.GetPolicy()) || len(got[0].GetOrigins()) != len(record.GetOrigins()) {
		return fmt.Errorf("records: %v", got)
	}
	// From alpha, delta over beta's relay is nearer than gamma at 60 ms.
	for client, want := range map[string]string{"alpha": "gamma", "beta": "delta", "gamma": "gamma", "delta": "delta"} {
		r, err := origins.Resolve(ctx, &nusav1.ResolveOriginRequest{Domain: "www.example.com", Region: client})
		if err != nil {
			return err
		}
		if r.GetChoice().GetRegion() != want || r.GetChoice().GetRefused() {
			return fmt.Errorf("a client in %s is served by %v, not %s", client, r.GetChoice(), want)
		}
	}
	// The policy limits the path to 100 ms and allows no relay, so no other origin serves a client
	// in alpha.
	r, err := origins.Resolve(ctx, &nusav1.ResolveOriginRequest{Domain: "www.example.com", Region: "alpha"})
	if err != nil {
		return err
	}
	if o := r.GetOthers(); len(o) != 1 || !o[0].GetRefused() {
		return fmt.Errorf("others for a client in alpha: %v", o)
	}
	check, err := topology.Check(ctx, &nusav1.CheckTopologyRequest{})
	if err != nil {
		return err
	}
	if check.GetTotals()["detour"] == 0 {
		return fmt.Errorf("region %s sees no detour: %v", region, check.GetTotals())
	}
	return nil
}

// TestFederationWithoutItsGlobalTier: every region answers queries about the whole federation from
// the data that the masters exchange. Changes during the outage become visible everywhere, also at
// a master that was restarted meanwhile and had only its file.
func TestFederationWithoutItsGlobalTier(t *testing.T) {
	d := newDistances()
	opts := sim.Options{Regions: islands, Agents: 1, Disk: true, Net: simnet.Options{Latency: d.oneWay}}
	inBubble(t, opts, func(t *testing.T, f *sim.Federation) {
		record := &nusav1.OriginRecord{
			Domain: "*.example.com", Origins: []*nusav1.Origin{{Region: "gamma", Address: "g:443"}, {Region: "delta", Weight: 1.1}},
			Policy: &nusav1.OriginPolicy{Percentile: 50, MaxRtt: durationpb.New(100 * time.Millisecond), MaxRelays: -1},
		}
		if _, err := nusav1.NewOriginsClient(f.Global(1)).Set(t.Context(), &nusav1.SetOriginsRequest{Record: record}); err != nil {
			t.Fatal(err)
		}
		eachRegion := func(what string, within time.Duration, check func(ctx context.Context, conn *grpc.ClientConn, region string) error) {
			t.Helper()
			for _, region := range islands {
				f.Eventually(within, what+" in "+region, func(ctx context.Context) error { return check(ctx, f.Server(region, 1), region) })
			}
		}
		asks := func(ctx context.Context, conn *grpc.ClientConn, region string) error {
			return answers(ctx, conn, region, record)
		}
		isWhole := func(state nusav1.EdgeState) func(context.Context, *grpc.ClientConn, string) error {
			return func(ctx context.Context, conn *grpc.ClientConn, _ string) error { return d.whole(ctx, conn, state) }
		}
		f.Eventually(10*time.Minute, "the matrix at the global tier", func(ctx context.Context) error {
			return d.whole(ctx, f.Global(1), nusav1.EdgeState_EDGE_STATE_OK)
		})
		eachRegion("the matrix from the global tier", 6*time.Minute, isWhole(nusav1.EdgeState_EDGE_STATE_OK))
		for range 7 { // also shortly before the next exchange
			eachRegion("questions with the global tier", time.Second, asks)
			time.Sleep(time.Minute)
		}

		f.Kill("global-1")
		time.Sleep(2 * time.Minute)
		eachRegion("the matrix from peers", time.Second, isWhole(nusav1.EdgeState_EDGE_STATE_OK))
		eachRegion("questions on one's own", time.Second, asks)

		// The path between gamma and delta becomes slower. Alpha and beta can learn that only from
		// those two regions.
		d.set("gamma", "delta", 140)
		eachRegion("what changed meanwhile", 15*time.Minute, isWhole(nusav1.EdgeState_EDGE_STATE_OK))

		f.Kill("alpha-1")
		f.StartServer("alpha", 1)
		f.Eventually(time.Minute, "a restarted master has its file", func(ctx context.Context) error {
			return answers(ctx, f.Server("alpha", 1), "alpha", record)
		})
		f.Eventually(2*time.Minute, "a restarted master has asked", func(ctx context.Context) error {
			return d.whole(ctx, f.Server("alpha", 1), nusav1.EdgeState_EDGE_STATE_OK)
		})
		// The other servers keep their data, and receive the new master's data.
		time.Sleep(2 * time.Minute)
		eachRegion("after the restart", time.Second, isWhole(nusav1.EdgeState_EDGE_STATE_OK))
		eachRegion("questions after the restart", time.Second, asks)

		// A third region sees that two regions are cut off from each other.
		heal := f.Cut([]string{f.ServerIP("beta", 1)}, []string{f.ServerIP("gamma", 1)})
		f.Eventually(10*time.Minute, "alpha hears of a cut between others", func(ctx context.Context) error {
			return stateOf(ctx, f.Server("alpha", 1), "beta", "gamma", nusav1.EdgeState_EDGE_STATE_UNREACHABLE)
		})
		heal()
		eachRegion("healed", 15*time.Minute, isWhole(nusav1.EdgeState_EDGE_STATE_OK))

		f.StartGlobal(1)
		f.AwaitRegions()
		f.Eventually(3*time.Minute, "the global tier has received all rows", func(ctx context.Context) error {
			return d.whole(ctx, f.Global(1), nusav1.EdgeState_EDGE_STATE_OK)
		})
		eachRegion("questions with the global tier back", time.Minute, asks)
	})
}

func stateOf(ctx context.Context, conn *grpc.ClientConn, from, to string, want nusav1.EdgeState) error {
	m, err := nusav1.NewTopologyClient(conn).Matrix(ctx, &nusav1.MatrixRequest{From: from})
	if err != nil {
		return err
	}
	for _, e := range m.GetEdges() {
		if e.GetTo() == to && e.GetState() != want {
			return fmt.Errorf("%s → %s is %v", from, to, e.GetState())
		}
	}
	return nil
}

// TestHistoryThroughTheGlobalTier: a global server returns the history of a region's edges, nodes
// and pools, with the trend of a pool whose memory fills up. A restarted master continues its
// history.
func TestHistoryThroughTheGlobalTier(t *testing.T) {
	const gib = float64(1 << 30)
	d := newDistances()
	opts := sim.Options{
		Regions: islands[:2], Agents: 2, Disk: true, Net: simnet.Options{Latency: d.oneWay},
		Stats: func(_ string, now time.Duration) *nusav1.NodeStats { // memory in use grows by half a GiB an hour, on a node with 8 GiB
			used := int64(gib + gib/2*now.Hours())
			return &nusav1.NodeStats{Cpu: 0.25, MemoryUsedBytes: used, MemoryAvailableBytes: 8<<30 - used}
		},
	}
	inBubble(t, opts, func(t *testing.T, f *sim.Federation) {
		ask := func(req *nusav1.HistoryRequest) *nusav1.HistorySeries {
			t.Helper()
			req.To = timestamppb.New(time.Now())
			req.From = timestamppb.New(time.Now().Add(-5 * time.Hour))
			var s *nusav1.HistorySeries
			f.Eventually(time.Minute, "history of "+req.GetKind(), func(ctx context.Context) error {
				r, err := nusav1.NewTopologyClient(f.Global(1)).History(ctx, req)
				if err == nil && len(r.GetSeries()) != 1 {
					err = fmt.Errorf("%d series", len(r.GetSeries()))
				}
				if err == nil {
					s = r.GetSeries()[0]
				}
				return err
			})
			if s.GetRegion() != "alpha" || s.GetKind() != req.GetKind() {
				t.Errorf("%s of %q", s.GetKind(), s.GetRegion())
			}
			return s
		}
		time.Sleep(3 * time.Hour)
		f.Stop("alpha-1")
		f.StartServer("alpha", 1)
		f.AwaitRegions()
		time.Sleep(2 * time.Hour)

		edge := ask(&nusav1.HistoryRequest{Kind: "edge", Region: "alpha", Key: "beta"})
		values(t, edge, "p50_ms", 20, 20)
		values(t, edge, "loss", 0, 0)
		node := ask(&nusav1.HistoryRequest{Kind: "node", Region: "alpha", Key: f.Process("alpha-agent-2").Node[:12], Trend: true})
		values(t, node, "memory_used", gib, 3.5*gib)
		values(t, node, "cpu", 0.25, 0.25)
		if node.GetName() != "alpha-agent-2" || len(node.GetTrends()) == 0 || !node.GetTrends()[0].GetKnown() {
			t.Errorf("node %q: %v", node.GetName(), node.GetTrends())
		}
		pool := ask(&nusav1.HistoryRequest{Kind: "pool", Region: "alpha", Key: "default", Trend: true})
		values(t, pool, "memory_used", 2*gib, 7*gib)
		values(t, pool, "nodes", 2, 2)
		trend := pool.GetTrends()[0]
		// The trend reaches 8 GiB 14 hours after 1 GiB, which is 9 hours from now.
		if left := time.Until(trend.GetAt().AsTime()).Hours(); trend.GetField() != "memory_used" || !trend.GetKnown() || left < 8.5 || left > 9.5 {
			t.Errorf("the pool's memory: %v, in %.1f hours", trend, left)
		}
		if !strings.Contains(trend.GetWhy(), "rising for 5 hours") {
			t.Errorf("in words: %q", trend.GetWhy())
		}

		for _, wrong := range []*nusav1.HistoryRequest{
			{Kind: "edge"}, {Kind: "edge", Region: "nowhere"}, {Kind: "edge", Region: "alpha", Key: "nowhere"}, {Kind: "room", Region: "alpha"},
		} {
			if r, err := nusav1.NewTopologyClient(f.Global(1)).History(t.Context(), wrong); err == nil {
				t.Errorf("%v is answered: %v", wrong, r)
			}
		}
	})
}

// values checks that a field runs from one value to another without a gap longer than a restart.
func values(t *testing.T, s *nusav1.HistorySeries, name string, from, to float64) {
	t.Helper()
	for _, f := range s.GetFields() {
		if f.GetName() != name {
			continue
		}
		var known []float64
		for i, n := range f.GetCount() {
			if n > 0 {
				known = append(known, f.GetMean()[i])
			}
		}
		near := func(a, b float64) bool { return math.Abs(a-b) <= 0.02*math.Abs(b)+1e-3 }
		if len(known) < len(f.GetCount())*9/10 || !near(known[0], from) || !near(known[len(known)-1], to) {
			t.Errorf("%s %s: %d values of %d, %v … %v, want %v … %v", s.GetKind(), name, len(known), len(f.GetCount()),
				known[:min(len(known), 1)], known[max(len(known)-1, 0):], from, to)
		}
		return
	}
	t.Errorf("%s has no %s", s.GetKind(), name)
}
