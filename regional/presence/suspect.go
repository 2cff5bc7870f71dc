package presence

import (
	"iter"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Suspicion decides for how long a master suspects that its log is an old copy. An operator
// who puts an old copy in the place of a region's log stops all servers first. So the log
// is certainly no copy once its server has run until every lease from before the server's
// start has ended. Before that moment, the log is certainly no copy when the agents of all
// its nodes were accepted, because an agent with an order that the log does not have is
// refused.
//
// While a log is suspect, the master starts nothing that a lease binds, and does not treat
// any such instance as ended. The zero value suspects nothing. Suspicion is not safe for
// concurrent use.
type Suspicion struct {
	// until is when every lease from before the start of the server has ended.
	until time.Duration
	// missing are the nodes of the log whose agents were not accepted in this term. It is
	// nil when the log has grown since the server's start: an entry that was added then may
	// have the index of an order that the copy lacks, so accepted agents prove nothing.
	missing map[string]struct{}
}

// Start records the state of a server at its start.
type Start struct {
	// At is the time of the start, on the clock of the leases.
	At time.Duration
	// Index is the last index in the server's log. 0: the server had no log, so the log is
	// no copy.
	Index uint64
}

// NewSuspicion returns the suspicion of a master at its election. ends is the last index of
// its log at that moment. over is how long it takes until all earlier leases have ended.
// nodes are all nodes in the log.
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

// Accepted records that the agent of a node has no order that the log lacks.
func (d *Suspicion) Accepted(node string) { delete(d.missing, node) }

// At reports whether the log is suspect at now. After it returned false it always returns
// false.
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
