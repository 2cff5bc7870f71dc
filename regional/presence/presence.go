package presence

import (
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// noticedSilence is a divisor of the lease. After lease/noticedSilence without a message, a
// node with a session is shown as silent. A healthy agent sends three messages in a lease.
const noticedSilence = 2

// Session is the state of a node's session with the master.
type Session uint8

const (
	// None: the node has no session.
	None Session = iota
	// Resyncing: the node was lost or had left. The master does not have all the node's
	// reports from that time yet.
	Resyncing
	// Current: the master has all reports of the node.
	Current
)

// Node is a master's contact with one node. It is not safe for concurrent use.
type Node struct {
	// seen is when the node last sent a message while it also received grants. arrived is
	// when the last message arrived. granted is when the last request arrived that the
	// master granted.
	seen, arrived, granted time.Duration
	// absent equals seen while the node is ready, and does not change after that. So a node
	// that returns counts as absent until it is ready again.
	absent time.Duration
	// handling counts the node's messages that are being handled, at most one for each
	// session.
	handling int
	// left: the agent said goodbye. It is expected to be silent until its next hello.
	left bool
	// lost: the node was declared lost. It gets no lease until Returned is called.
	lost bool
	// first is the id of the earliest grant that the agent has not confirmed, and
	// unanswered is when the master made that grant. latest is the id of the latest grant
	// in the session. An id of 0 means no grant.
	unanswered    time.Duration
	first, latest uint64
	// deaf: grants do not reach the node. The master then does not count the node's
	// messages as contact.
	deaf bool
}

// New returns a node that has sent nothing in this term. The term began at elected.
func New(elected time.Duration) Node {
	if plant.Is(plant.LostAtElection) {
		elected -= time.Hour
	}
	return Node{seen: elected, arrived: elected, granted: elected, absent: elected}
}

// Seen returns when the node last sent a message, or the beginning of the term.
func (n *Node) Seen() time.Duration { return n.seen }

// HasLeft reports whether the agent said goodbye.
func (n *Node) HasLeft() bool { return n.left }

// Arrived records that a message of the node arrived and is being handled.
func (n *Node) Arrived(now time.Duration) {
	n.receive(now)
	n.handling++
}

// Handled records that a message has been handled. Later messages of the node may have
// waited until now, so the silence counts from now.
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

// Attached records that a new session began at now. The hello shows that messages of this
// server reach the node.
func (n *Node) Attached(now time.Duration) {
	n.left, n.deaf, n.first, n.latest = false, false, 0, 0
	n.receive(now)
}

// Requested records a request for a lease from an agent that confirms its grants. confirmed
// is the id of the latest grant that the agent received in this session, 0 for none. A node
// that has missed all grants for half a lease is deaf.
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

// Grant records that the master grants a lease to the request that is being handled, and
// returns true. The agent counts the lease from the moment when it sent the request, which
// was before the request arrived. Grant returns false when the node was declared lost: its
// instances may be given up at this moment. Such a node must be ready again, and must know
// which instances it lost, before it gets a lease.
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

// Returned records that the log says that the node is ready again after it was declared
// lost.
func (n *Node) Returned() { n.lost = false }

// Leave records that the agent said goodbye.
func (n *Node) Leave() { n.left, n.absent = true, n.seen }

// Status returns the status that a node should have now, and how long it has been silent.
// stored is the node's status in the log. lease is the time after which a silent node is
// lost. The caller calls Status at intervals shorter than the lease.
func (n *Node) Status(stored state.NodeStatus, with Session, lease, now time.Duration) (state.NodeStatus, time.Duration) {
	if stored == state.NodeLeft {
		return stored, 0 // the node stays left until its next hello
	}
	if stored == state.NodeReady {
		n.absent = n.seen
	}
	silent := now - n.seen
	switch {
	case n.left:
		return stored, silent // the goodbye is being committed
	case stored == state.NodeLost && with != Current:
		return stored, silent // the node stays lost until the reports of its absence are committed
	case n.handling > 0 && !n.deaf:
		// The master is slow, for example because of the log's disks. A message of the node
		// waits in the master, so the node is not silent.
		return state.NodeReady, 0
	case silent > lease:
		n.lost = true
		return state.NodeLost, silent
	case with != None:
		return state.NodeReady, silent
	}
	return stored, silent
}

// Silence returns how long a node that should send messages has at least sent none, for
// display. It returns false while the node is not silent. recorded is the age of the node's
// status in the log by wall clocks, because a lost node may be lost since an earlier term.
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
