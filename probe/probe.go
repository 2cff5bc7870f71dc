// Package probe measures round trips to other regions: a pure plan says whom
// to probe when and how, a pure window says what the samples mean, the Prober
// and the Responder are the shells that do it.
//
// A probe is a small UDP packet that is answered by one of the same size; a TCP
// connect where UDP is blocked. Packets are authenticated with a key that the
// regions of a federation share, numbered within a session, and answered once;
// an answer tells which of the session's requests came, and so on which way the
// others were lost. A connect is what is timed by TCP; the same packets, sent over
// it afterwards, prove who accepted it. With keys, one without that proof is lost;
// without, it counts as what it is. The method is part of every answer.
package probe

import (
	"github.com/nusa-scheduler/nusa/topology"
)

// DefaultPort is where a region's servers answer probes.
const DefaultPort = 7613

// Methods of probing.
const (
	UDP = "udp"
	TCP = "tcp"
	// Connect is TCP that nobody vouched for: without keys, of a server that does
	// not speak for the region, or is of an earlier version.
	Connect = "connect"
)

// Peer is another region to be probed.
type Peer struct {
	Name string
	// Addresses of its servers' responders, "host:port". One is used as long
	// as it answers, then the next.
	Addresses []string
	// Coordinate that the peer last reported, if any: it feeds the network
	// coordinate of this region.
	Coordinate *topology.Coordinate
}
