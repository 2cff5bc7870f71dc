package topology

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestPaletteIsAList: a palette has the values of an ordinary list, and few more values than are
// distinct. A copy does not change.
func TestPaletteIsAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{1, 3, 100, 600}).Draw(t, "n")
		p, want := newPalette[int](n), make([]int, n)
		copied, wasWant := p.clone(), slices.Clone(want)
		check := func(p *palette[int], want []int) {
			distinct := map[int]bool{}
			for i, v := range want {
				distinct[v] = true
				if got := p.get(i); got != v {
					t.Fatalf("element %d is %d, want %d", i, got, v)
				}
			}
			if most := 2*n + leastMost; len(p.values) > most {
				t.Fatalf("%d values of %d elements, %d distinct", len(p.values), n, len(distinct))
			}
		}
		for step := range rapid.IntRange(0, 900).Draw(t, "steps") {
			i, v := rapid.IntRange(0, n-1).Draw(t, "i"), step
			if rapid.Bool().Draw(t, "common") {
				v = rapid.IntRange(0, 3).Draw(t, "v")
			}
			p.set(i, v)
			want[i] = v
			if step == 50 {
				copied, wasWant = p.clone(), slices.Clone(want)
			}
		}
		check(&p, want)
		check(&copied, wasWant)
		p.compact()
		check(&p, want)
		if n := len(p.values); p.wide && 2*n <= narrowMost || !p.wide && n > narrowMost {
			t.Fatalf("wide = %t with %d values", p.wide, len(p.values))
		}
		if values := slices.Compact(slices.Sorted(slices.Values(want))); len(p.values) != len(values) {
			t.Fatalf("%d values after compact, %d distinct", len(p.values), len(values))
		}
	})
}

// BenchmarkSetRow sets all edges of a row, each with another time.
func BenchmarkSetRow(b *testing.B) {
	const n = 1000
	for b.Loop() {
		r := newRow(n)
		for j := range n {
			r.setCell(j, cell{trips{p50: Span(j)}, facts{state: OK, samples: uint16(j % 50)}})
			r.times.set(j, times{seen: 1, set: 2})
		}
		for j := range n {
			r.times.set(j, times{seen: 10, set: 2 + 3*1000*1000})
		}
	}
}

// BenchmarkConfirm confirms a row of 1,000 edges after some edges of it were set.
func BenchmarkConfirm(b *testing.B) {
	m := NewMatrix()
	regions := make([]Region, 1000)
	for i := range regions {
		regions[i].Name = fmt.Sprintf("r%03d", i)
	}
	m.SetRegions(regions)
	for _, r := range regions[1:] {
		m.Set(measured("r000", r.Name, 10, OK), 0)
	}
	b.ReportAllocs()
	for now := time.Duration(0); b.Loop(); now += 5 * time.Second {
		m.Set(measured("r000", regions[1+int(now/time.Second)%100].Name, 10, OK), now)
		m.Confirm("r000", nil, time.Second, now, time.Minute)
	}
}
