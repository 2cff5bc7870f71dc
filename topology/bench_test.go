package topology

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// world returns a view of n regions all over the globe, with all pairs measured. A round
// trip is the estimate from locations times a random factor of 0.7..1.9, so that a relay
// is faster for a third of the pairs.
func world(n int) *View {
	rnd := rand.New(rand.NewPCG(1, 2))
	var regions []Region
	for i := range n {
		regions = append(regions, Region{Name: fmt.Sprintf("region-%04d", i), Location: &Location{
			Latitude: math.Asin(2*rnd.Float64()-1) * 180 / math.Pi, Longitude: 360*rnd.Float64() - 180}})
	}
	edges := make([]Edge, 0, n*n)
	for i := range regions {
		for j := range regions {
			if i != j {
				d := time.Duration((0.7 + 1.2*rnd.Float64()) * float64(EstimateRTT(*regions[i].Location, *regions[j].Location)))
				edges = append(edges, Edge{From: regions[i].Name, To: regions[j].Name, State: OK, Source: Measured,
					P50: d, P90: d + d/10, P99: d + d/5, Samples: 20})
			}
		}
	}
	return NewView(regions, edges)
}

func BenchmarkThousandRegions(b *testing.B) {
	v := world(1000)
	router := NewRouter(v, 50)
	weights := Weights{CPU: msec, Queue: msec, Loads: map[string]Load{}}
	for i, r := range v.regions {
		weights.Loads[r.Name] = Load{CPUMean: float64(i%90) / 100, QueueMean: float64(i % 7)}
	}
	unmeasured := NewView(v.Regions(), nil)
	paths := func(r *Router, o PathOptions) func(b *testing.B) {
		return func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				from, to := v.regions[i%1000].Name, v.regions[(i*37+500)%1000].Name
				i++
				if found, err := r.Paths(from, to, o); err != nil || len(found) == 0 {
					b.Fatal(from, to, err)
				}
			}
		}
	}
	b.Run("router", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			NewRouter(v, 50)
		}
	})
	b.Run("router/estimated", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			NewRouter(unmeasured, 50)
		}
	})
	b.Run("paths/k=5,relays=2", paths(router, PathOptions{K: 5}))
	b.Run("paths/k=5,relays=2,weighed", paths(router, PathOptions{K: 5, Weights: weights}))
	b.Run("paths/k=16,relays=2", paths(router, PathOptions{K: 16}))
	b.Run("paths/k=5,relays=3", paths(router, PathOptions{K: 5, MaxRelays: 3}))
	b.Run("paths/k=5,relays=6", paths(router, PathOptions{K: 5, MaxRelays: 6}))
	b.Run("relays", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			v.Violations(50, 0.1, 100)
		}
	})
	b.Run("check", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Check(v, CheckOptions{})
		}
	})
	b.Run("nearest", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			v.Nearest("region-0500", 10, 50)
		}
	})
	b.Run("nearest/estimated", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			unmeasured.Nearest("region-0500", 10, 50)
		}
	})
}
