package presence

import (
	"time"

	"github.com/nusa-scheduler/nusa/internal/lease"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Absence says how long a node has been absent. It counts within the term of one master.
type Absence struct {
	// Silent is the time since the node's last message. A node that is back still counts as
	// silent until the log says that it is ready.
	Silent time.Duration
	// Unleased is the time since the master last granted the node a lease.
	Unleased time.Duration
}

// Absence returns how long a node has been absent. stored is the node's status in the log.
func (n *Node) Absence(stored state.NodeStatus, now time.Duration) Absence {
	since := n.absent
	if stored == state.NodeReady {
		since = n.seen
	}
	return Absence{Silent: max(now-since, 0), Unleased: max(now-n.granted, 0)}
}

// Left returns how long to wait until the node has been silent for the duration after. It
// is ≤ 0 if that time has passed.
func (a Absence) Left(after time.Duration) time.Duration { return after - a.Silent }

// LeaseLeft returns how long to wait until no task that the node's lease binds can run on
// the node any more. It is ≤ 0 if none can run now. length is the longest lease that the
// node may hold, and stop is the longest time between the stop signal and the kill of a
// task.
func (a Absence) LeaseLeft(length, stop time.Duration) time.Duration {
	return lease.Over(length, stop) - a.Unleased
}
