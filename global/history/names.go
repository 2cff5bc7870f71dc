package history

import (
	"iter"
	"slices"
)

// addedMost is the greatest number of added names that are not sorted yet.
const addedMost = 1 << 16

// Names holds the names of jobs in the order in which lists show the jobs. The zero value is
// empty. A removed name may still be in it, so the caller must check which jobs exist.
type Names struct {
	sorted, added []string
	removed       int
}

// Add adds a name. The name may be present already.
func (n *Names) Add(job string) {
	n.added = append(n.added, job)
	if len(n.added) >= addedMost {
		n.sortIn()
	}
}

// Removed counts a name whose job no longer exists.
func (n *Names) Removed() { n.removed++ }

// sortIn merges the added names into the sorted ones.
func (n *Names) sortIn() {
	slices.Sort(n.added)
	added := slices.DeleteFunc(slices.Compact(n.added), func(job string) bool {
		_, known := slices.BinarySearch(n.sorted, job)
		return known
	})
	have := len(n.sorted)
	n.sorted = slices.Grow(n.sorted, len(added))[:have+len(added)]
	for i, job := range slices.Backward(added) {
		at, _ := slices.BinarySearch(n.sorted[:have], job)
		copy(n.sorted[at+i+1:], n.sorted[at:have])
		n.sorted[at+i] = job
		have = at
	}
	clear(n.added)
	n.added = n.added[:0]
}

// After yields, in order, the names after the given one of jobs that exist. exists reports
// whether a job has a name.
func (n *Names) After(job string, exists func(string) bool) iter.Seq[string] {
	if len(n.added) > 0 {
		n.sortIn()
	}
	if n.removed > len(n.sorted)/2 {
		n.sorted, n.removed = slices.DeleteFunc(n.sorted, func(job string) bool { return !exists(job) }), 0
	}
	at, found := slices.BinarySearch(n.sorted, job)
	if found {
		at++
	}
	return func(yield func(string) bool) {
		for _, name := range n.sorted[at:] {
			if exists(name) && !yield(name) {
				return
			}
		}
	}
}
