package uplink

import (
	"slices"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/sets"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// TestRowChanges: an edge is sent when it changes noticeably, otherwise it is confirmed.
// The whole row is sent to a server that does not have it.
func TestRowChanges(t *testing.T) {
	begin := time.Now()
	r := sentRow{epoch: "e"}
	edge := func(to string, rtt, age time.Duration) topology.Edge {
		return topology.Edge{From: "own", To: to, State: topology.OK, Source: topology.Measured, P50: rtt, P90: rtt, P99: rtt, Age: age, Samples: 9}
	}
	at := &nusav1.Coordinate{Vector: []float64{0.1, 0.2}}
	near := &nusav1.Coordinate{Vector: []float64{0.1001, 0.2}}
	far := &nusav1.Coordinate{Vector: []float64{0.2, 0.2}}
	const ms, s = time.Millisecond, time.Second
	for i, step := range []struct {
		after       time.Duration
		row         []topology.Edge
		at          *nusav1.Coordinate
		full        bool
		edges       int // -1: nothing is sent
		confirmed   time.Duration
		unconfirmed int
	}{
		{0, []topology.Edge{edge("a", 10*ms, s), edge("b", 20*ms, s)}, at, true, 2, 0, 0},
		{5 * s, []topology.Edge{edge("a", 10*ms, s), edge("b", 21*ms, s)}, near, false, -1, 0, 0},
		{10 * s, []topology.Edge{edge("a", 10*ms, s), edge("b", 30*ms, s), edge("c", 5*ms, s)}, near, false, 2, 0, 0},
		{15 * s, []topology.Edge{edge("a", 10*ms, s), edge("b", 30*ms, s), edge("c", 5*ms, s)}, far, false, 0, 0, 0},
		{30 * s, []topology.Edge{edge("a", 10*ms, 7*s), edge("b", 30*ms, 50*s), edge("c", 5*ms, 3*s)}, far, false, 0, 7 * s, 1},
		{35 * s, []topology.Edge{edge("a", 10*ms, s)}, far, false, -1, 0, 0},
		{40 * s, []topology.Edge{edge("a", 10*ms, s), edge("b", 30*ms, s)}, far, false, 1, 0, 0}, // b is a new region
		{10 * time.Minute, []topology.Edge{edge("a", 10*ms, s), edge("b", 30*ms, s)}, far, true, 2, 0, 0},
	} {
		m := r.changes(begin.Add(step.after), step.row, step.at)
		if step.edges < 0 {
			if m != nil {
				t.Errorf("step %d: %v", i, m)
			}
			continue
		}
		edges, err := sets.UnpackRow("own", m.GetEdges(), 10)
		if err != nil || m.GetFull() != step.full || len(edges) != step.edges || m.GetConfirmed().AsDuration() != step.confirmed || len(m.GetUnconfirmed()) != step.unconfirmed {
			t.Errorf("step %d: %v with %d edges, %v", i, m, len(edges), err)
		}
	}
	r.resume(&nusav1.Position{Epoch: "e", Sequence: r.sequence})
	row := []topology.Edge{edge("a", 10*ms, s), edge("b", 30*ms, s)}
	if m := r.changes(begin.Add(10*time.Minute+s), row, far); m != nil {
		t.Errorf("sent again in another session: %v", m)
	}
	r.resume(&nusav1.Position{Epoch: "e", Sequence: r.sequence - 1})
	if m := r.changes(begin.Add(10*time.Minute+2*s), row, far); !m.GetFull() || m.GetCoordinate() == nil {
		t.Errorf("sent to a server without the row: %v", m)
	}
}

// TestEdgesNoLongerMeasuredAreNotConfirmed: a round trip grows old at the global tier if it
// is no longer measured, or if its region is no longer a peer. It is sent again as soon as
// it is measured.
func TestEdgesNoLongerMeasuredAreNotConfirmed(t *testing.T) {
	edge := func(to string) topology.Edge {
		return topology.Edge{From: "own", To: to, State: topology.OK, Source: topology.Measured, P50: time.Millisecond, Age: time.Second}
	}
	for name, without := range map[string][]topology.Edge{
		"unknown": {edge("a"), {From: "own", To: "b"}},
		"gone":    {edge("a")},
	} {
		now := time.Now()
		r := sentRow{epoch: "e"}
		r.changes(now, []topology.Edge{edge("a"), edge("b")}, nil)
		for range 2 {
			now = now.Add(refreshEdge)
			if m := r.changes(now, without, nil); m.GetConfirmed() == nil || !slices.Equal(m.GetUnconfirmed(), []string{"b"}) {
				t.Errorf("%s: confirmed %v but for %v, want all but for b", name, m.GetConfirmed(), m.GetUnconfirmed())
			}
		}
		now = now.Add(refreshEdge)
		m := r.changes(now, []topology.Edge{edge("a"), edge("b")}, nil)
		edges, err := sets.UnpackRow("own", m.GetEdges(), 10)
		if err != nil || len(edges) != 1 || m.GetConfirmed() == nil || len(m.GetUnconfirmed()) > 0 {
			t.Errorf("%s, then measured: %d edges, confirmed %v but for %v: %v", name, len(edges), m.GetConfirmed(), m.GetUnconfirmed(), err)
		}
	}
}

// TestMedianOfMoreSamples: the first sample of an edge was 9 percent too high. The right median is sent
// when there are twice the samples, and not again while the median stays. It is also sent when the
// window has begun again.
func TestMedianOfMoreSamples(t *testing.T) {
	now := time.Now()
	r := sentRow{epoch: "e"}
	sent := func(p50 time.Duration, samples int) int {
		now = now.Add(latencyEvery)
		m := r.changes(now, []topology.Edge{{From: "own", To: "a", State: topology.OK, Source: topology.Measured, P50: p50, P90: p50, P99: p50, Samples: samples}}, nil)
		edges, err := sets.UnpackRow("own", m.GetEdges(), 10)
		if err != nil {
			t.Fatal(err)
		}
		return len(edges)
	}
	const us = time.Microsecond
	for i, step := range []struct {
		p50     time.Duration
		samples int
		want    int
	}{
		{80_000 * us, 1, 1},
		{73_000 * us, 1, 0}, // another sample, as uncertain
		{73_000 * us, 5, 1},
		{73_100 * us, 10, 0}, // less than 2 percent
		{70_000 * us, 9, 0},
		{70_000 * us, 10, 1},
		{70_000 * us, 40, 0},
		{75_000 * us, 15, 0},
		{75_000 * us, 5, 1}, // the window has begun again
		{75_000 * us, 10, 0},
		{900 * us, 20, 1},
		{980 * us, 40, 0}, // less than 0.1 ms
		{1050 * us, 40, 1},
		{1100 * us, 40, 0}, // the number of samples is the same
	} {
		if got := sent(step.p50, step.samples); got != step.want {
			t.Errorf("step %d: %d edges sent, want %d", i, got, step.want)
		}
	}
}
