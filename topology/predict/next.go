package predict

import (
	"cmp"
	"math"
	"slices"
)

// Probe is a measurement to make: From measures its round trip to To.
type Probe struct{ From, To int }

const (
	// enough is the number of samples that determine a region's position. With fewer,
	// the model's predictions cannot select its partners.
	enough = 4
	// unsureShare: one in unsureShare probes goes to the pairs with the least certain
	// prediction. The others look for the nearest region.
	unsureShare = 2
)

// Next returns the most useful pairs to measure. Each region may start quota
// probes (by region; missing = 0), and each pair is returned once, whichever end
// starts it. can says which pairs may be probed; nil = all. Measured pairs are left
// out. Regions with few measurements get random partners, which determine their
// position best. The others get the pairs with the least certain prediction, and
// partners that are near on the map and have a similar row, since the nearest region
// is among these.
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
		share := (n.left[i] + i%unsureShare) / unsureShare // an odd probe counts here for every other region
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

// free reports whether a pair may be probed.
func (n *next) free(a, b int) bool {
	return a != b && !n.chosen[min(a, b)*n.m.n+max(a, b)] && (n.can == nil || n.can(min(a, b), max(a, b)))
}

func (n *next) add(from, to int) {
	n.left[from]--
	n.chosen[min(from, to)*n.m.n+max(from, to)] = true
	n.probes = append(n.probes, Probe{from, to})
}

// addFirst probes the first count free regions of an order.
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

// addUnsure probes pairs by their expected error, the greatest first.
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
