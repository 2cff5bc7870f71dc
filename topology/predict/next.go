package predict

import (
	"cmp"
	"math"
	"slices"
)

// Probe is a measurement to make: From measures its round trip to To.
type Probe struct{ From, To int }

const (
	// enough samples tell where a region is; with fewer, what the model makes of
	// it is no reason to choose its partners by.
	enough = 4
	// One in unsureShare probes goes to the pairs of which the model is least
	// sure; the others look for the nearest region.
	unsureShare = 2
)

// Next names the most useful pairs to measure: each region may start quota
// probes (by region; missing = 0), and each pair is named once, whoever starts
// it. can says which pairs are worth a try; nil = all. Measured pairs are left
// out. Regions that know few others get random ones: those tell most about
// where they are. The others get those that are near on the map and have a row
// like theirs, for among these is the nearest, and the pairs whose prediction is
// least sure.
func (m *Model) Next(quota []int, can func(a, b int) bool) []Probe {
	n := &next{m: m, can: can, left: make([]int, m.n), chosen: make([]bool, m.n*m.n)}
	copy(n.left, quota)
	known := make([]int, m.n)
	for _, p := range m.pairs {
		known[p.A]++
		known[p.B]++
		n.chosen[p.A*m.n+p.B] = true
	}
	r := random(m.seed + uint64(len(m.pairs)) + 1)
	var unsure int
	score := make([]float64, m.n)
	for i := range m.n {
		if known[i] < enough {
			n.addFirst(i, n.left[i], n.shuffled(&r))
			continue
		}
		share := (n.left[i] + i%unsureShare) / unsureShare // of single probes, every other region's
		unsure += share
		for k := range score {
			score[k] = m.mapped[i*m.n+k] + math.Log(m.unlike[i*m.n+k]+1e-6)
		}
		order := n.shuffled(&r)
		slices.SortFunc(order, func(x, y int) int { return cmp.Or(cmp.Compare(score[x], score[y]), x-y) })
		n.addFirst(i, n.left[i]-share, order)
	}
	n.addUnsure(unsure)
	return n.probes
}

type next struct {
	m      *Model
	can    func(a, b int) bool
	left   []int
	chosen []bool // a*n + b, a < b
	probes []Probe
}

// free reports whether a pair is worth a probe.
func (n *next) free(a, b int) bool {
	return a != b && !n.chosen[min(a, b)*n.m.n+max(a, b)] && (n.can == nil || n.can(min(a, b), max(a, b)))
}

func (n *next) add(from, to int) {
	n.left[from]--
	n.chosen[min(from, to)*n.m.n+max(from, to)] = true
	n.probes = append(n.probes, Probe{from, to})
}

// addFirst probes the first so many free ones of an order.
func (n *next) addFirst(from, count int, order []int) {
	for _, to := range order {
		if count <= 0 {
			return
		}
		if n.free(from, to) {
			n.add(from, to)
			count--
		}
	}
}

func (n *next) shuffled(r *random) []int {
	order := make([]int, n.m.n)
	for i := range order {
		j := r.below(i + 1)
		order[i] = order[j]
		order[j] = i
	}
	return order
}

// addUnsure probes pairs by the error to expect of them, the greatest first.
func (n *next) addUnsure(count int) {
	if count == 0 {
		return
	}
	type guess struct {
		a, b   int
		relErr float64
	}
	var all []guess
	for a := range n.m.n {
		for b := a + 1; b < n.m.n; b++ {
			if n.left[a]+n.left[b] > 0 && n.free(a, b) {
				_, relErr := n.m.RTT(a, b)
				all = append(all, guess{a, b, relErr})
			}
		}
	}
	slices.SortFunc(all, func(x, y guess) int {
		return cmp.Or(cmp.Compare(y.relErr, x.relErr), x.a-y.a, x.b-y.b)
	})
	for _, g := range all {
		from, to := g.a, g.b
		if n.left[to] > n.left[from] {
			from, to = to, from
		}
		if count > 0 && n.left[from] > 0 {
			n.add(from, to)
			count--
		}
	}
}
