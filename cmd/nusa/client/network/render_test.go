package network

import (
	"fmt"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRendering shows every table from fixed messages, plain and in colour.
func TestRendering(t *testing.T) {
	wide := &nusav1.MatrixResponse{}
	for i := range 10 {
		wide.Regions = append(wide.Regions, fmt.Sprintf("region-%d", i+1))
	}
	sample.Render(t, []sample.Rendering{
		sample.Of("latency", func(w *term.Screen) { writeLatency(w, sample.Matrix(), latencyOptions{percentile: 50}) }),
		sample.Of("latency p99", func(w *term.Screen) { writeLatency(w, sample.Matrix(), latencyOptions{percentile: 99}) }),
		sample.Of("latency --from japaneast", func(w *term.Screen) {
			writeLatency(w, sample.Matrix(), latencyOptions{from: "japaneast", percentile: 50})
		}),
		sample.Of("latency --from eastus", func(w *term.Screen) {
			writeLatency(w, sample.Matrix(), latencyOptions{from: "eastus", percentile: 50})
		}),
		sample.Of("latency, by a region", func(w *term.Screen) {
			writeLatency(w, sample.SeenMatrix(sample.Lasting(0)), latencyOptions{percentile: 50})
		}),
		sample.Of("latency, by a region alone", func(w *term.Screen) {
			writeLatency(w, sample.SeenMatrix(sample.Lasting(3*time.Minute)), latencyOptions{percentile: 50})
		}),
		sample.Of("latency, by a region without contact", func(w *term.Screen) { writeLatency(w, sample.SeenMatrix(nil), latencyOptions{percentile: 50}) }),
		sample.Of("latency --from westus", func(w *term.Screen) {
			writeLatency(w, sample.Matrix(), latencyOptions{from: "westus", percentile: 50})
		}),
		sample.Of("latency of many regions", func(w *term.Screen) { writeLatency(w, wide, latencyOptions{percentile: 50}) }),
		sample.Of("topology show", func(w *term.Screen) { writeTree(w, sample.Tree(), nodesShown) }),
		sample.Of("topology show, by a region", func(w *term.Screen) {
			writeTree(w, &nusav1.TopologyTree{Regions: sample.Tree().GetRegions(), SeenBy: "japaneast", Alone: sample.Lasting(0)}, nodesShown)
		}),
		sample.Of("topology nearest, by a region", func(w *term.Screen) {
			writeNearest(w, "southeastasia", false, 50, &nusav1.NearestResponse{Regions: sample.Nearest().GetRegions(), SeenBy: "japaneast", Alone: sample.Lasting(0)})
		}),
		sample.Of("topology path, by a region alone", func(w *term.Screen) {
			writePaths(w, &nusav1.PathResponse{Paths: sample.Paths().GetPaths(), SeenBy: "japaneast", Alone: sample.Lasting(3 * time.Minute)})
		}),
		sample.Of("topology check, by a region without contact", func(w *term.Screen) {
			writeFindings(w, &nusav1.CheckTopologyResponse{Regions: 1, SeenBy: "japaneast"})
		}),
		sample.Of("topology nearest", func(w *term.Screen) { writeNearest(w, "southeastasia", false, 50, sample.Nearest()) }),
		sample.Of("topology nearest --location, of some without one", func(w *term.Screen) {
			writeNearest(w, "-6.2,106.8", true, 50, &nusav1.NearestResponse{Regions: []*nusav1.NearRegion{
				{Region: "frankfurt", Rtt: sample.Lasting(168 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_ESTIMATED, State: nusav1.EdgeState_EDGE_STATE_OK}, {Region: "singapore"}}})
		}),
		sample.Of("topology nearest --location, of regions without one", func(w *term.Screen) {
			writeNearest(w, "48.8,2.3", true, 50, &nusav1.NearestResponse{Regions: []*nusav1.NearRegion{{Region: "a"}, {Region: "b"}}})
		}),
		sample.Of("topology path", func(w *term.Screen) { writePaths(w, sample.Paths()) }),
		sample.Of("latency in 40 columns", func(w *term.Screen) { writeLatency(columns(w, 40), sample.Matrix(), latencyOptions{percentile: 50}) }),
		sample.Of("latency in 24 columns", func(w *term.Screen) { writeLatency(columns(w, 24), sample.Matrix(), latencyOptions{percentile: 50}) }),
		sample.Of("latency --all in 24 columns", func(w *term.Screen) {
			writeLatency(columns(w, 24), sample.Matrix(), latencyOptions{percentile: 50, all: true})
		}),
		sample.Of("latency of 60 regions", func(w *term.Screen) { writeLatency(w, sample.FederationOf(60), latencyOptions{percentile: 50}) }),
		sample.Of("topology show, two nodes of many", func(w *term.Screen) { writeTree(w, sample.CrowdedTree(), 2) }),
		sample.Of("topology path, with load", func(w *term.Screen) { writePaths(w, sample.WeighedPaths()) }),
		sample.Of("topology path over what is stale and what is contradicted", func(w *term.Screen) { writePaths(w, sample.DoubtedPaths()) }),
		sample.Of("topology check", func(w *term.Screen) { writeFindings(w, sample.Check()) }),
		sample.Of("topology check, nothing", func(w *term.Screen) { writeFindings(w, &nusav1.CheckTopologyResponse{Regions: 1}) }),
		sample.Of("origin list", func(w *term.Screen) { writeOrigins(w, &nusav1.ListOriginsResponse{Records: sample.Origins()}) }),
		sample.Of("origin list, by a region alone", func(w *term.Screen) {
			writeOrigins(w, &nusav1.ListOriginsResponse{Age: sample.Lasting(3 * time.Minute)})
		}),
		sample.Of("origin resolve", func(w *term.Screen) { writeResolved(w, "www.example.com", "southeastasia", sample.Resolved()) }),
		sample.Of("origin list, as of now", func(w *term.Screen) {
			writeOrigins(w, &nusav1.ListOriginsResponse{Records: sample.Origins(), Age: sample.Lasting(0)})
		}),
	})
}

// columns returns the same screen on a terminal of n columns.
func columns(w *term.Screen, n int) *term.Screen {
	other := *w
	other.Width = n
	return &other
}
