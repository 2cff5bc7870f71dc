package drift

import (
	"cmp"
	"fmt"
	"slices"
)

// Kind is a kind of difference.
type Kind string

// The kinds of differences.
const (
	// Lacks: an object that should be there is not.
	Lacks Kind = "lacks"
	// Stray: an object is there that should not be.
	Stray Kind = "stray"
	// Old: an object has an earlier version than it should have.
	Old Kind = "old"
	// Newer: an object has a later version than is known. Nothing can repair that.
	Newer Kind = "newer"
)

// Difference is one difference between what should be and what is.
type Difference struct {
	Kind Kind
	Key  string
	// Want and Have are the versions. 0: there is none.
	Want, Have uint64
}

// String returns the difference as one line.
func (d Difference) String() string {
	switch d.Kind {
	case Lacks:
		return fmt.Sprintf("it is missing, version %d should be there", d.Want)
	case Stray:
		return fmt.Sprintf("version %d is there, and should not be", d.Have)
	}
	return fmt.Sprintf("version %d is there, and should be %d", d.Have, d.Want)
}

// Compare returns the differences between the versions that should be there and those that are,
// sorted by key.
func Compare(want, have map[string]uint64) []Difference {
	var out []Difference
	for key, w := range want {
		h, there := have[key]
		switch {
		case !there:
			out = append(out, Difference{Lacks, key, w, 0})
		case h < w:
			out = append(out, Difference{Old, key, w, h})
		case h > w:
			out = append(out, Difference{Newer, key, w, h})
		}
	}
	for key, h := range have {
		if _, wanted := want[key]; !wanted {
			out = append(out, Difference{Stray, key, 0, h})
		}
	}
	slices.SortFunc(out, func(a, b Difference) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

// Lasting returns the differences that were there in an earlier look, too. Work that is on its way
// between two tiers differs in one look, and not in the same way in a later one.
func Lasting(earlier, later []Difference) []Difference {
	seen := make(map[Difference]bool, len(earlier))
	for _, d := range earlier {
		seen[d] = true
	}
	return slices.DeleteFunc(slices.Clone(later), func(d Difference) bool { return !seen[d] })
}
