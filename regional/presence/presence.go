package presence

import (
	"time"

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
	// seen is when the node last sent anything, granted when it sent the latest request
	// of a lease that was granted, at the latest.
	seen, granted time.Duration
	// absent follows seen while the node is ready, and stays after that: a node that
	// returns is absent until it is ready again.
	absent time.Duration
	// handling counts the node's messages that are being handled: at most one a session.
	handling int
	// left: the agent said goodbye. Its silence is intended until its next hello.
	left bool
}

// New returns a node that has not been seen in the term, which began at elected.
func New(elected time.Duration) Node {
	return Node{seen: elected, granted: elected, absent: elected}
}

// Seen returns when the node last sent anything, or the beginning of the term.
func (n *Node) Seen() time.Duration { return n.seen }

// HasLeft reports whether the agent said goodbye.
func (n *Node) HasLeft() bool { return n.left }

// Arrived records that a message of the node arrived and is being handled.
func (n *Node) Arrived(now time.Duration) {
	n.seen = max(n.seen, now)
	n.handling++
}

// Handled records that a message is handled. Later messages of the node waited until now.
func (n *Node) Handled(now time.Duration) {
	n.seen = max(n.seen, now)
	n.handling--
}

// Attached records a new session at a time.
func (n *Node) Attached(now time.Duration) {
	n.seen = max(n.seen, now)
	n.left = false
}

// Grant records that a lease is granted to the request that is being handled. The node
// counts the lease from the sending of the request, which was before its arrival.
func (n *Node) Grant() { n.granted = n.seen }

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
	case n.handling > 0:
		// The master is slow, for example because of the disks of the log: a message of
		// the node waits there.
		return state.NodeReady, 0
	case silent > lease:
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
	case stored == state.NodeLeft, n.handling > 0:
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
