package predict

import (
	"cmp"
	"math"
	"slices"
)

// Probe is a measurement to make: region From measures its round trip to region To.
type Probe struct{ From, To int }

const (
	// enough is the number of samples that determine the position of a region. For a
	// region with fewer samples the predictions are too bad to select its partners.
	enough = 4
	// One in unsureShare probes measures the pairs with the least certain predictions. The
	// other probes search for the nearest region.
	unsureShare = 2
)

// Next returns the most useful pairs to measure. quota says how many probes each region
// may start; a missing region has 0. Each pair is returned at most once, whichever end
// starts the probe. can says which pairs may be probed; nil = all. Measured pairs are left
// out. A region with few measurements gets random partners, which determine its position
// best. Other regions measure the pairs with the least certain predictions, and partners
// that are near on the map and have a similar row, because the nearest region is among
// these.
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
		share := (n.left[i] + i%unsureShare) / unsureShare // if left is odd, every other region has one more unsure probe
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

// addFirst adds probes to the first count regions of an order that may be probed.
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

// addUnsure adds probes of the pairs with the greatest expected errors.
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
