package api

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/eventlog"
	"github.com/nusa-scheduler/nusa/internal/logtap"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/origins"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/series"
	"github.com/nusa-scheduler/nusa/internal/submits"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/trail"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/security/trust"
	"github.com/nusa-scheduler/nusa/topology"
)

// Server holds the parts of the regional server that the services need.
type Server struct {
	Name, Version string
	Region        *nusav1.RegionDefinition
	// Address returns the gRPC address at which other servers reach this one. It is empty
	// until the server listens.
	Address func() string
	// HTTP returns the address of the server's HTTP port, and whether the port uses TLS.
	HTTP func() (addr string, encrypted bool)
	Net  network.Net
	// Identity is for connections to the other servers of the region. It may be nil.
	Identity *trust.Source
	// Enroll gives certificates to the region's agents.
	Enroll *enroll.Server
	// NodeLease is how long a silent node stays ready.
	NodeLease time.Duration
	// Clock is monotonic and runs through suspend.
	Clock func() time.Duration
	State State
	// Log gives the log of this server to callers.
	Log *logtap.Tap
	// Master returns this server's term. It is nil while the server does not lead.
	Master func() *Master
	// KnownMaster returns the name and gRPC address of the region's master. Both are empty
	// while no master is known.
	KnownMaster func() (name, address string)
	// Servers lists the region's servers.
	Servers    func() []*nusav1.RegionalServer
	Federation Federation
	// Rights returns who may do what, or nil if this server cannot read that.
	Rights func() *rights.Set
	// History returns the store of the metrics history. If there is none, it returns nil
	// and the reason.
	History func() (*series.Store, string)
	// Trail is what the server knows about the region's audit trail.
	Trail *trail.Trail
	// Stopping is closed when the server stops. Streams that do not end by themselves must
	// then end.
	Stopping <-chan struct{}
	// Streams counts the goroutines that receive on streams. They end with the stream,
	// perhaps after the stream's handler returned.
	Streams *sync.WaitGroup

	queue queueCache
}

// State is the committed state: *raftlog.FSM.
type State interface {
	View() *state.View
	// Watch returns the view and a channel that is closed when a newer view exists.
	Watch() (*state.View, <-chan struct{})
	// Digest returns the hash of the state at an index.
	Digest(ctx context.Context, index uint64) (*nusav1.StateDigest, error)
}

// Federation has the messages of the global tier about the other regions:
// *peers.FederationCache.
type Federation interface {
	// Silence returns how long ago the global tier last sent or confirmed the list of other
	// regions. It returns false if the list was never received.
	Silence() (time.Duration, bool)
	// Origins returns the origin records and their age. It returns false if none were
	// received.
	Origins() (table *origins.Table, age time.Duration, received bool)
	// Copy returns all messages with their ages, or only the ages if the token have is the
	// present one.
	Copy(have string) *nusav1.FederationCache
}

// Master is what the services use of one term of leadership. Each term has a Master of its
// own.
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
	// MatrixWatches holds the clients that watch the latency matrix.
	MatrixWatches *topo.WatchLog
	// Groups holds the clients that watch group counts.
	Groups *GroupWatches
	// Specs caches the specs of submitted jobs.
	Specs *wire.SpecCache
	// Uplink is the region's session with the global tier.
	Uplink Uplink
	// Repairer compares the log with what the master and the agents have: *repair.Repairer.
	Repairer interface {
		Now(context.Context) []*nusav1.ReconcileResult
	}
	// Report returns a summary of the region.
	Report func() *nusav1.RegionReport
}

// Log commits commands: *raftlog.Sequencer.
type Log interface {
	// Propose queues a command. Errors: raftlog.ErrQueueFull, raftlog.ErrNotLeader.
	Propose(state.Command) (*raftlog.Proposal, error)
	// Commit proposes a command and returns its result.
	Commit(context.Context, state.Command) (state.Result, error)
}

// Planner gives access to the scheduler's plans: *master.Planner.
type Planner interface {
	// Input returns the input for a plan over the view.
	Input(*state.View) sched.Input
	// Latest returns the newest committed plan and the time for which it was made. The plan
	// is nil before the first one.
	Latest() (plan *sched.Plan, unixNano int64)
	// Pending returns why instances of a group have no node, according to the newest plan.
	Pending(state.GroupKey) []wire.CountedReason
}

// Reporter gives the reasons that the master reports to the global tier: *uplink.Reporter.
type Reporter interface {
	// Reasons returns why instances of a group are not running.
	Reasons(*state.View, *state.GroupView) []*nusav1.CountedReason
	// Disconnected returns why the instances of a group that are on disconnected nodes
	// still wait there.
	Disconnected(*state.View, state.GroupKey) []*nusav1.CountedReason
}

// Nodes gives access to the agents: *nodes.Agents.
type Nodes interface {
	// Silence returns how long a node that should send messages has sent none. It returns
	// nil while the node is not silent.
	Silence(*state.Node) *durationpb.Duration
	// Stats returns a node's latest statistics without their encoded form. It returns false
	// if the node has sent none.
	Stats(id string, now time.Duration) (wire.NodeStats, bool)
	// StatsToProto returns a node's latest statistics and their age. Both are nil if the
	// node has sent none.
	StatsToProto(id string, now time.Duration) (*nusav1.NodeStats, *durationpb.Duration)
	// Conn returns a connection to the agent of a node.
	Conn(nodeID string) (*grpc.ClientConn, error)
	// OldLog returns why the log is certainly an old copy: an agent has an order that the
	// log lacks. It is empty if no agent shows that.
	OldLog() string
}

// Peers gives access to the master's view of the other regions: *peers.Prober.
type Peers interface {
	Now() time.Duration
	View() *topology.View
	Routers() *topology.RouterCache
	Others() []*nusav1.PeerRegion
}

// Register registers the gRPC services.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	submits.Register(g, jobs{s: s})
	nusav1.RegisterAllocationsServer(g, allocations{s: s})
	nusav1.RegisterNodesServer(g, nodes{s: s})
	nusav1.RegisterRegionsServer(g, regions{s: s})
	nusav1.RegisterTopologyServer(g, topologies{s: s})
	nusav1.RegisterEventsServer(g, events{s: s})
	nusav1.RegisterOriginsServer(g, originRecords{s: s})
	nusav1.RegisterSiblingsServer(g, siblings{s: s})
	nusav1.RegisterSystemServer(g, system{s: s})
	nusav1.RegisterAuthServer(g, auth{s: s})
	nusav1.RegisterNamespacesServer(g, namespaces{a: auth{s: s}})
	nusav1.RegisterTokensServer(g, tokens{s: s})
	nusav1.RegisterMembersServer(g, members{s: s})
	nusav1.RegisterKeysServer(g, keys{s: s})
	nusav1.RegisterPoolsServer(g, nodePools{s: s})
	nusav1.RegisterOverridesServer(g, overrides{s: s})
	s.Enroll.Register(g)
	nusav1.RegisterAuditServer(g, audits{s: s})
	nusav1.RegisterRepairsServer(g, repairs{s: s})
	nusav1.RegisterMonitorServer(g, &logtap.Service{Tap: s.Log, Relay: repairs{s: s}.followMember})
}

// rightsAge returns who may do what, and the time since the global tier last sent or confirmed that.
func (s *Server) rightsAge() (set *rights.Set, age time.Duration, received bool) {
	age, received = s.Federation.Silence()
	return s.Rights(), age, received
}

// region returns the name of the server's region.
func (s *Server) region() string { return s.Region.GetName() }

// master returns this server's term. Its error is raftlog.ErrNoMaster when the server does
// not lead.
func (s *Server) master() (*Master, error) {
	if m := s.Master(); m != nil {
		return m, nil
	}
	return nil, raftlog.ErrNoMaster
}

// notFound returns the status NOT_FOUND for an object of a kind and a name.
func notFound(kind, name, format string, args ...any) error {
	return rpcerr.NotFound(kind, name, fmt.Sprintf(format, args...))
}

// errStopping ends the streams of a server that stops.
var errStopping = status.Error(codes.Unavailable, "this server stops")

// everySecond calls f now and then once a second, until the stream, the leadership or the
// server ends.
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
