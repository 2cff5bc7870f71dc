package api

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/eventlog"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/origins"
	"github.com/nusa-scheduler/nusa/internal/series"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/topology"
)

// Server holds the parts of the server that its services need.
type Server struct {
	Name, Version string
	Region        *nusav1.RegionDefinition
	// Address returns the gRPC address that other servers use for this one; empty
	// until the server listens.
	Address func() string
	Net     network.Net
	// NodeLease is how long a silent node stays ready.
	NodeLease time.Duration
	// Clock counts through a suspend of the machine.
	Clock func() time.Duration
	State State
	// Master returns this server's term of leadership; nil while it does not lead.
	Master func() *Master
	// KnownMaster returns the name and gRPC address of the region's master; empty
	// while it is unknown.
	KnownMaster func() (name, address string)
	// Servers lists the region's servers.
	Servers    func() []*nusav1.RegionalServer
	Federation Federation
	// History returns the series that this server measured; nil and the reason
	// when there are none.
	History func() (*series.Store, string)
	// Stopping is closed when streams that do not end by themselves must end.
	Stopping <-chan struct{}
	// Streams counts the goroutines that receive on streams: they end with the
	// stream, which may be after the handler.
	Streams *sync.WaitGroup
}

// State is the committed state: *raftlog.FSM.
type State interface {
	View() *state.View
	// Watch also returns a channel that is closed when the view is out of date.
	Watch() (*state.View, <-chan struct{})
	// Digest returns the hash of the state at an index.
	Digest(ctx context.Context, index uint64) (*nusav1.StateDigest, error)
}

// Federation gives access to the global tier's messages about the other regions.
type Federation interface {
	// Silence returns how long ago the last message of the global tier arrived;
	// false if none has.
	Silence() (time.Duration, bool)
	// Origins returns the origin records with their age; false if none were
	// received.
	Origins() (table *origins.Table, age time.Duration, received bool)
	// Copy returns everything that changed since the token have.
	Copy(have string) *nusav1.FederationCache
}

// Master is one term of leadership, as the services see it. Each term
// has its own.
type Master struct {
	// Done is closed when the term ends.
	Done     <-chan struct{}
	Term     uint64
	Cluster  state.Cluster
	Events   *eventlog.Log
	Log      Log
	Planner  Planner
	Reporter Reporter
	Nodes    Nodes
	Peers    Peers
	// MatrixWatches are the watches of the latency matrix.
	MatrixWatches *topo.WatchLog
	// Groups are the watches of group counts.
	Groups *GroupWatches
	// Specs caches the specs of submitted jobs.
	Specs *wire.SpecCache
	// Uplink is the session with the global tier.
	Uplink Uplink
	// Report sums the region up.
	Report func() *nusav1.RegionReport
}

// Log takes commands: *raftlog.Sequencer.
type Log interface {
	// Propose queues a command. Errors: raftlog.ErrQueueFull, raftlog.ErrNotLeader.
	Propose(state.Command) (*raftlog.Proposal, error)
	// Commit proposes a command and returns its result.
	Commit(context.Context, state.Command) (state.Result, error)
}

// Planner is the scheduler, asked about its plans.
type Planner interface {
	// Input returns the input of a plan over the view.
	Input(*state.View) sched.Input
	// Latest returns the newest plan and the time it was made for; nil before the
	// first.
	Latest() (plan *sched.Plan, unixNano int64)
	// Pending returns why instances of a group have no node, by the newest plan.
	Pending(state.GroupKey) []wire.CountedReason
}

// Reporter gives the reasons that the master reports to the global tier: *uplink.Reporter.
type Reporter interface {
	// Reasons returns why instances of a group are not running.
	Reasons(*state.View, *state.GroupView) []*nusav1.CountedReason
	// Disconnected returns what the instances of a group on disconnected nodes
	// wait for.
	Disconnected(*state.View, state.GroupKey) []*nusav1.CountedReason
}

// Nodes are the agents' sessions.
type Nodes interface {
	// Silence returns how long a node that should send has been silent; nil while
	// its messages arrive.
	Silence(*state.Node) *durationpb.Duration
	// Stats returns a node's latest statistics, without their encoding; false if
	// there are none.
	Stats(id string, now time.Duration) (wire.NodeStats, bool)
	// StatsToProto returns a node's latest statistics and their age; nil if there
	// are none.
	StatsToProto(id string, now time.Duration) (*nusav1.NodeStats, *durationpb.Duration)
	// Conn returns a connection to the agent of a node.
	Conn(nodeID string) (*grpc.ClientConn, error)
	// OldLog says why the log is an old copy: an agent has an order that the log does not
	// have; empty for none.
	OldLog() string
}

// Peers gives the master's view of the other regions: *peers.Prober.
type Peers interface {
	Now() time.Duration
	View() *topology.View
	Routers() *topology.RouterCache
	Others() []*nusav1.PeerRegion
}

// Register registers the services.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	g.RegisterService(jobsService(), jobs{s: s})
	nusav1.RegisterAllocationsServer(g, allocations{s: s})
	nusav1.RegisterNodesServer(g, nodes{s: s})
	nusav1.RegisterRegionsServer(g, regions{s: s})
	nusav1.RegisterTopologyServer(g, topologies{s: s})
	nusav1.RegisterEventsServer(g, events{s: s})
	nusav1.RegisterOriginsServer(g, originRecords{s: s})
	nusav1.RegisterSiblingsServer(g, siblings{s: s})
	nusav1.RegisterSystemServer(g, system{s: s})
}

// region returns the name of the server's region.
func (s *Server) region() string { return s.Region.GetName() }

// master returns this server's term of leadership, raftlog.ErrNoMaster when it
// does not lead.
func (s *Server) master() (*Master, error) {
	if m := s.Master(); m != nil {
		return m, nil
	}
	return nil, raftlog.ErrNoMaster
}

// errStopping ends streams of a server that stops.
var errStopping = status.Error(codes.Unavailable, "this server stops")

// everySecond calls f at once and then each second, until the stream, the
// leadership or the server ends.
func (s *Server) everySecond(ctx context.Context, f func(*Master) error) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		m, err := s.master()
		if err != nil {
			return err
		}
		if err := f(m); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.Stopping:
			return errStopping
		case <-m.Done:
		case <-tick.C:
		}
	}
}
