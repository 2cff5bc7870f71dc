package presence

import (
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// noticedSilence divides the lease: after half the lease without a message, a node with
// a session is shown as silent. A healthy agent sends at each third.
const noticedSilence = 2

// Session is the state of a node's session with the master.
type Session uint8

const (
	// None: the node has no session.
	None Session = iota
	// Resyncing: the node was lost or had left, and the master lacks reports of that
	// time.
	Resyncing
	// Current: the master has all reports of the node.
	Current
)

// Node is the contact of one node with a master. Not safe for concurrent use.
type Node struct {
	// seen is when the node last sent anything while grants reached it, arrived when
	// anything arrived, granted when the latest request that was granted arrived.
	seen, arrived, granted time.Duration
	// absent follows seen while the node is ready, and stays after that: a node that
	// returns is absent until it is ready again.
	absent time.Duration
	// handling counts the node's messages that are being handled: at most one a session.
	handling int
	// left: the agent said goodbye. Its silence is intended until its next hello.
	left bool
	// lost: the node is declared lost, and has no lease before Returned.
	lost bool
	// unanswered is when the earliest grant was made that the agent has not confirmed, and
	// first its id; latest is the id of the latest grant of the session, 0 for none.
	unanswered    time.Duration
	first, latest uint64
	// deaf: grants do not reach the node. What it sends does not count.
	deaf bool
}

// New returns a node that has not been seen in the term, which began at elected.
func New(elected time.Duration) Node {
	if plant.Is(plant.LostAtElection) {
		elected -= time.Hour
	}
	return Node{seen: elected, arrived: elected, granted: elected, absent: elected}
}

// Seen returns when the node last sent anything, or the beginning of the term.
func (n *Node) Seen() time.Duration { return n.seen }

// HasLeft reports whether the agent said goodbye.
func (n *Node) HasLeft() bool { return n.left }

// Arrived records that a message of the node arrived and is being handled.
func (n *Node) Arrived(now time.Duration) {
	n.receive(now)
	n.handling++
}

// Handled records that a message is handled. Later messages of the node waited until now.
func (n *Node) Handled(now time.Duration) {
	n.receive(now)
	n.handling--
}

func (n *Node) receive(now time.Duration) {
	n.arrived = max(n.arrived, now)
	if !n.deaf {
		n.seen = n.arrived
	}
}

// Attached records a new session at a time. The hello is an answer to this server.
func (n *Node) Attached(now time.Duration) {
	n.left, n.deaf, n.first, n.latest = false, false, 0, 0
	n.receive(now)
}

// Requested records a request of a lease whose sender confirms its grants: the latest
// that it received in this session is confirmed, 0 for none. A node that has missed
// grants for half a lease is deaf.
func (n *Node) Requested(confirmed uint64, lease time.Duration) {
	switch {
	case n.latest == 0 || confirmed >= n.latest:
		n.first, n.deaf = 0, false
		n.receive(n.arrived)
	case confirmed >= n.first:
		n.first, n.unanswered = confirmed+1, n.arrived
	default:
		n.deaf = n.arrived-n.unanswered > lease/2
	}
}

// Grant records that a lease is granted to the request that is being handled, and returns
// true. The node counts the lease from the sending of the request, which was before its
// arrival. False: the node is declared lost. Its instances may be given up at this
// moment, so it must be ready again, and know what it lost, before it has a lease.
func (n *Node) Grant(id uint64) bool {
	if n.lost {
		return false
	}
	n.granted = n.arrived
	if n.first == 0 {
		n.first, n.unanswered = id, n.arrived
	}
	n.latest = id
	return true
}

// Deaf reports whether grants do not reach the node.
func (n *Node) Deaf() bool { return n.deaf }

// Returned records that the log says that the node is ready, after it was declared lost.
func (n *Node) Returned() { n.lost = false }

// Leave records the goodbye of the agent.
func (n *Node) Leave() { n.left, n.absent = true, n.seen }

// Status returns the status that a node should have now, and how long it has been
// silent. stored is its status in the log, lease the time after which a silent node is
// lost. It is called at intervals shorter than the lease.
func (n *Node) Status(stored state.NodeStatus, with Session, lease, now time.Duration) (state.NodeStatus, time.Duration) {
	if stored == state.NodeLeft {
		return stored, 0 // the node stays so until its next hello
	}
	if stored == state.NodeReady {
		n.absent = n.seen
	}
	silent := now - n.seen
	switch {
	case n.left:
		return stored, silent // its goodbye is being committed
	case stored == state.NodeLost && with != Current:
		return stored, silent // the node stays so until the reports of its absence are committed
	case n.handling > 0 && !n.deaf:
		// The master is slow, for example because of the disks of the log: a message of
		// the node waits there.
		return state.NodeReady, 0
	case silent > lease:
		n.lost = true
		return state.NodeLost, silent
	case with != None:
		return state.NodeReady, silent
	}
	return stored, silent
}

// Silence returns how long, at least, a node that should send messages has sent none,
// for people; false while it sends. recorded is the age of the status in the log, by
// wall clocks: a lost node may be so since an earlier term.
func (n *Node) Silence(stored state.NodeStatus, with Session, lease, recorded, now time.Duration) (time.Duration, bool) {
	silent := max(now-n.seen, 0)
	switch {
	case stored == state.NodeLeft, n.handling > 0 && !n.deaf:
		return 0, false
	case stored == state.NodeLost:
		return max(silent, recorded), true
	case with != None && silent <= lease/noticedSilence:
		return 0, false
	}
	return silent, true
}

// SilentFor reports whether a node has been silent for longer than the lease.
func (n *Node) SilentFor(lease, now time.Duration) bool { return now-n.seen > lease }
