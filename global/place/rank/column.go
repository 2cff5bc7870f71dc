package rank

import (
	"cmp"
	"math"
	"slices"
)

// Refused is the score of a region that is refused.
const Refused = math.MinInt32

// Spot is a region with its score and how many instances fit into it.
type Spot struct {
	Score  int32
	Region int32
	Fits   int
}

// Compare orders spots: by greater score, then by more room, then by index.
func Compare(a, b Spot) int {
	switch { // not cmp.Or, which evaluates all three comparisons
	case a.Score != b.Score:
		return cmp.Compare(b.Score, a.Score)
	case a.Fits != b.Fits:
		return cmp.Compare(b.Fits, a.Fits)
	}
	return cmp.Compare(a.Region, b.Region)
}

// Column has a spot for each region, and their order once a caller has asked for it.
type Column struct {
	// Spots are in the order of the regions' indices. Only Set changes them.
	Spots []Spot
	// order are all spots in the order of Compare, except that it still has the old spots of the
	// regions in moved. Nil: no caller has asked for the order.
	order []Spot
	// moved are the old spots of the regions that have changed since the latest call of Order.
	// isMoved says for each region whether it is one of them.
	moved   []Spot
	isMoved []bool
}

// NewColumn returns a column that refuses all of n regions.
func NewColumn(n int) *Column {
	c := &Column{Spots: make([]Spot, n)}
	for i := range c.Spots {
		c.Spots[i] = Spot{Score: Refused, Region: int32(i)}
	}
	return c
}

// Set changes the spot of a region.
func (c *Column) Set(s Spot) {
	old := c.Spots[s.Region]
	if s == old {
		return
	}
	c.Spots[s.Region] = s
	if c.order != nil && !c.isMoved[s.Region] {
		c.moved, c.isMoved[s.Region] = append(c.moved, old), true
	}
}

// mergeFrom is the number of regions for each changed one from which on it is cheaper to move the
// changed spots one by one.
const mergeFrom = 32

// Order returns the regions that are not refused, in the order of Compare. The list is valid until
// the next call of Order.
func (c *Column) Order() []Spot {
	switch {
	case c.order == nil:
		c.order, c.isMoved = slices.Clone(c.Spots), make([]bool, len(c.Spots))
		slices.SortFunc(c.order, Compare)
	case len(c.moved)*mergeFrom < len(c.Spots):
		for _, old := range c.moved {
			c.move(old, c.Spots[old.Region])
		}
	default:
		c.merge()
	}
	for _, old := range c.moved {
		c.isMoved[old.Region] = false
	}
	c.moved = c.moved[:0]
	end, _ := slices.BinarySearchFunc(c.order, Spot{Score: Refused, Region: -1, Fits: math.MaxInt}, Compare)
	return c.order[:end]
}

// move replaces a spot in the order.
func (c *Column) move(old, s Spot) {
	from, _ := slices.BinarySearchFunc(c.order, old, Compare)
	to, _ := slices.BinarySearchFunc(c.order, s, Compare)
	if to > from {
		to-- // the old place becomes free
		copy(c.order[from:to], c.order[from+1:to+1])
	} else {
		copy(c.order[to+1:from+1], c.order[to:from])
	}
	c.order[to] = s
}

// merge replaces all spots in moved in one pass over the order.
func (c *Column) merge() {
	for i := range c.moved {
		c.moved[i] = c.Spots[c.moved[i].Region]
	}
	slices.SortFunc(c.moved, Compare)
	kept := slices.DeleteFunc(c.order, func(s Spot) bool { return c.isMoved[s.Region] })
	last := len(kept) - 1
	for to, i := len(c.order)-1, len(c.moved)-1; i >= 0; to-- {
		if last >= 0 && Compare(kept[last], c.moved[i]) > 0 {
			c.order[to] = kept[last]
			last--
			continue
		}
		c.order[to] = c.moved[i]
		i--
	}
}

// Best returns the first n spots of a list in the order of Compare.
func Best(list []Spot, n int) []Spot {
	if n >= len(list)/4 {
		list = slices.Clone(list)
		slices.SortFunc(list, Compare)
		return list[:min(n, len(list))]
	}
	out := make([]Spot, 0, n+1)
	for _, s := range list {
		if len(out) == n && (n == 0 || Compare(out[n-1], s) < 0) {
			continue
		}
		at, _ := slices.BinarySearchFunc(out, s, Compare)
		out = slices.Insert(out, at, s)
		out = out[:min(n, len(out))]
	}
	return out
}
