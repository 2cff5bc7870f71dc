package latency

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
)

// TestColumnsAreDeltas: a column has only two kinds of edges: new ones, and those that became
// stale because their owners report nothing.
func TestColumnsAreDeltas(t *testing.T) {
	m := topology.NewMatrix()
	m.SetRegions([]topology.Region{{Name: "a"}, {Name: "b"}, {Name: "c"}})
	edge := func(from string, age time.Duration) topology.Edge {
		return topology.Edge{From: from, To: "c", State: topology.OK, Source: topology.Measured, P50: time.Millisecond, Age: age}
	}
	m.Set(edge("a", time.Second), 10*time.Second)
	m.Set(edge("b", 100*time.Second), 20*time.Second)
	for _, tc := range []struct {
		since, now time.Duration
		want       string
	}{
		{math.MinInt64 / 2, 20 * time.Second, "a ok 11s, b ok 1m40s, "},
		{10 * time.Second, 20 * time.Second, "b ok 1m40s, "},
		{20 * time.Second, 30 * time.Second, ""},
		{30 * time.Second, 41 * time.Second, "b stale 2m1s, "},
		{41 * time.Second, 50 * time.Second, ""},
	} {
		got := ""
		for _, e := range m.AppendColumn(nil, "c", tc.since, tc.now, rowStale) {
			got += fmt.Sprintf("%s %s %s, ", e.From, e.State, e.Age)
		}
		if got != tc.want {
			t.Errorf("from %s to %s: %q, want %q", tc.since, tc.now, got, tc.want)
		}
	}
}

// TestOldViewsAreDropped: a view that no request would get again does not stay in memory.
func TestOldViewsAreDropped(t *testing.T) {
	m := New(func() []topology.Region { return []topology.Region{{Name: "a"}, {Name: "b"}} })
	first := m.Cache(time.Second)
	if m.DropOldView(time.Second); m.Cache(time.Second) != first {
		t.Error("the present view is dropped")
	}
	if m.DropOldView(time.Second + MaxViewAge); m.cache != nil {
		t.Error("an old view is kept")
	}
}
