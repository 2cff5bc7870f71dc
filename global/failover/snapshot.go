package failover

import (
	"fmt"
	"strconv"
	"time"
)

// Snapshot is everything that a plan depends on. Decide does not change it.
type Snapshot struct {
	// Lease is the length of the regions' leases. LeaseMax is the greatest length of a lease that
	// may last now, also one from an earlier active server.
	Lease, LeaseMax time.Duration
	// Active is how long this server has been the active one.
	Active time.Duration
	// Calm is how long ago the latest mass loss ended. It equals Active if this server saw none.
	Calm time.Duration
	// OtherServers is the number of other servers that stand for election.
	OtherServers int
	// Resigned: a server has already resigned because of the present mass loss.
	Resigned bool
	// Earlier is the alarm of a mass loss that an earlier active server saw. Empty: it saw none.
	Earlier string
	// Unconfirmed names the regions, sorted, that have not confirmed what they run since the store
	// was recovered from an old copy. The copy does not say what they run.
	Unconfirmed []string
	// Regions are sorted by name.
	Regions []Region
}

// Region is one region of the federation.
type Region struct {
	Name string
	// Connected: the region has a live session. A connected region may be silent.
	Connected bool
	// NeverConnected: no cluster has ever connected under this name.
	NeverConnected bool
	// Lost: the region was declared lost and has not connected since. NothingRuns: an operator
	// stated that nothing runs in the region any more.
	Lost, NothingRuns bool
	// Silent is the time since the region's last message. Messages that show that nothing arrives
	// at the region do not count.
	Silent time.Duration
	// Slots are the slots that the region owns, in the order of their keys. They are read only for
	// regions that are lost or have been silent for Snapshot.Quiet.
	Slots []Slot
	// Former is the number of instances that this region may still run although other regions own
	// them now. The region owned them before, and has not confirmed that they have stopped. No
	// lease stops them.
	Former int
}

// Slot is a slot of a silent or lost region.
type Slot struct {
	Namespace, Job, Group string
	// From and To are the bounds of the indices: From ≤ i < To.
	From, To   int
	Generation int64
	// After and Replace are the group's present policy in disconnect.region.
	After   time.Duration
	Replace bool
	// Stop: the lease of the region binds the present version of the group.
	Stop bool
	// Bound: the owner may run a version that the lease binds. BoundFor is how long instances of
	// such versions may still run: until every lease that the region got is over, stop time
	// included. At 0 or below, none of them runs.
	Bound    bool
	BoundFor time.Duration
	// Unbound: the owner may run a version that the lease does not bind.
	Unbound bool
	// Set names the set of groups that share their regions. Empty: the group is not colocated.
	Set string
	// Done: every instance has ended. System: the slot belongs to a system job. Stopping: the slot
	// has the order to stop, and its owner has not confirmed that nothing of it runs.
	Done, System, Stopping bool
}

// String prints the slot, for example "default/api/web[0-5]".
func (s Slot) String() string {
	out := s.Namespace + "/" + s.Job + "/" + s.Group + "[" + strconv.Itoa(s.From)
	if s.To-s.From > 1 {
		out += "-" + strconv.Itoa(s.To-1)
	}
	return out + "]"
}

const (
	// maxPause is the longest time between two messages of a connected region. Masters of an
	// earlier version send at least this often.
	maxPause = 5 * time.Second
	// unsteadyTimes and unsteadyWithin: a region that was lost this many times within this time
	// gets no work back without an operator.
	unsteadyTimes  = 3
	unsteadyWithin = time.Hour
)

// unconfirmed returns why a recovery of the store holds moves back, or "" if it does not.
func (s Snapshot) unconfirmed() string {
	n := len(s.Unconfirmed)
	switch {
	case n == 0:
		return ""
	case n == 1:
		return fmt.Sprintf("until %s has confirmed what it runs: the store was recovered", s.Unconfirmed[0])
	}
	return fmt.Sprintf("until %d regions have confirmed what they run: the store was recovered", n)
}

// Quiet returns the time without a message after which a region counts as silent.
func (s Snapshot) Quiet() time.Duration { return min(s.Lease/3, maxPause) + time.Second }

// Notice returns the least silence for a verdict, whatever the job says, in whole seconds. lease is
// the length of the regions' leases. When regions are cut off at one moment, their last messages arrived at different
// times. After this silence all of them count as silent, so a mass loss is seen before the first
// verdict.
func Notice(lease time.Duration) time.Duration {
	return (Snapshot{Lease: lease}.notice() + time.Second - 1).Truncate(time.Second)
}

func (s Snapshot) notice() time.Duration { return s.Quiet() + 2*time.Second }

// Unsteady reports whether a region was lost so often that it gets no work back without an
// operator. lostAgo says how long ago each verdict was.
func Unsteady(lostAgo []time.Duration) bool {
	n := 0
	for _, ago := range lostAgo {
		if ago < unsteadyWithin {
			n++
		}
	}
	return n >= unsteadyTimes
}
