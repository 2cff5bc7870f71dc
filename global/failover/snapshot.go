package failover

import (
	"strconv"
	"time"
)

// Snapshot is everything that a plan depends on. Decide does not change it.
type Snapshot struct {
	// Lease is the length of the regions' leases, LeaseMax the greatest length that may be
	// outstanding, also from an earlier active server.
	Lease, LeaseMax time.Duration
	// Active is how long this server has been the active one.
	Active time.Duration
	// Calm is how long ago the latest mass loss ended; Active if this server saw none.
	Calm time.Duration
	// OtherServers is the number of other servers that stand for election.
	OtherServers int
	// Resigned: in the present mass loss a server has resigned already.
	Resigned bool
	// Earlier is the alarm of the mass loss that an earlier active server saw; empty for none.
	Earlier string
	// Regions sorted by name.
	Regions []Region
}

// Region is one region of the federation.
type Region struct {
	Name string
	// Connected: a live session exists. A connected region may be silent.
	Connected bool
	// NeverConnected: no cluster has ever connected under this name.
	NeverConnected bool
	// Lost: the region was declared lost and has not connected since. NothingRuns: an
	// operator states that nothing runs there any more.
	Lost, NothingRuns bool
	// Silent is the time since the last message that does not show that nothing arrives at
	// the region.
	Silent time.Duration
	// Slots that the region owns, in the order of their keys. Read only for regions that
	// are lost or have been silent for Snapshot.Quiet.
	Slots []Slot
	// Former is the number of instances of other regions' slots that this region owned before,
	// and has not confirmed to have stopped. No lease stops them.
	Former int
}

// Slot is a slot of a silent or lost region.
type Slot struct {
	Namespace, Job, Group string
	// From and To: the slot has the indices From ≤ i < To.
	From, To   int
	Generation int64
	// After and Replace are the group's present policy.
	After   time.Duration
	Replace bool
	// Stop: the lease of the region binds the present version of the group.
	Stop bool
	// Bound: the owner may run a version that the lease binds. BoundFor is how long
	// something of these versions may still run: until every lease that the region was
	// granted is over, stop time included. ≤ 0: nothing of them runs.
	Bound    bool
	BoundFor time.Duration
	// Unbound: the owner may run a version that the lease does not bind.
	Unbound bool
	// Set names the groups of the job that share their regions; empty for none.
	Set string
	// Done: every instance has ended. System: the slot of a system job. Stopping: the slot
	// has to go, and its owner has not confirmed that nothing of it runs.
	Done, System, Stopping bool
}

// String prints "default/api/web[0-5]".
func (s Slot) String() string {
	out := s.Namespace + "/" + s.Job + "/" + s.Group + "[" + strconv.Itoa(s.From)
	if s.To-s.From > 1 {
		out += "-" + strconv.Itoa(s.To-1)
	}
	return out + "]"
}

const (
	// maxPause is the longest time between two messages of a connected region. Masters of
	// an earlier version report at least as often.
	maxPause = 5 * time.Second
	// unsteadyTimes and unsteadyWithin: a region that was lost so often within this time
	// gets no work back by itself.
	unsteadyTimes  = 3
	unsteadyWithin = time.Hour
)

// Quiet is how long a region must have sent nothing to count as silent.
func (s Snapshot) Quiet() time.Duration { return min(s.Lease/3, maxPause) + time.Second }

// notice is the least silence for a verdict, whatever the job says. The last messages of
// regions that are cut off at one moment arrive at different times. After this silence all of
// these regions count as silent, so that a mass loss is seen before the first verdict.
func (s Snapshot) notice() time.Duration { return s.Quiet() + 2*time.Second }

// Unsteady says whether a region was lost so often that it gets no work back by itself.
// lostAgo says how long ago each verdict was.
func Unsteady(lostAgo []time.Duration) bool {
	n := 0
	for _, ago := range lostAgo {
		if ago < unsteadyWithin {
			n++
		}
	}
	return n >= unsteadyTimes
}
