package regional_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// peerRegion is a server of another region. It serves only that region's row.
type peerRegion struct {
	nusav1.UnimplementedTopologyServer
	edges []*nusav1.Edge
	polls atomic.Int32
}

func (p *peerRegion) Matrix(context.Context, *nusav1.MatrixRequest) (*nusav1.MatrixResponse, error) {
	p.polls.Add(1)
	return &nusav1.MatrixResponse{Edges: p.edges}, nil
}

func measuredEdge(from, to string, rtt time.Duration) *nusav1.Edge {
	d := durationpb.New(rtt)
	return &nusav1.Edge{
		From: from, To: to, State: nusav1.EdgeState_EDGE_STATE_OK, Source: nusav1.RTTSource_RTT_SOURCE_MEASURED,
		P50: d, P90: d, P99: d, Samples: 20, Age: durationpb.New(time.Second), Method: "udp",
	}
}

func (w *world) startPeer(ip string, edges ...*nusav1.Edge) (p *peerRegion, stop func()) {
	w.t.Helper()
	lis, err := w.net.Net(ip).Listen(context.Background(), ip+":7610")
	if err != nil {
		w.t.Fatal(err)
	}
	p = &peerRegion{edges: edges}
	srv := grpc.NewServer()
	nusav1.RegisterTopologyServer(srv, p)
	go func() { _ = srv.Serve(lis) }()
	return p, srv.Stop
}

// compact returns a matrix with the median i→j of 10·(i+1) + j milliseconds.
func compact(regions ...string) *nusav1.CompactMatrix {
	m := &nusav1.CompactMatrix{Regions: regions}
	for i := range regions {
		for j := range regions {
			m.P50 = binary.LittleEndian.AppendUint16(m.P50, uint16(100*(i+1)+10*j))
		}
	}
	return m
}

// sendFederation sends the region two peers, an origin record, and a matrix. The bits of
// fresh say which edges of the matrix are fresh.
func (g *fakeGlobal) sendFederation(fresh ...byte) {
	record := &nusav1.OriginRecord{Domain: "*.example.com", Origins: []*nusav1.Origin{{Region: "beta"}, {Region: "gamma", Address: "g:443"}}}
	matrix := compact("alpha", "beta", "gamma")
	matrix.Fresh = fresh
	g.update(func() {
		g.queued = []*nusav1.GlobalMessage{
			{Kind: &nusav1.GlobalMessage_Peers{Peers: &nusav1.PeerRegions{Regions: []*nusav1.PeerRegion{
				{Name: "beta", GrpcAddresses: []string{"10.2.0.9:7610", "10.2.0.1:7610"}},
				{Name: "gamma", GrpcAddresses: []string{"10.3.0.1:7610"}},
			}}}},
			{Kind: &nusav1.GlobalMessage_Matrix{Matrix: matrix}},
			{Kind: &nusav1.GlobalMessage_Origins{Origins: &nusav1.OriginTable{Records: []*nusav1.OriginRecord{record}}}},
		}
	})
}

// edges returns the measured edges that server i knows, for example "a→b": "20ms STALE".
func (w *world) edges(i int) map[string]string {
	ctx, cancel := callCtx()
	defer cancel()
	m, err := nusav1.NewTopologyClient(w.conn(i)).Matrix(ctx, &nusav1.MatrixRequest{})
	if err != nil {
		return map[string]string{"error": err.Error()}
	}
	out := map[string]string{}
	for _, e := range m.GetEdges() {
		if e.GetSource() == nusav1.RTTSource_RTT_SOURCE_MEASURED {
			out[e.GetFrom()+"→"+e.GetTo()] = fmt.Sprint(e.GetP50().AsDuration(), " ", e.GetState().String()[len("EDGE_STATE_"):])
		}
	}
	return out
}

// seen returns the region whose view a matrix is, and for how long that region has been
// without the global tier. The time is -1 if the region never had one.
func (w *world) seen(i int) (by string, alone time.Duration) {
	ctx, cancel := callCtx()
	defer cancel()
	c := nusav1.NewTopologyClient(w.conn(i))
	m, err := c.Matrix(ctx, &nusav1.MatrixRequest{})
	if err != nil {
		return err.Error(), -1
	}
	type response interface {
		GetSeenBy() string
		GetAlone() *durationpb.Duration
	}
	others := map[string]response{}
	add := func(what string, a response, err error) {
		others[what] = a
		if err != nil {
			w.t.Errorf("%s: %v", what, err)
		}
	}
	near := m.GetRegions()[0]
	paths, err := c.Path(ctx, &nusav1.PathRequest{From: near, To: near})
	add("path", paths, err)
	nearest, err := c.Nearest(ctx, &nusav1.NearestRequest{Region: near})
	add("nearest", nearest, err)
	check, err := c.Check(ctx, &nusav1.CheckTopologyRequest{})
	add("check", check, err)
	tree, err := c.Get(ctx, &nusav1.GetTopologyRequest{})
	add("tree", tree, err)
	for what, a := range others {
		later := a.GetAlone().AsDuration() - m.GetAlone().AsDuration()
		if a.GetSeenBy() != m.GetSeenBy() || (a.GetAlone() == nil) != (m.GetAlone() == nil) || later < 0 || later > time.Second {
			w.t.Errorf("the matrix is seen by %q alone %v, the %s by %q alone %v", m.GetSeenBy(), m.GetAlone(), what, a.GetSeenBy(), a.GetAlone())
		}
	}
	if m.GetAlone() == nil {
		return m.GetSeenBy(), -1
	}
	return m.GetSeenBy(), m.GetAlone().AsDuration()
}

func (w *world) expectEdges(what string, got map[string]string, changed map[string]string) {
	w.t.Helper()
	want := map[string]string{
		"alpha→beta": "11ms STALE", "alpha→gamma": "12ms STALE", "beta→alpha": "20ms STALE",
		"beta→gamma": "22ms STALE", "gamma→alpha": "30ms STALE", "gamma→beta": "31ms STALE",
	}
	for k, v := range changed {
		want[k] = v
	}
	for k, v := range want {
		if got[k] != v {
			w.t.Errorf("%s: %s is %q, want %q", what, k, got[k], v)
		}
	}
	if len(got) != len(want) {
		w.t.Errorf("%s: %v", what, got)
	}
}

func (w *world) resolve(i int) (*nusav1.ResolveOriginResponse, error) {
	ctx, cancel := callCtx()
	defer cancel()
	return nusav1.NewOriginsClient(w.conn(i)).Resolve(ctx, &nusav1.ResolveOriginRequest{Domain: "www.example.com"})
}

// TestRegionKnowsTheFederationWithoutTheGlobalTier: a region that lost the global tier
// still knows the whole federation, even after a restart. It knows it from the last
// messages of the global tier and from the rows of its peers. While the global tier is
// connected, the region polls no peer.
func TestRegionKnowsTheFederationWithoutTheGlobalTier(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.disk = t.TempDir()
		g := w.startGlobal()
		beta, stopBeta := w.startPeer("10.2.0.1",
			measuredEdge("beta", "alpha", 5*time.Millisecond), measuredEdge("beta", "gamma", 6*time.Millisecond),
			measuredEdge("gamma", "beta", time.Millisecond), // ignored: beta's row has only edges from beta
			measuredEdge("beta", "gamma", -time.Second),     // ignored: impossible value
			&nusav1.Edge{From: "beta", To: "nowhere", Source: nusav1.RTTSource_RTT_SOURCE_PREDICTED, P50: durationpb.New(1)})
		w.server(1)
		w.master(1)
		if _, err := w.resolve(1); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("resolved without origin records: %v", err)
		}
		g.sendFederation()
		w.eventually("the region has the matrix", func() bool { return len(w.edges(1)) == 6 })
		time.Sleep(2 * time.Minute)
		w.expectEdges("with the global tier", w.edges(1), nil)
		if n := beta.polls.Load(); n > 0 {
			t.Errorf("a peer was polled %d times while the global tier was connected", n)
		}
		r, err := w.resolve(1)
		if err != nil || r.GetChoice().GetRegion() != "beta" || r.GetAge().AsDuration() != 0 {
			t.Errorf("resolved %v, %v", r, err)
		}

		if by, alone := w.seen(1); by != "alpha" || alone != 0 {
			t.Errorf("seen by %s, alone for %s, with the global tier", by, alone)
		}

		g.stop()
		time.Sleep(14 * time.Second)
		if n := beta.polls.Load(); n > 0 {
			t.Errorf("a peer was polled %d times before 15 s had passed", n)
		}
		time.Sleep(time.Minute)
		fresh := map[string]string{"beta→alpha": "5ms OK", "beta→gamma": "6ms OK"}
		w.expectEdges("polled", w.edges(1), fresh)
		before := beta.polls.Load()
		time.Sleep(10 * time.Minute)
		if n := beta.polls.Load() - before; n < 15 || n > 25 {
			t.Errorf("a peer was polled %d times in ten minutes", n)
		}
		r, err = w.resolve(1)
		if err != nil || r.GetAge().AsDuration() < 11*time.Minute || r.GetAge().AsDuration() > 12*time.Minute {
			t.Errorf("resolved with age %v, %v", r.GetAge().AsDuration(), err)
		}
		if by, alone := w.seen(1); by != "alpha" || alone < 11*time.Minute || alone > 12*time.Minute {
			t.Errorf("seen by %s, alone for %s", by, alone)
		}
		stopBeta()
		time.Sleep(5 * time.Minute)
		w.expectEdges("a peer stopped", w.edges(1), map[string]string{"beta→alpha": "5ms STALE", "beta→gamma": "6ms STALE"})

		w.stop(1)
		w.server(1)
		w.master(1)
		w.expectEdges("restarted", w.edges(1), nil)
		r, err = w.resolve(1)
		if err != nil || r.GetRecord() != "*.example.com" || r.GetAge().AsDuration() < 15*time.Minute {
			t.Errorf("resolved after the restart: %v, %v", r, err)
		}
		beta, stopBeta = w.startPeer("10.2.0.1", measuredEdge("beta", "alpha", 7*time.Millisecond))
		defer stopBeta()
		time.Sleep(time.Minute)
		w.expectEdges("polled again", w.edges(1), map[string]string{"beta→alpha": "7ms OK"})

		g.serve()
		defer g.stop()
		time.Sleep(time.Minute)
		before = beta.polls.Load()
		time.Sleep(10 * time.Minute)
		if n := beta.polls.Load() - before; n > 0 {
			t.Errorf("a peer was polled %d times with the global tier back", n)
		}
		ctx, cancel := callCtx()
		defer cancel()
		if _, err := nusav1.NewOriginsClient(w.conn(1)).Set(ctx, &nusav1.SetOriginsRequest{}); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("origin records set in a region: %v", err)
		}
	})
}

// TestNewMasterKnowsTheFederation: the other servers have a copy of the messages that the
// global tier sent the master.
func TestNewMasterKnowsTheFederation(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		g := w.startGlobal()
		for i := 1; i <= 3; i++ {
			w.server(i, 1, 2, 3)
		}
		old := w.master(1, 2, 3)
		g.sendFederation()
		w.eventually("the region has the matrix", func() bool { return len(w.edges(old)) == 6 })
		time.Sleep(copyEvery)
		g.stop()
		w.kill(old)
		rest := []int{old%3 + 1, (old+1)%3 + 1}
		now := w.master(rest...)
		w.expectEdges("a new master", w.edges(now), nil)
		if r, err := w.resolve(now); err != nil || r.GetChoice().GetRegion() != "beta" {
			t.Errorf("resolved %v, %v", r, err)
		}
	})
}

// TestMatrixStaysFreshUntilTheNext: an edge that the global tier sent as fresh stays fresh
// until the next matrix. So paths over relays do not change between two matrices. The edge
// becomes stale when no next matrix arrives, and some time after the global tier is gone.
func TestMatrixStaysFreshUntilTheNext(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		w.server(1)
		w.master(1)
		fresh := map[string]string{
			"alpha→beta": "11ms OK", "alpha→gamma": "12ms OK", "beta→alpha": "20ms OK",
			"beta→gamma": "22ms OK", "gamma→alpha": "30ms OK", "gamma→beta": "31ms STALE",
		}
		send := func() { g.sendFederation(0b0110_1110, 0) }
		send()
		w.eventually("the region has the matrix", func() bool { return len(w.edges(1)) == 6 })
		w.expectEdges("first matrix", w.edges(1), fresh)
		for range 3 {
			time.Sleep(6 * time.Minute)
			w.expectEdges("before the next matrix", w.edges(1), fresh)
			send()
			time.Sleep(time.Second)
			w.expectEdges("next matrix", w.edges(1), fresh)
		}
		time.Sleep(8 * time.Minute)
		w.expectEdges("no next matrix", w.edges(1), nil)
		send()
		time.Sleep(3 * time.Minute)
		w.expectEdges("late matrix", w.edges(1), fresh)
		g.stop()
		time.Sleep(45 * time.Second)
		w.expectEdges("another global server may take over", w.edges(1), fresh)
		time.Sleep(30 * time.Second)
		w.expectEdges("without a global server", w.edges(1), nil)
	})
}

// copyEvery is a little longer than the pause after which a server copies the messages of
// the global tier from the master.
const copyEvery = 16 * time.Second

// TestPeersWithDemandAreProbedMore: when the budget is too small for all peers, peers with
// probe demand are probed more often.
func TestPeersWithDemandAreProbedMore(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.probeRate = 1
		g := w.startGlobal()
		defer g.stop()
		defer w.answerProbes("beta", "10.2.0.1")()
		defer w.answerProbes("gamma", "10.3.0.1")()
		w.server(1)
		w.master(1)
		peers := []*nusav1.PeerRegion{
			{Name: "beta", ProbeAddresses: []string{"10.2.0.1:7613"}, ProbeDemand: 1},
			{Name: "gamma", ProbeAddresses: []string{"10.3.0.1:7613"}},
		}
		for i := range 60 {
			name, ip := fmt.Sprint("other-", i), fmt.Sprintf("10.9.0.%d", i+1)
			defer w.answerProbes(name, ip)()
			peers = append(peers, &nusav1.PeerRegion{Name: name, ProbeAddresses: []string{ip + ":7613"}})
		}
		for i, p := range peers { // the coordinates have no error
			p.Coordinate = &nusav1.Coordinate{Vector: []float64{float64(i), 0, 0, 0, 0, 0, 0, 0}}
		}
		g.update(func() { g.peers = peers })
		time.Sleep(time.Hour)
		ctx, cancel := callCtx()
		defer cancel()
		m, err := nusav1.NewTopologyClient(w.conn(1)).Matrix(ctx, &nusav1.MatrixRequest{From: regionName})
		if err != nil {
			t.Fatal(err)
		}
		samples := map[string]int32{}
		for _, e := range m.GetEdges() {
			samples[e.GetTo()] = e.GetSamples()
		}
		if samples["beta"] < 2*samples["gamma"] || samples["gamma"] == 0 {
			t.Errorf("beta was probed %d times, gamma %d times", samples["beta"], samples["gamma"])
		}
	})
}

// TestMatrixWatchSendsAllThenChanges: a watch of the matrix first sends the whole matrix
// and then the changes. A later watch sends the same numbers. No message has a token,
// because tokens belong to the global tier.
func TestMatrixWatchSendsAllThenChanges(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		w.server(1)
		w.master(1)
		g.sendFederation()
		w.eventually("the region has the matrix", func() bool { return len(w.edges(1)) == 6 })
		ctx, cancel := callCtx()
		defer cancel()
		watch := func() (grpc.ServerStreamingClient[nusav1.MatrixResponse], map[string]time.Duration) {
			t.Helper()
			s, err := nusav1.NewTopologyClient(w.conn(1)).Watch(ctx, &nusav1.MatrixRequest{})
			if err != nil {
				t.Fatal(err)
			}
			m, err := s.Recv()
			if err != nil || !m.GetReset_() || m.GetToken() != "" || len(m.GetRegions()) != 3 {
				t.Fatalf("first message of a watch: %v, %v", m, err)
			}
			return s, medians(m)
		}
		first, before := watch()
		g.update(func() {
			g.queued = []*nusav1.GlobalMessage{{Kind: &nusav1.GlobalMessage_Column{Column: &nusav1.LatencyColumn{Edges: []*nusav1.Edge{
				measuredEdge("beta", "alpha", 90*time.Millisecond), measuredEdge("gamma", "alpha", 30*time.Millisecond+time.Microsecond),
			}}}}}
		})
		m, err := first.Recv()
		if err != nil || m.GetReset_() || medians(m)["beta→alpha"] != 90*time.Millisecond {
			t.Fatalf("the change: %v, %v", m, err)
		}
		_, later := watch()
		for edge, rtt := range medians(m) {
			before[edge] = rtt
		}
		if len(before) != 6 || !maps.Equal(before, later) {
			t.Errorf("the first watch has %v, the later one %v", before, later)
		}
	})
}

// medians returns the medians in a message.
func medians(m *nusav1.MatrixResponse) map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, e := range m.GetEdges() {
		out[e.GetFrom()+"→"+e.GetTo()] = e.GetP50().AsDuration()
	}
	return out
}
