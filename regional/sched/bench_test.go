package sched_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// benchRegion is a state with nodes and slots that want instances: jobs × count.
func benchRegion(nodes, jobs, count int, spread string) *state.State {
	s := state.New()
	index := uint64(0)
	do := func(c state.Command) {
		index++
		c.NowUnixNano = int64(time.Hour)
		if r := s.Apply(index, c); r.Err != nil || len(r.Skipped) > 0 {
			panic(fmt.Sprint(r.Err, r.Skipped))
		}
	}
	for i := range nodes {
		do(state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{
			ID: fmt.Sprintf("node-%05d", i), Name: fmt.Sprintf("node-%05d", i), Pool: "default",
			Labels:   map[string]string{"rack": fmt.Sprint(i % 20)},
			Capacity: state.Resources{CPUMilli: 64_000, MemoryBytes: 256 << 30, DiskBytes: 1 << 40},
		}}})
	}
	for j := range jobs {
		name := fmt.Sprintf("job-%06d", j)
		do(state.Command{ApplyOrders: &state.ApplyOrders{Orders: []state.SlotOrder{{
			Slot: state.Slot{Namespace: "default", Job: name, Group: "g", To: int32(count), Generation: 1, JobVersion: 1, Desired: state.Run},
			Job: &state.Job{Version: 1, Type: state.Service, Groups: []state.Group{{
				Name: "g", Hash: 1, Ask: state.Ask{Pool: "default", Spread: spread, Resources: state.Resources{CPUMilli: 100, MemoryBytes: 64 << 20}},
			}}},
		}}}})
	}
	return s
}

func BenchmarkPlan(b *testing.B) {
	for _, c := range []struct {
		nodes, jobs, count int
		spread             string
	}{
		{100, 10_000, 1, ""}, {1_000, 10_000, 1, ""}, {5_000, 10_000, 1, ""}, {10_000, 10_000, 1, ""},
		{5_000, 100, 100, ""}, {10_000, 1, 10_000, ""}, {5_000, 100, 100, "rack"},
	} {
		b.Run(fmt.Sprintf("nodes=%d/jobs=%d/count=%d/spread=%s", c.nodes, c.jobs, c.count, c.spread), func(b *testing.B) {
			view := benchRegion(c.nodes, c.jobs, c.count, c.spread).Snapshot()
			placed := 0
			b.ReportAllocs()
			for b.Loop() {
				p := sched.Make(sched.Input{View: view, NowUnixNano: int64(time.Hour), Funcs: testFuncs})
				placed += len(p.Places)
			}
			b.ReportMetric(float64(placed)/b.Elapsed().Seconds(), "placements/s")
		})
	}
}

// BenchmarkApply is what a plan costs the state, a snapshot after each entry.
func BenchmarkApply(b *testing.B) {
	for _, count := range []int{1, 100} {
		b.Run(fmt.Sprintf("nodes=5000/count=%d", count), func(b *testing.B) {
			view := benchRegion(5_000, 10_000/count, count, "").Snapshot()
			p := sched.Make(sched.Input{View: view, NowUnixNano: int64(time.Hour), Funcs: testFuncs})
			id := 0
			plans := p.Commands(func() string { id++; return fmt.Sprintf("%032d", id*7919) }, 256)
			for b.Loop() {
				s := view.Fork()
				for i := range plans {
					s.Apply(view.Index()+uint64(i)+1, state.Command{ApplyPlan: &plans[i]})
					s.Snapshot()
				}
			}
			b.ReportMetric(float64(len(p.Places)*b.N)/b.Elapsed().Seconds(), "placements/s")
		})
	}
}
