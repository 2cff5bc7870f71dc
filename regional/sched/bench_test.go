package sched_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// benchAsk is the ask of every instance in a benchmark.
var benchAsk = state.Ask{Pool: "default", Resources: state.Resources{CPUMilli: 100, MemoryBytes: 64 << 20}}

// benchRegion returns a state with nodes, and with slots for jobs × count instances.
func benchRegion(nodes, jobs, count int, ask state.Ask) *state.State {
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
		disk := "ssd"
		if i%4 == 0 {
			disk = "hdd"
		}
		do(state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{
			ID: fmt.Sprintf("node-%05d", i), Name: fmt.Sprintf("node-%05d", i), Pool: "default",
			Labels:   map[string]string{"rack": fmt.Sprint(i % 20), "disk": disk},
			Capacity: state.Resources{CPUMilli: 64_000, MemoryBytes: 256 << 30, DiskBytes: 1 << 40},
		}}})
	}
	for j := range jobs {
		name := fmt.Sprintf("job-%06d", j)
		do(state.Command{ApplyOrders: benchOrder(name, count, ask)})
	}
	return s
}

// benchOrder orders count instances of a new job.
func benchOrder(job string, count int, ask state.Ask) *state.ApplyOrders {
	return &state.ApplyOrders{Orders: []state.SlotOrder{{
		Slot: state.Slot{Namespace: "default", Job: job, Group: "g", To: int32(count), Generation: 1, JobVersion: 1, Desired: state.Run},
		Job:  &state.Job{Version: 1, Type: state.Service, Groups: []state.Group{{Name: "g", Hash: 1, Ask: ask}}},
	}}}
}

// benchNodes are sizes of regions. The cost of a placement should be nearly equal in all of
// them.
var benchNodes = []int{100, 1_000, 5_000, 10_000}

// benchShapes are kinds of work with equal numbers of instances.
var benchShapes = []struct {
	name        string
	jobs, count int
	ask         func(*state.Ask)
}{
	{"one-job", 1, 10_000, func(*state.Ask) {}},
	{"many-jobs", 10_000, 1, func(*state.Ask) {}},
	{"constraint", 10_000, 1, func(a *state.Ask) { a.Constraints = []string{"disk=ssd"} }},
	{"affinity", 100, 100, func(a *state.Ask) { a.Affinities = []state.Affinity{{Expr: "disk=ssd", Weight: 50}} }},
	{"spread", 100, 100, func(a *state.Ask) { a.Spread = "rack" }},
	// Few instances show the cost of a plan before its first placement.
	{"few", 1, 300, func(*state.Ask) {}},
	{"few-spread", 1, 300, func(a *state.Ask) { a.Spread = "rack" }},
	{"single", 1, 1, func(*state.Ask) {}},
}

// BenchmarkPlan makes one plan for all instances. For one shape, ns/placement should be
// compared over the numbers of nodes.
func BenchmarkPlan(b *testing.B) {
	for _, shape := range benchShapes {
		ask := benchAsk
		shape.ask(&ask)
		for _, nodes := range benchNodes {
			b.Run(fmt.Sprintf("%s=%dx%d/nodes=%d", shape.name, shape.jobs, shape.count, nodes), func(b *testing.B) {
				view := benchRegion(nodes, shape.jobs, shape.count, ask).Snapshot()
				placed := 0
				b.ReportAllocs()
				for b.Loop() {
					p := sched.Make(sched.Input{View: view, NowUnixNano: int64(time.Hour), Funcs: testFuncs})
					placed += len(p.Places)
				}
				if want := shape.jobs * shape.count * b.N; placed != want {
					b.Fatalf("%d of %d instances placed", placed, want)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(placed), "ns/placement")
			})
		}
	}
}

// BenchmarkQuiet makes a plan of a region in which no group needs a decision.
func BenchmarkQuiet(b *testing.B) {
	for _, nodes := range benchNodes {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			s := benchRegion(nodes, 1_000, 10, benchAsk)
			view := s.Snapshot()
			plan := sched.Make(sched.Input{View: view, NowUnixNano: int64(time.Hour), Funcs: testFuncs})
			for i, c := range benchCommands(plan) {
				s.Apply(view.Index()+uint64(i)+1, state.Command{ApplyPlan: &c, NowUnixNano: int64(time.Hour)})
			}
			view = s.Snapshot()
			b.ReportAllocs()
			for b.Loop() {
				if p := sched.Make(sched.Input{View: view, NowUnixNano: int64(time.Hour), Funcs: testFuncs}); !p.Empty() {
					b.Fatal("something is to be done")
				}
			}
		})
	}
}

// BenchmarkReserved makes a plan for one small instance while nodes are reserved for large
// instances that wait. That is the cost of every plan of a busy region in that time.
func BenchmarkReserved(b *testing.B) {
	for _, nodes := range benchNodes {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			half, whole := benchAsk, benchAsk
			half.Resources.CPUMilli, whole.Resources.CPUMilli = 33_000, 64_000
			s := benchRegion(nodes, 1, nodes, half)
			now := int64(time.Hour)
			for i, c := range benchCommands(sched.Make(sched.Input{View: s.Snapshot(), NowUnixNano: now, Funcs: testFuncs})) {
				s.Apply(s.Index()+uint64(i)+1, state.Command{ApplyPlan: &c, NowUnixNano: now})
			}
			for i, ask := range []state.Ask{whole, whole, whole, whole, benchAsk} {
				s.Apply(s.Index()+1, state.Command{NowUnixNano: now, ApplyOrders: benchOrder(fmt.Sprint("late-", i), 1, ask)})
			}
			in := sched.Input{View: s.Snapshot(), NowUnixNano: now + int64(2*time.Minute), Funcs: testFuncs}
			planner := sched.NewPlanner()
			b.ReportAllocs()
			for b.Loop() {
				if p := planner.Make(in); len(p.Places) != 1 || len(p.Reserved) != 4 {
					b.Fatalf("%d placed, %d nodes reserved", len(p.Places), len(p.Reserved))
				}
			}
		})
	}
}

// BenchmarkSteady makes plan after plan of a region in which jobs of one instance arrive.
// Between two plans arrive as many as a busy log puts into one entry. Either most of their
// asks are equal, or there are more distinct asks than a planner caches rankings.
func BenchmarkSteady(b *testing.B) {
	for _, asks := range []int{3, 500} {
		for _, nodes := range benchNodes {
			b.Run(fmt.Sprintf("asks=%d/nodes=%d", asks, nodes), func(b *testing.B) { benchSteady(b, asks, nodes) })
		}
	}
}

func benchSteady(b *testing.B, asks, nodes int) {
	const rounds, jobs = 100, 32
	s, now := benchRegion(nodes, 0, 0, benchAsk), int64(time.Hour)
	planner := sched.NewPlanner()
	var views []*state.View
	for r := range rounds + 1 {
		for j := range jobs {
			ask := benchAsk
			ask.Resources.CPUMilli += int64((r*jobs+j)%asks) * 2
			if r := s.Apply(s.Index()+1, state.Command{NowUnixNano: now, ApplyOrders: benchOrder(fmt.Sprintf("job-%03d-%03d", r, j), 1, ask)}); r.Err != nil {
				b.Fatal(r.Err)
			}
		}
		views = append(views, s.Snapshot())
		plan := planner.Make(sched.Input{View: views[r], NowUnixNano: now, Funcs: testFuncs})
		for _, c := range plan.Commands(uuid.NewString, 512) {
			s.Apply(s.Index()+1, state.Command{ApplyPlan: &c, NowUnixNano: now})
		}
	}
	placed := 0
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer() // the first plan reads all nodes
		planner := sched.NewPlanner()
		planner.Make(sched.Input{View: views[0], NowUnixNano: now, Funcs: testFuncs})
		b.StartTimer()
		for _, view := range views[1:] {
			plan := planner.Make(sched.Input{View: view, NowUnixNano: now, Funcs: testFuncs})
			placed += len(plan.Places)
		}
	}
	if placed != b.N*rounds*jobs {
		b.Fatalf("%d placed", placed)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(placed), "ns/placement")
}

func benchCommands(p *sched.Plan) []state.ApplyPlan {
	id := 0
	return p.Commands(func() string { id++; return fmt.Sprintf("%08x", uint32(id)*2654435761) }, 256)
}

// BenchmarkCommands turns a plan into commands.
func BenchmarkCommands(b *testing.B) {
	for _, count := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("%dx%d", 10_000/count, count), func(b *testing.B) {
			p := sched.Make(sched.Input{View: benchRegion(100, 10_000/count, count, benchAsk).Snapshot(), NowUnixNano: int64(time.Hour), Funcs: testFuncs})
			b.ReportAllocs()
			for b.Loop() {
				p.Commands(func() string { return "" }, 512)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(len(p.Places)*b.N), "ns/placement")
		})
	}
}

// BenchmarkApply applies a plan to the state, with a snapshot after each entry.
func BenchmarkApply(b *testing.B) {
	for _, count := range []int{1, 100} {
		for _, nodes := range []int{1_000, 10_000} {
			b.Run(fmt.Sprintf("%dx%d/nodes=%d", 10_000/count, count, nodes), func(b *testing.B) {
				view := benchRegion(nodes, 10_000/count, count, benchAsk).Snapshot()
				p := sched.Make(sched.Input{View: view, NowUnixNano: int64(time.Hour), Funcs: testFuncs})
				plans := benchCommands(p)
				b.ReportAllocs()
				for b.Loop() {
					s := view.Fork()
					for i := range plans {
						if r := s.Apply(view.Index()+uint64(i)+1, state.Command{ApplyPlan: &plans[i]}); len(r.Skipped) > 0 {
							b.Fatalf("not applied: %+v", r.Skipped[0])
						}
						s.Snapshot()
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(len(p.Places)*b.N), "ns/placement")
			})
		}
	}
}
