package rank

import (
	"cmp"
	"slices"
	"sort"
)

// Choice is the order in which regions are chosen for one group.
type Choice struct {
	// Spots are the first regions in the order of Compare. All: they are all regions.
	Spots []Spot
	All   bool
	// Tied is how many of the first spots count as equal; 0: none. Their order begins at index
	// First, and then the spot at place Other and the first one change places.
	Tied, First, Other int
}

// At returns the region at place i of the order.
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

// Choose sorts spots in the order of Compare, as far as the first n need it. Spots within band
// below the best score count as equal. Among these, spots with less room than wanted come last.
// sorted says that the spots are already in the order of Compare.
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
