package probe

import (
	"github.com/nusa-scheduler/nusa/topology"
)

// DefaultPort is the port at which a region's servers answer probes.
const DefaultPort = 7613

// Methods of probing.
const (
	UDP = "udp"
	TCP = "tcp"
	// Connect is TCP without proof of the responder's identity: there are no keys, the
	// server does not speak for the region, or its version is older.
	Connect = "connect"
)

// Peer is another region to be probed.
type Peer struct {
	Name string
	// Addresses of the responders of its servers, "host:port". An address is used as
	// long as it responds, then the next one.
	Addresses []string
	// Coordinate is the last one that the peer reported, if any. It updates the network
	// coordinate of this region.
	Coordinate *topology.Coordinate
}
