package plan

import (
	"cmp"
	"slices"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// Span are the instances From ≤ i < To of a group.
type Span struct {
	Group    string
	From, To int32
}

// Add returns spans with one more instance. The spans are sorted by group and From, and none touches
// another one of its group. It does not change its argument.
func Add(all []Span, group string, index int32) []Span {
	at, found := search(all, group, index)
	if found || plant.Is(plant.LetterTwice) {
		return all
	}
	out := slices.Insert(slices.Clone(all), at, Span{group, index, index + 1})
	if at+1 < len(out) && out[at+1].Group == group && out[at+1].From == index+1 {
		out[at].To = out[at+1].To
		out = slices.Delete(out, at+1, at+2)
	}
	if at > 0 && out[at-1].Group == group && out[at-1].To == index {
		out[at-1].To = out[at].To
		out = slices.Delete(out, at, at+1)
	}
	return out
}

// Has reports whether spans have an instance.
func Has(all []Span, group string, index int32) bool {
	_, found := search(all, group, index)
	return found
}

// search returns the span that has an instance, or where its own span would be inserted.
func search(all []Span, group string, index int32) (at int, found bool) {
	at, _ = slices.BinarySearchFunc(all, Span{Group: group, From: index}, func(a, b Span) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.From, b.From))
	})
	if at < len(all) && all[at].Group == group && all[at].From == index {
		return at, true
	}
	if at > 0 && all[at-1].Group == group && index < all[at-1].To {
		return at - 1, true
	}
	return at, false
}
