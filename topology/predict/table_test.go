package predict

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/topology"
)

// TestTablePredictsAndDoubts: a table predicts pairs that were measured in one direction
// or not at all, and doubts wrong measurements.
func TestTablePredictsAndDoubts(t *testing.T) {
	const n = 30
	rtt := plane(n, 4)
	var regions []topology.Region
	name := func(i int) string { return fmt.Sprintf("r%02d", i) }
	for i := range n + 1 { // the last region has no measurement
		regions = append(regions, topology.Region{Name: name(i)})
	}
	edge := func(i, j int, ms float64) topology.Edge {
		d := time.Duration(ms * 1e6)
		return topology.Edge{From: name(i), To: name(j), State: topology.OK, Source: topology.Measured, P50: d, P90: d, P99: d, Min: d}
	}
	var edges []topology.Edge
	for i := range n {
		for j := range n {
			switch {
			case i == j || (i*j)%7 == 3 || (i*j)%7 == 4 && i < j:
			case i == 3 && j == 5:
				edges = append(edges, edge(i, j, 9000))
			default:
				edges = append(edges, edge(i, j, rtt(i, j)))
			}
		}
	}
	v := topology.NewView(regions, edges)
	table := NewTable(v, 1)
	if table.Samples() != len(edges) || len(table.Doubts()) != 1 || table.Doubts()[0].From != name(3) || table.Doubts()[0].To != name(5) {
		t.Fatalf("%d samples, doubts %v", table.Samples(), table.Doubts())
	}
	if table.Number(name(n)) != -1 || table.Number("unknown") != -1 || table.Number(name(2)) != 2 {
		t.Error("the region without a measurement has a number")
	}
	m := topology.NewMatrix()
	m.SetRegions(regions)
	for _, e := range edges {
		m.Set(e, 0)
	}
	with := m.View(0, 0, table)
	for i := range n {
		for j := range n {
			if i == j {
				continue
			}
			e, was := with.Edge(name(i), name(j)), v.Edge(name(i), name(j))
			back := v.Edge(name(j), name(i))
			truth := time.Duration(rtt(i, j) * 1e6)
			switch {
			case was.Source == topology.Measured && (e.P50 != was.P50 || (e.Doubt != "") != (i == 3 && j == 5)):
				t.Errorf("%s %s: %+v", name(i), name(j), e)
			case was.Source == topology.Measured:
			case e.Source != topology.Predicted || e.Error <= 0:
				t.Errorf("not predicted: %+v", e)
			case back.Source == topology.Measured && e.P50 != back.P50:
				t.Errorf("the other direction is %s, predicted %s", back.P50, e.P50)
			case (e.P50 - truth).Abs() > truth/2+5*time.Millisecond:
				t.Errorf("predicted %s ± %.2f, is %s", e.P50, e.Error, truth)
			}
		}
	}
	if e := with.Edge(name(0), name(n)); e.Source != topology.None {
		t.Errorf("of an unknown region: %+v", e)
	}
	for _, tc := range []struct {
		what   string
		change func() topology.Edge
		want   bool
	}{
		{"one of many", func() topology.Edge { return edge(1, 2, 3*rtt(1, 2)+50) }, false},
		{"a doubted one", func() topology.Edge { return edge(3, 5, rtt(3, 5)) }, true},
	} {
		changed := topology.NewMatrix()
		changed.SetRegions(regions)
		for _, e := range append(edges, tc.change()) {
			changed.Set(e, 0)
		}
		if got := table.Outdated(changed.View(0, 0, table)); got != tc.want {
			t.Errorf("%s changed: outdated %t", tc.what, got)
		}
	}
	if table.Outdated(with) || !table.Outdated(topology.NewView(regions[1:], edges)) || !table.Outdated(topology.NewView(regions, edges[:len(edges)*9/10])) {
		t.Error("outdated without a noticeable change")
	}
}

// TestTableEqualsAList: a table reads the measurements of a view pair by pair. Its doubts and round trips are those
// that Clean finds in a list of the measurements, row by row.
func TestTableEqualsAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		regions := make([]topology.Region, rapid.IntRange(1, 9).Draw(t, "regions"))
		locations := make([]*topology.Location, len(regions))
		for i := range regions {
			if rapid.Bool().Draw(t, "located") {
				locations[i] = &topology.Location{Latitude: rapid.Float64Range(-90, 90).Draw(t, "latitude"), Longitude: rapid.Float64Range(-180, 180).Draw(t, "longitude")}
			}
			regions[i] = topology.Region{Name: fmt.Sprintf("r%d", i), Location: locations[i]}
		}
		rtt := rapid.SampledFrom([]time.Duration{0, time.Millisecond, 5 * time.Millisecond, 40 * time.Millisecond, 250 * time.Millisecond, 9 * time.Second})
		var edges []topology.Edge
		for _, from := range regions {
			for _, to := range regions {
				if rapid.IntRange(0, 3).Draw(t, "measured") > 0 {
					d := rtt.Draw(t, "rtt")
					edges = append(edges, topology.Edge{From: from.Name, To: to.Name, State: topology.OK, Source: topology.Measured, P50: d, P90: d, P99: d, Min: min(d, rtt.Draw(t, "least"))})
				}
			}
		}
		v := topology.NewView(regions, edges)
		var samples []Sample
		for i := range regions {
			for j := range regions {
				if p50, least, ok := v.MeasuredAt(i, j); ok && i != j {
					samples = append(samples, Sample{From: i, To: j, RTT: milliseconds(p50), Min: milliseconds(least)})
				}
			}
		}
		pairs, rejected := Clean(len(regions), samples, locations)
		var doubts []topology.Doubt
		for _, r := range rejected {
			s := samples[r.Sample]
			doubts = append(doubts, topology.Doubt{From: regions[s.From].Name, To: regions[s.To].Name, Why: string(r.Flaw)})
		}
		table := NewTable(v, 1)
		if table.Samples() != len(samples) || !slices.Equal(table.Doubts(), doubts) {
			t.Fatalf("%d samples, doubts %v, want %d, %v", table.Samples(), table.Doubts(), len(samples), doubts)
		}
		for _, p := range pairs {
			if got := table.rtt[table.at(p.A, p.B)]; got != spanOf(p.RTT) {
				t.Fatalf("pair %v: %s", p, got.Duration())
			}
		}
	})
}

// BenchmarkNewTable makes a table from the measurements of all pairs, and of one in 32.
func BenchmarkNewTable(b *testing.B) {
	for _, c := range []struct{ n, each int }{{100, 1}, {1000, 1}, {1000, 32}} {
		n := c.n
		rtt := plane(n, 1)
		m := topology.NewMatrix()
		regions := make([]topology.Region, n)
		for i := range regions {
			regions[i].Name = fmt.Sprintf("r%04d", i)
		}
		m.SetRegions(regions)
		for i := range n {
			for j := range n {
				if d := time.Duration(rtt(i, j) * 1e6); i != j && (i+j)%c.each == 0 {
					m.Set(topology.Edge{From: regions[i].Name, To: regions[j].Name, State: topology.OK, Source: topology.Measured, P50: d, P90: d, P99: d, Min: d}, 0)
				}
			}
		}
		v := m.View(0, 0, nil)
		b.Run(fmt.Sprintf("regions=%d/one-in=%d", n, c.each), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				NewTable(v, 1)
			}
		})
	}
}
