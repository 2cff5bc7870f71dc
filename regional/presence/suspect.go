package presence

import (
	"iter"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Suspicion decides for how long a master takes its log for an old copy. An operator who puts an
// old copy into the place of a region's log stops all servers before. So the log of a server that
// has run for longer than every lease of before its start is none, and before that the nodes show
// it: an agent that has an order that the log does not have is refused.
//
// While a log is suspect nothing that a lease binds begins by it, and nothing has ended by it. The
// zero value suspects nothing. Not safe for concurrent use.
type Suspicion struct {
	// until is when every lease of before the start of the server is over.
	until time.Duration
	// missing are the nodes of the log whose agents were not accepted in this term; nil: the log has
	// grown since the server's start, so an order that it lacks may have the index of a later entry.
	missing map[string]struct{}
}

// Start is what a server found when it started.
type Start struct {
	// At is on the clock of the leases.
	At time.Duration
	// Index at which the server's log ended; 0: it had no log, so no copy.
	Index uint64
}

// NewSuspicion returns the suspicion of a master at its election. ends is the index of the log then, over
// how long earlier leases take to be over, and nodes are all nodes in the log.
func NewSuspicion(s Start, ends uint64, over time.Duration, nodes iter.Seq[*state.Node]) Suspicion {
	if s.Index == 0 || plant.Is(plant.OldLog) {
		return Suspicion{}
	}
	d := Suspicion{until: s.At + over}
	if ends <= s.Index {
		d.missing = map[string]struct{}{}
		for n := range nodes {
			d.missing[n.ID] = struct{}{}
		}
	}
	return d
}

// Accepted records that the agent of a node has no order that the log does not have.
func (d *Suspicion) Accepted(node string) { delete(d.missing, node) }

// At reports whether the log is suspect. Once it is not, it never is again.
func (d *Suspicion) At(now time.Duration) bool {
	if d.until == 0 {
		return false
	}
	if now >= d.until || d.missing != nil && len(d.missing) == 0 {
		*d = Suspicion{}
		return false
	}
	return true
}
