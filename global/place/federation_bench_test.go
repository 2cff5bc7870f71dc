package place

import (
	"fmt"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/bench/emulate"
	"github.com/nusa-scheduler/nusa/topology"
)

// federation returns regions at the places of the published table of Azure, with the round trips
// between them, and pending jobs: a third near a region, half of these within a bound, a sixth over
// three regions.
func federation(regions, jobs int) Snapshot {
	const asks, nodes = 8, 100
	places := emulate.Places("", regions)
	var s Snapshot
	known, edges := make([]topology.Region, regions), []topology.Edge{}
	for i := range places {
		known[i] = topology.Region{Name: places[i].Name}
		for k := range places {
			if i == k {
				continue
			}
			rtt := places[i].RTT(&places[k])
			edges = append(edges, topology.Edge{
				From: places[i].Name, To: places[k].Name, State: topology.OK, Source: topology.Measured,
				P50: rtt, P90: rtt + rtt/20, P99: rtt + rtt/5, Min: rtt, Samples: 20, Age: time.Second,
			})
		}
		r := Region{
			Name: places[i].Name, Connected: true, HasReport: true, ReportAge: time.Second, ReportSequence: 7, SlotsRevision: 10,
			FeatureLevel: 1, NodesReady: nodes, Drivers: []string{"process"}, Fits: map[uint64]int{},
			Free: Resources{CPUMilli: nodes * 48_000, MemoryBytes: nodes << 37}, Capacity: Resources{CPUMilli: nodes * 64_000, MemoryBytes: nodes << 38},
			Bins: []Bin{{Nodes: nodes, Free: Resources{CPUMilli: 48_000, MemoryBytes: 1 << 37}}},
		}
		for size := range asks {
			a := askOfSize(size)
			r.Fits[a.Hash()] = nodes * 48_000 / int(a.CPUMilli)
		}
		s.Regions = append(s.Regions, &r)
	}
	s.Topology, s.Terse = topology.NewView(known, edges), true
	for i := range jobs {
		g := Group{Name: "g", Count: 1, Ask: askOfSize(i % asks)}
		target := Selector{Name: places[i*7919%regions].Name}
		switch i % 6 {
		case 0:
			g.Count = min(3, regions)
			g.Regions = RegionsSpec{SpreadMin: g.Count, SpreadMax: g.Count, Divide: DivideEven}
		case 1, 4:
			g.Regions.Near = []Near{{Selector: target, MaxRTT: 60 * time.Millisecond, Required: i%6 == 4, Weight: 50}}
		}
		s.Jobs = append(s.Jobs, Job{
			Namespace: "default", Name: fmt.Sprintf("j%05d", i), Version: 1, Type: Service, Priority: 50, Revision: int64(11 + i), Groups: []Group{g},
		})
	}
	return s
}

func askOfSize(size int) Ask {
	return Ask{CPUMilli: int64(100 * (1 + size)), MemoryBytes: 64 << 20, Drivers: []string{"process"}}
}

// BenchmarkFederation plans the pending jobs of a whole federation.
func BenchmarkFederation(b *testing.B) {
	for _, regions := range []int{5, 50, 200, 1000} {
		for _, jobs := range []int{1, 1000} {
			s := federation(regions, jobs)
			b.Run(fmt.Sprintf("pending=%d/regions=%d", jobs, regions), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					MakePlan(s)
				}
			})
			s.Index = NewIndex()
			b.Run(fmt.Sprintf("indexed/pending=%d/regions=%d", jobs, regions), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					MakePlan(s)
				}
			})
		}
	}
}

// BenchmarkSubmits plans six new jobs at a time, as a server does for a transaction with six
// submits. The slots of each plan are charged before the next one, and after each plan a
// two-hundredth of the regions report.
func BenchmarkSubmits(b *testing.B) {
	const each = 6
	for _, regions := range []int{5, 50, 200, 1000} {
		s := federation(regions, 1002)
		jobs, accounts := s.Jobs, make([]Account, regions)
		s.Index = NewIndex()
		b.Run(fmt.Sprintf("regions=%d", regions), func(b *testing.B) {
			b.ReportAllocs()
			changed := func(i int) {
				r := *s.Regions[i]
				r.Charged = accounts[i].Charges()
				s.Regions[i] = &r
			}
			next := 0
			for n := 0; b.Loop(); n++ {
				s.Jobs = jobs[n*each%len(jobs):][:each]
				at := map[int]bool{}
				for _, a := range MakePlan(s).Actions {
					i := regionList(s.Regions).index(a.Region)
					g := &jobs[(n*each)%len(jobs)].Groups[0]
					accounts[i].Put(s.Regions[i], Charge{Region: a.Region, Key: fmt.Sprint(n, a.Job), Generation: 20, Ask: &g.Ask, Hash: g.hash(), Count: 1})
					at[i] = true
				}
				for range max(1, regions/200) {
					next = (next + 1) % regions
					accounts[next] = Account{}
					at[next] = true
				}
				for i := range at {
					changed(i)
				}
			}
		})
	}
}

// TestFederationBenchmarkPlacesAll: the benchmark measures placements, not refusals.
func TestFederationBenchmarkPlacesAll(t *testing.T) {
	for _, regions := range []int{5, 50} {
		s := federation(regions, 60)
		plan := MakePlan(s)
		placed := 0
		for _, a := range plan.Actions {
			if a.Kind == Offer {
				placed += a.To - a.From
			}
		}
		if placed != 80 {
			t.Errorf("%d regions: %d of 80 instances are placed", regions, placed)
		}
	}
}
