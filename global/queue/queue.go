// Package queue computes the places of groups that wait for a region. It is pure.
//
//	queue.go  Waiting, Place, and the order of the placer
package queue

import (
	"cmp"
	"slices"
	"strings"
)

// Asked is an amount of resources.
type Asked struct{ CPUMilli, MemoryBytes, DiskBytes int64 }

// Waiting is a group with instances that no region has.
type Waiting struct {
	Namespace, Job, Group string
	// Priority and Revision are those of the job. A lower revision is that of an older submit.
	Priority int
	Revision int64
	// Count is the number of the waiting instances. Each asks for Ask.
	Count int64
	Ask   Asked
}

// Compare orders groups as the placer decides about them: by priority, then by the revision of the submit.
func (w *Waiting) Compare(o *Waiting) int {
	return cmp.Or(cmp.Compare(o.Priority, w.Priority), cmp.Compare(w.Revision, o.Revision),
		strings.Compare(w.Namespace, o.Namespace), strings.Compare(w.Job, o.Job), strings.Compare(w.Group, o.Group))
}

// Place is the place of a group in the queue, and what stands before it.
type Place struct {
	// Position counts the groups from 1.
	Position int32
	// Higher and Earlier count the waiting instances before the group: those with a higher priority, and
	// those with the same priority.
	Higher, Earlier int64
	// Asked is what all these instances ask for.
	Asked Asked
}

// Places sorts the groups, and returns the place of each.
func Places(all []Waiting) []Place {
	slices.SortFunc(all, func(a, b Waiting) int { return a.Compare(&b) })
	out := make([]Place, len(all))
	var at Place
	for i := range all {
		w := &all[i]
		if i > 0 && w.Priority != all[i-1].Priority {
			at.Higher, at.Earlier = at.Higher+at.Earlier, 0
		}
		at.Position++
		out[i] = at
		at.Earlier += w.Count
		at.Asked.CPUMilli += w.Count * w.Ask.CPUMilli
		at.Asked.MemoryBytes += w.Count * w.Ask.MemoryBytes
		at.Asked.DiskBytes += w.Count * w.Ask.DiskBytes
	}
	return out
}
