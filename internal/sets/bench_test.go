package sets_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/sets"
	"github.com/nusa-scheduler/nusa/topology"
)

func row() []topology.Edge {
	edges := make([]topology.Edge, 1000)
	for i := range edges {
		d := time.Duration(i+1) * 100 * time.Microsecond
		edges[i] = topology.Edge{From: "a", To: fmt.Sprint("region-", i), State: topology.OK, P50: d, P90: d, P99: d, Min: d, Samples: i % 50}
	}
	return edges
}

// BenchmarkPackRow encodes a row of 1,000 edges.
func BenchmarkPackRow(b *testing.B) {
	edges := row()
	b.ReportAllocs()
	for b.Loop() {
		if len(sets.PackRow(edges)) == 0 {
			b.Fatal("empty")
		}
	}
}

// BenchmarkRow decodes a row of 1,000 edges into the space of the one before.
func BenchmarkRow(b *testing.B) {
	edges := row()
	packed := sets.PackRow(edges)
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if edges, err = sets.AppendRow(edges[:0], "a", packed, 1000); err != nil || len(edges) != 1000 {
			b.Fatal(err)
		}
	}
}
