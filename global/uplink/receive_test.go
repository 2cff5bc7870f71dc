package uplink

import (
	"log/slog"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// newServer returns a server whose regions have sessions without a stream.
func newServer(t testing.TB, clock func() time.Duration, names ...string) *Server {
	t.Helper()
	st := state.New("e", clock, time.Hour)
	s := New(Config{
		Context: t.Context(), State: st, Log: slog.New(slog.DiscardHandler),
		ReportInterval: 5 * time.Second, PeersInterval: 30 * time.Second, WakePlacer: func() {},
	})
	for _, name := range names {
		c := s.newSession(func(error) {})
		c.region, c.columnAt = name, -time.Hour
		life := region.Open(st.RegionConfig, region.Record{Name: name}, clock())
		life, _ = region.Step(st.RegionConfig, life, clock(), region.Hello{Stream: c.shared.Number, ClusterID: name, Incarnation: 1, Term: 1})
		st.Regions[name] = &state.Region{
			Name: name, Record: &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name}}, Life: life, Session: &c.shared,
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

// TestNoLeaseWithoutCertainLeadership: a server that may no longer be the only
// active one grants nothing.
func TestNoLeaseWithoutCertainLeadership(t *testing.T) {
	s := newServer(t, func() time.Duration { return 0 }, "alpha")
	c := s.live["alpha"]
	for _, certain := range []bool{false, true, false} {
		s.MayGrant = func() bool { return certain }
		before := len(c.out)
		s.grantLease(c, 1)
		if granted := len(c.out) > before; granted != certain {
			t.Errorf("granted %t with certain leadership %t", granted, certain)
		}
	}
}
