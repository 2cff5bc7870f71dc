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
	return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(b.Fits, a.Fits), cmp.Compare(a.Region, b.Region))
}

// Column has a spot for each region, and their order once a caller has asked for it.
type Column struct {
	// Spots are in the order of the regions' indices. Only Set changes them.
	Spots []Spot
	order []Spot
}

// NewColumn returns a column that refuses all of n regions.
func NewColumn(n int) *Column {
	c := &Column{Spots: make([]Spot, n)}
	for i := range c.Spots {
		c.Spots[i] = Spot{Score: Refused, Region: int32(i)}
	}
	return c
}

// Expect announces a number of calls of Set. It drops the order if many calls are cheaper without
// it.
func (c *Column) Expect(changes int) {
	if changes > len(c.Spots)/8 {
		c.order = nil
	}
}

// Set changes the spot of a region.
func (c *Column) Set(s Spot) {
	old := c.Spots[s.Region]
	if s == old {
		return
	}
	c.Spots[s.Region] = s
	if c.order == nil {
		return
	}
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

// Order returns the regions that are not refused, in the order of Compare. The list is valid until
// the next Set.
func (c *Column) Order() []Spot {
	if c.order == nil {
		c.order = slices.Clone(c.Spots)
		slices.SortFunc(c.order, Compare)
	}
	end, _ := slices.BinarySearchFunc(c.order, Spot{Score: Refused, Region: -1, Fits: math.MaxInt}, Compare)
	return c.order[:end]
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
