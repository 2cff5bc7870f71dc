package uplink

import (
	"log/slog"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// newServer returns a server whose regions have sessions without a stream.
func newServer(t testing.TB, clock func() time.Duration, names ...string) *Server {
	t.Helper()
	st := state.New(state.Beginning{Epoch: "e", Sessions: region.Config{Lease: time.Hour, ActiveUntil: 1 << 62}}, clock)
	s := New(Config{
		Context: t.Context(), State: st, Log: slog.New(slog.DiscardHandler),
		ReportInterval: 5 * time.Second, PeersInterval: 30 * time.Second, WakePlacer: func() {},
	})
	for _, name := range names {
		c := s.newSession(func(error) {})
		c.region, c.columnAt = name, -time.Hour
		life := region.Open(st.SessionConfig(), region.Record{Name: name}, clock())
		life, _ = region.Step(st.SessionConfig(), life, clock(), region.Hello{Stream: c.shared.Number, ClusterID: name, Incarnation: 1, Term: 1})
		st.Regions[name] = &state.Region{
			Name: name, Record: &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name}}, Life: life, Session: &c.shared,
			Orders: link.NewOutbox[state.Order]("e", 10),
		}
		s.live[name] = c
	}
	st.RegionsChanged()
	return s
}

// TestOnlyPlausibleEdgesEnterTheMatrix: an edge counts only if its values are
// possible for a probe and its region exists.
func TestOnlyPlausibleEdgesEnterTheMatrix(t *testing.T) {
	now := time.Duration(0)
	s := newServer(t, func() time.Duration { return now }, "alpha", "beta")
	for name, tc := range map[string]struct {
		change func(*nusav1.Edge)
		held   bool
	}{
		"good":           {func(*nusav1.Edge) {}, true},
		"unknown region": {func(e *nusav1.Edge) { e.To = "nowhere" }, false},
		"negative":       {func(e *nusav1.Edge) { e.P50 = durationpb.New(-1) }, false},
		"too long":       {func(e *nusav1.Edge) { e.P99 = durationpb.New(time.Hour) }, false},
		"NaN":            {func(e *nusav1.Edge) { e.Loss = math.NaN() }, false},
		"loss":           {func(e *nusav1.Edge) { e.Loss = 1.5 }, false},
		"too old":        {func(e *nusav1.Edge) { e.Age = durationpb.New(math.MaxInt64) }, false},
		"no state":       {func(e *nusav1.Edge) { e.State = 77 }, false},
	} {
		e := &nusav1.Edge{To: "beta", State: nusav1.EdgeState_EDGE_STATE_OK, P50: durationpb.New(time.Millisecond)}
		tc.change(e)
		s.setRow(s.live["alpha"], &nusav1.LatencyRow{Full: true, Edges: []*nusav1.Edge{e}})
		if held := s.st.TopologyView().Edge("alpha", "beta").Source == topology.Measured; held != tc.held {
			t.Errorf("%s: held %t, want %t", name, held, tc.held)
		}
	}
}

// TestNothingWithoutCertainLeadership: a server that may no longer be the only active one
// grants nothing and sends no orders.
func TestNothingWithoutCertainLeadership(t *testing.T) {
	now := time.Duration(0)
	s := newServer(t, func() time.Duration { return now }, "alpha")
	c, st := s.live["alpha"], s.st
	c.opened.Store(true)
	r := st.Regions["alpha"]
	r.Orders = link.NewOutbox[state.Order]("e", 10)
	r.Orders.ForgetUpTo(7)
	grant := func(id uint64) *nusav1.LeaseGrant {
		s.requestLease(c, &nusav1.LeaseRequest{Id: id}, 0)
		return c.outbox.take().GetLease()
	}
	for i, until := range []time.Duration{1 << 62, 0, 1 << 62} {
		st.Sessions.ActiveUntil = until
		c.cursor = r.Orders.Cursor(link.Position{})
		c.shared.Unsent = state.Unsent{}
		if ordered := c.next().GetOrders() != nil; ordered != (until > 0) {
			t.Errorf("active until %d: orders are sent: %t", until, ordered)
		}
		if granted := grant(uint64(i+1)) != nil; granted != (until > 0) {
			t.Errorf("active until %d: granted: %t", until, granted)
		}
	}
	st.Leadership = &nusav1.LeadershipRecord{Conflict: &nusav1.RevisionConflict{Known: 9}}
	c.cursor = r.Orders.Cursor(link.Position{})
	if c.next() != nil || grant(9) != nil {
		t.Error("something is ordered or granted from an old store")
	}
}

// TestPlacesWhenARegionKnowsWhatItLost: a region that was lost gets no new slots until its log has
// the orders of its welcome. Then the placer plans again.
func TestPlacesWhenARegionKnowsWhatItLost(t *testing.T) {
	now := time.Duration(0)
	s := newServer(t, func() time.Duration { return now }, "alpha")
	plans := 0
	s.WakePlacer = func() { plans++ }
	c, r := s.live["alpha"], s.st.Regions["alpha"]
	r.Life = region.Open(s.st.SessionConfig(), region.Record{Name: "alpha", Fence: 1}, now)
	s.step(c, region.Hello{Stream: c.shared.Number, ClusterID: "alpha", Incarnation: 1, Term: 1, Required: 2})
	for _, want := range []struct {
		position uint64
		behind   bool
		plans    int
	}{{1, true, 0}, {2, false, 1}, {3, false, 1}} {
		s.ackOrders(c, &nusav1.Position{Epoch: s.st.Epoch, Sequence: want.position}, 0)
		if behind := r.ToPlace(now).Behind; behind != want.behind || plans != want.plans {
			t.Errorf("position %d: behind %v, %d plans", want.position, behind, plans)
		}
	}
}
