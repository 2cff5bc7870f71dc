package sched

import (
	"iter"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// todo are the instances of one slot that need a node.
type todo struct {
	slot  *state.Slot
	wants []want
}

// want is an instance that needs a node, or the whole range of those up to `to`
// of which nothing is remembered: a large job is planned in parts, and each
// part looks at all that is left.
type want struct {
	index, to int32
	known     *state.Instance
}

// many counts the instances.
func many(wants []want) int {
	n := 0
	for _, w := range wants {
		n += int(w.to - w.index)
	}
	return n
}

// each lists the instances one by one.
func each(wants []want) iter.Seq[want] {
	return func(yield func(want) bool) {
		for _, w := range wants {
			for i := w.index; i < w.to; i++ {
				if !yield(want{i, i + 1, w.known}) {
					return
				}
			}
		}
	}
}
