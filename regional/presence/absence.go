package presence

import (
	"time"

	"github.com/nusa-scheduler/nusa/internal/lease"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Absence is how long a node has been absent at one time, in the term of one master.
type Absence struct {
	// Silent is the time since the last message of the node. A node that is back counts as
	// silent until it is ready.
	Silent time.Duration
	// Unleased is the time since the node got its latest lease.
	Unleased time.Duration
}

// Absence returns how long a node with a stored status has been absent.
func (n *Node) Absence(stored state.NodeStatus, now time.Duration) Absence {
	since := n.absent
	if stored == state.NodeReady {
		since = n.seen
	}
	return Absence{Silent: max(now-since, 0), Unleased: max(now-n.granted, 0)}
}

// Left returns how long to wait until the node has been silent for after, ≤ 0 if it has
// been.
func (a Absence) Left(after time.Duration) time.Duration { return after - a.Silent }

// LeaseLeft returns how long to wait until nothing that the node's lease binds can run
// there, ≤ 0 if that is certain. length is the greatest lease that may be outstanding,
// stop the longest time between the stop signal and the kill.
func (a Absence) LeaseLeft(length, stop time.Duration) time.Duration {
	return lease.Over(length, stop) - a.Unleased
}
