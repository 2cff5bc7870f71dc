package probe

import (
	"github.com/nusa-scheduler/nusa/topology"
)

// DefaultPort is the port at which the servers of a region respond to probes.
const DefaultPort = 7613

// Methods of probing.
const (
	UDP = "udp"
	TCP = "tcp"
	// Connect is TCP without proof of the responder's identity: there are no keys, the
	// server has another region, or its version is older.
	Connect = "connect"
)

// Peer is another region to be probed.
type Peer struct {
	Name string
	// Addresses are the addresses of the responders of its servers, "host:port". An
	// address is used as long as it responds. Then the next address is used.
	Addresses []string
	// Coordinate is the latest network coordinate that the peer reported; nil = none. It
	// is used to update the network coordinate of this region.
	Coordinate *topology.Coordinate
}
