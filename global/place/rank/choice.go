package rank

import (
	"cmp"
	"slices"
	"sort"
)

// Choice is the order in which regions are chosen for one group.
type Choice struct {
	// Spots are the first regions by Compare, or all.
	Spots []Spot
	All   bool
	// Tied is the number of the first spots that count as equal, or 0. They begin with number
	// First, and Other then changes places with it.
	Tied, First, Other int
}

// At returns the region at a place in the order.
func (c *Choice) At(i int) Spot {
	if i >= c.Tied {
		return c.Spots[i]
	}
	switch i {
	case 0:
		i = c.Other
	case c.Other:
		i = 0
	}
	return c.Spots[(c.First+i)%c.Tied]
}

// Choose puts spots into the order of Compare, as far as at least the first n need it. The spots
// within a band below the best score count as equal; those with less room than wanted come
// after the others of them. Sorted says that the spots are in the order of Compare.
func Choose(spots []Spot, n int, sorted bool, wanted int, band float64) Choice {
	if len(spots) == 0 {
		return Choice{All: true}
	}
	best := spots[0].Score
	for i := 1; !sorted && i < len(spots); i++ {
		best = max(best, spots[i].Score)
	}
	equal := func(s Spot) bool { return float64(s.Score)/1000 >= float64(best)/1000-band }
	tied := 0
	if sorted {
		tied = sort.Search(len(spots), func(i int) bool { return !equal(spots[i]) })
	} else {
		for _, s := range spots {
			if equal(s) {
				tied++
			}
		}
		n = max(n, tied)
		sorted = n >= len(spots)
		spots = Best(spots, n)
	}
	c := Choice{Spots: spots, All: sorted}
	for _, s := range spots[:tied] {
		if s.Fits >= wanted {
			c.Tied++
		}
	}
	if c.Tied < tied {
		c.Spots = slices.Clone(spots)
		slices.SortStableFunc(c.Spots[:tied], func(a, b Spot) int {
			return cmp.Compare(min(b.Fits, wanted)/wanted, min(a.Fits, wanted)/wanted)
		})
	}
	if c.Tied < 2 {
		c.Tied = 0
	}
	return c
}
