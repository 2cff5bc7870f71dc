// Package agent is the role of a node: it carries out what its region's master
// orders, reports what became of it, and may decline. It decides nothing; what
// it was told is in a local store, so its tasks survive its own restart and
// the loss of both tiers above.
package agent

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/facts"
	"github.com/nusa-scheduler/nusa/internal/network"
)

// Config of an agent. Zero values mean the default that is named.
type Config struct {
	// Region it belongs to. Required.
	Region string
	// Name for people. Default: the host name.
	Name string
	// Description for people, at most 256 bytes.
	Description string
	// DataDir holds the local store and the allocations' folders (0700), of
	// this agent alone. Required.
	DataDir string
	// Servers are gRPC addresses of regional servers; one that answers is
	// enough, the others are learned. Required.
	Servers []string
	// HTTPAddr serves /livez, /readyz and /metrics. Default "127.0.0.1:7620";
	// "none" serves nothing.
	HTTPAddr string
	// Version of the build, for people.
	Version string

	// Pool of the node. Default "default".
	Pool   string
	Labels map[string]string
	// Capacity replaces what the host has, where not 0; Reserve is taken off
	// in any case.
	Capacity, Reserve driver.Resources
	// SharedMachine names the machine when several agents share it; Share is
	// this agent's part of it, 0..1. Default: alone, 1.
	SharedMachine string
	Share         float64
	// InstanceQuota bounds allocations at a time; 0 = unlimited.
	InstanceQuota int
	// PortMin..PortMax are the dynamic ports, ends included. Default
	// 20000..32000.
	PortMin, PortMax int
	// ControlPlane: this node also runs servers and takes no work unless told.
	ControlPlane bool
	// LeaveOnShutdown says goodbye at the end, so that the work is moved at
	// once, and stops every task. Without it tasks go on and the next start
	// adopts them.
	LeaveOnShutdown bool

	// Net is how it reaches sockets. Default: the host's.
	Net network.Net
	// Credentials for the regional servers. Default: none (loopback only).
	Credentials credentials.TransportCredentials
	// Logger. Default: discards.
	Logger *slog.Logger
	// Clock counts leases. Default: CLOCK_BOOTTIME; the process driver knows no
	// other.
	Clock func() time.Duration
	// Drivers by name. Default: process, with SupervisorArgv.
	Drivers map[string]driver.Driver
	// SupervisorArgv is how the process driver starts a supervisor. Default:
	// this executable with "supervise".
	SupervisorArgv []string
	// Facts about the host; agents of one process may share a source.
	// Default: facts.Host().
	Facts facts.Source
	// Ready is called once, when the local store is open, tasks are adopted and
	// HTTP serves; not necessarily connected.
	Ready func(Addresses)
}

// Addresses of a running agent.
type Addresses struct {
	// NodeID is the stable UUID of the node.
	NodeID string
	// HTTP address, empty when none is served.
	HTTP string
}

// Run is the agent: it blocks until ctx ends (nil) or the first fatal error.
// Everything it started has ended when it returns, but for the tasks and their
// supervisors, which go on unless LeaveOnShutdown.
func Run(ctx context.Context, cfg Config) error {
	<-ctx.Done()
	return nil
}
