package metrics

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/series"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/topology"
)

// measured records ten nodes. As many of them as reporting says have statistics: half of 4
// cores and 1 of 4 GiB used. Nodes with the same machine share its memory.
func measured(t *testing.T, reporting int, machine func(i int) string) []series.Sample {
	t.Helper()
	st := state.New()
	stats := map[string]wire.NodeStats{}
	for i := range 10 {
		id := fmt.Sprint("n", i)
		r := st.Apply(st.Index()+1, state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{
			ID: id, Name: id, Pool: "default", Status: state.NodeReady, SharedMachine: machine(i),
			Capacity: state.Resources{CPUMilli: 4000, MemoryBytes: 4 << 30},
		}}})
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		if i < reporting {
			stats[id] = wire.NodeStats{CPU: 0.5, MemoryUsed: 1 << 30, MemoryAvailable: 3 << 30}
		}
	}
	clockReads := 0
	r := Recorder{
		View: st.Snapshot, StatsInterval: time.Second,
		Edges: func() []topology.Edge { return []topology.Edge{{To: "b", State: topology.Unknown}} },
		Stats: func(id string, _ time.Duration) (wire.NodeStats, bool) { s, known := stats[id]; return s, known },
		Clock: func() time.Duration { clockReads++; return 0 },
	}
	samples := r.measure()
	if clockReads != 1 {
		t.Errorf("the clock was read %d times for ten nodes", clockReads)
	}
	return samples
}

// value returns a field of the pool's sample.
func value(t *testing.T, samples []series.Sample, field string) float64 {
	t.Helper()
	kind := slices.IndexFunc(Kinds, func(k series.Kind) bool { return k.Name == KindPool })
	i := slices.IndexFunc(samples, func(s series.Sample) bool { return s.Kind == KindPool })
	if i < 0 {
		t.Fatalf("no sample of a pool in %v", samples)
	}
	return samples[i].Values[slices.Index(Kinds[kind].Fields, field)]
}

func noMachine(int) string { return "" }

func TestPoolSumsUpItsNodes(t *testing.T) {
	samples := measured(t, 10, noMachine)
	if len(samples) != 11 { // ten nodes and the pool; the unknown edge is left out
		t.Errorf("%d samples", len(samples))
	}
	for field, want := range map[string]float64{
		"nodes": 10, "cpu": 0.5, "memory_used": 10 << 30, "memory_total": 40 << 30, "capacity_cpu": 40, "allocated_cpu": 0,
	} {
		if got := value(t, samples, field); got != want {
			t.Errorf("%s is %v, want %v", field, got, want)
		}
	}
}

// TestPoolIsUnknownWhileFewNodesReport: a sum over few nodes would look like a drop, so it
// is unknown. The number of nodes and the capacity need no reports.
func TestPoolIsUnknownWhileFewNodesReport(t *testing.T) {
	if got := value(t, measured(t, 9, noMachine), "memory_used"); got != 9<<30 {
		t.Errorf("nine of ten nodes: %v", got)
	}
	few := measured(t, 8, noMachine)
	for _, field := range []string{"cpu", "memory_used", "memory_total"} {
		if got := value(t, few, field); !math.IsNaN(got) {
			t.Errorf("eight of ten nodes: %s is %v", field, got)
		}
	}
	if value(t, few, "nodes") != 10 || value(t, few, "capacity_cpu") != 40 {
		t.Errorf("eight of ten nodes: %v", few)
	}
}

func TestSharedMachineIsCountedOnce(t *testing.T) {
	samples := measured(t, 10, func(i int) string { return []string{"m", ""}[i%2] })
	if got := value(t, samples, "memory_used"); got != 6<<30 { // one machine and five nodes with machines of their own
		t.Errorf("memory_used is %v GiB", got/(1<<30))
	}
	if got := value(t, samples, "cpu"); got != 0.5 {
		t.Errorf("cpu is %v", got)
	}
}
