package place

import (
	"container/heap"
	"math"
	"slices"
)

// option is a region that may take instances.
type option struct {
	// fits is how many more instances fit, > 0.
	fits int
	// owned counts the instances that the region has.
	owned int
	// weight is the region's weight in `prefer`.
	weight int
}

// division is the input of divide: how many instances to place, and the bounds.
type division struct {
	spec RegionsSpec
	// desired is the size of the whole group, n the number of instances to
	// place.
	desired, n int
	// usedElsewhere counts regions that have instances of the group and can
	// take no more. They count for spread.
	usedElsewhere int
	// chunk is the least number of instances for a region that has none, ≥ 1.
	chunk int
}

// divisionResult says how many instances each option takes, in the order of the
// options, and how many are held back because spread.min cannot be met.
type divisionResult struct {
	counts   []int
	heldBack int
}

// divide gives n instances to options, the best first. It chooses a primary set
// of regions as Divide says, and divides n among them by the method of highest
// averages (D'Hondt), starting from the instances that they own already. The
// overflow goes to the next best regions, as far as spread.max allows.
func (d division) divide(options []option) divisionResult {
	out := divisionResult{counts: make([]int, len(options))}
	distinct, openable := d.distinct(options, out.counts), 0
	for _, o := range options {
		if o.owned == 0 && o.fits >= d.chunk {
			openable++
		}
	}
	limit := math.MaxInt
	if d.spec.SpreadMax > 0 {
		limit = d.spec.SpreadMax
	}
	if least := min(d.spec.SpreadMin, d.desired); least > 0 {
		if possible := max(distinct, min(limit, distinct+openable)); possible < least {
			out.heldBack = min(d.n, (least-possible)*max(1, d.desired/least))
		}
	}
	left := d.n - out.heldBack

	primary := d.primary(options, distinct, limit)
	left -= d.average(options, primary, left, out.counts)
	distinct = d.distinct(options, out.counts)
	for i, o := range options {
		if left <= 0 {
			break
		}
		if o.owned == 0 && out.counts[i] == 0 {
			if distinct >= limit || o.fits < d.chunk || !d.spare(options, out.counts, &left) {
				continue
			}
			distinct++
		}
		take := min(o.fits-out.counts[i], left)
		out.counts[i] += take
		left -= take
	}
	return out
}

// distinct counts the regions that the group uses.
func (d division) distinct(options []option, counts []int) int {
	n := d.usedElsewhere
	for i, o := range options {
		if o.owned+counts[i] > 0 {
			n++
		}
	}
	return n
}

// spare makes sure that a whole chunk is left for a region that has none yet,
// if necessary by taking from regions that got more than a chunk. If it cannot
// it changes nothing and returns false.
func (d division) spare(options []option, counts []int, left *int) bool {
	gifts, sum := make([]int, len(counts)), *left
	for i := range counts {
		keep := d.chunk
		if options[i].owned > 0 {
			keep = 0
		}
		gifts[i] = max(0, min(d.chunk-sum, counts[i]-keep))
		sum += gifts[i]
	}
	if sum < d.chunk {
		return false
	}
	for i, g := range gifts {
		counts[i] -= g
	}
	*left = sum
	return true
}

// primary chooses the regions among which n is divided.
func (d division) primary(options []option, distinct, limit int) []int {
	weighted := d.spec.Divide == DivideWeighted &&
		slices.ContainsFunc(options, func(o option) bool { return o.weight > 0 })
	size := max(1, min(d.spec.SpreadMin, d.desired))
	if d.spec.Divide == DivideEven || d.spec.Divide == DivideWeighted {
		switch {
		case d.spec.SpreadMax > 0:
			size = max(size, d.spec.SpreadMax)
		case d.spec.SpreadMin == 0:
			size = len(options) + d.usedElsewhere
		}
	}
	size = min(size, max(1, d.desired/d.chunk))

	var chosen []int
	choose := func(i int) {
		o := options[i]
		if len(chosen)+d.usedElsewhere >= size && len(chosen) > 0 {
			return
		}
		if weighted && o.weight <= 0 || o.fits < d.chunk && o.owned == 0 || o.owned == 0 && distinct >= limit {
			return
		}
		if o.owned == 0 {
			distinct++
		}
		chosen = append(chosen, i)
	}
	// A group that uses several regions stays in those it has. A group that
	// uses one region has the sticky term in the score instead.
	if size > 1 {
		for i := range options {
			if options[i].owned > 0 {
				choose(i)
			}
		}
	}
	for i := range options {
		if size == 1 || options[i].owned == 0 {
			choose(i)
		}
	}
	// Too few regions have a weight for spread.min: regions without one fill
	// the gap.
	if weighted && len(chosen)+d.usedElsewhere < min(d.spec.SpreadMin, size) {
		weighted = false
		for i := range options {
			if !slices.Contains(chosen, i) {
				choose(i)
			}
		}
		slices.Sort(chosen)
	}
	return chosen
}

// average gives up to n instances to the primary regions and returns how many
// it gave.
func (d division) average(options []option, primary []int, n int, counts []int) (given int) {
	if d.chunk > 1 || d.spec.SpreadMin > 0 {
		for _, i := range primary {
			if o := options[i]; o.owned == 0 && n-given >= d.chunk && o.fits >= d.chunk {
				counts[i] = d.chunk
				given += d.chunk
			}
		}
	}
	q := &quotients{}
	for rank, i := range primary {
		o := options[i]
		share := 1
		switch d.spec.Divide {
		case DivideEven:
		case DivideWeighted:
			share = max(1, o.weight)
		default:
			share = o.fits + o.owned
		}
		if counts[i] < o.fits && (d.chunk == 1 || o.owned+counts[i] > 0) {
			q.items = append(q.items, quotient{index: i, rank: rank, share: int64(share), has: int64(o.owned + counts[i])})
		}
	}
	heap.Init(q)
	for ; given < n && q.Len() > 0; given++ {
		top := &q.items[0]
		counts[top.index]++
		top.has++
		if counts[top.index] >= options[top.index].fits {
			heap.Pop(q)
			continue
		}
		heap.Fix(q, 0)
	}
	return given
}

// quotients is a heap: the region with the greatest share/(has+1) is on top.
type quotients struct{ items []quotient }

type quotient struct {
	index, rank int
	share, has  int64
}

func (q *quotients) Len() int { return len(q.items) }
func (q *quotients) Less(i, j int) bool {
	a, b := q.items[i], q.items[j]
	if x, y := a.share*(b.has+1), b.share*(a.has+1); x != y {
		return x > y
	}
	return a.rank < b.rank
}
func (q *quotients) Swap(i, j int) { q.items[i], q.items[j] = q.items[j], q.items[i] }
func (q *quotients) Push(x any)    { q.items = append(q.items, x.(quotient)) }
func (q *quotients) Pop() any {
	last := q.items[len(q.items)-1]
	q.items = q.items[:len(q.items)-1]
	return last
}
