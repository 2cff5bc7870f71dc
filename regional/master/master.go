package master

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	services "github.com/nusa-scheduler/nusa/internal/discovery"
	"github.com/nusa-scheduler/nusa/internal/eventlog"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	"github.com/nusa-scheduler/nusa/probe"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/discovery"
	"github.com/nusa-scheduler/nusa/regional/metrics"
	"github.com/nusa-scheduler/nusa/regional/nodes"
	"github.com/nusa-scheduler/nusa/regional/peers"
	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/repair"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/uplink"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// Config holds what a Master needs from its server and its term.
type Config struct {
	Region *nusav1.RegionDefinition
	// Server is the name of this server. Address is its gRPC address.
	Server, Address string
	Version         string
	// Global lists the gRPC addresses of global servers. It may be empty.
	Global []string
	Net    network.Net
	// Identity is for connections to other servers. It may be nil.
	Identity *trust.Source
	// Clock is monotonic and runs through suspend.
	Clock          func() time.Duration
	NodeLease      time.Duration
	StatsInterval  time.Duration
	ReportInterval time.Duration
	// The prober uses these: the address of the responder, the bound of probes a second,
	// the keys, and the function that returns when a probe of another region last arrived
	// here.
	ProbeAddr     string
	ProbeRate     int
	ProbeRing     *probe.Keyring
	ProbeLastSeen func(region string) (time.Duration, bool)

	// Term is Raft's number of the term. The term began at Elected, a time on Clock.
	Term    uint64
	Elected time.Duration
	Cluster state.Cluster
	// Start holds the time and the log index at which this server started.
	Start presence.Start
	// RaftLog takes the commands. FSM has the committed state.
	RaftLog raftlog.Log
	FSM     *raftlog.FSM
	// FeatureLevel returns the least feature level of the region's servers.
	FeatureLevel func() uint32
	// VerifyLeader returns nil when a quorum confirms that this server still leads.
	VerifyLeader func() error
	// MaintainMembers adds servers to the Raft group and removes others, until ctx ends.
	MaintainMembers func(ctx context.Context) error

	Federation *peers.FederationCache
	// Services has the instances of services of all regions.
	Services *services.Store
	Metrics  *metrics.Store
	// Hub has the tunnels to the agents. Tunnels accepts the tunnels to the global tier.
	Hub     *tunnel.Hub
	Tunnels *tunnel.Listener
	// Streams counts the goroutines that use a gRPC stream.
	Streams *sync.WaitGroup
	// Servers returns the region's servers. Standby returns the message that sends an agent
	// to another server.
	Servers func() []*nusav1.RegionalServer
	// AgentServers returns Servers with the addresses for agents.
	AgentServers func() []*nusav1.RegionalServer
	// Keys returns the certificates that the agents should have, or nil.
	Keys    func() *nusav1.KeyGoal
	Standby func() *nusav1.MasterMessage
	// ObserveRepair gets the tier and the kind of each repair of a difference.
	ObserveRepair func(tier, kind string)
	// GroupsChanged is called with the groups that a log entry changed.
	GroupsChanged func([]state.GroupKey)
	Logger        *slog.Logger
}

// Master is the work of one term. Its fields do not change after New.
type Master struct {
	Term    uint64
	Cluster state.Cluster
	// Events are the events of this term that are not durable. Those that are, the log has: see package
	// events.
	Events   *eventlog.Log
	Log      *raftlog.Sequencer
	Planner  *Planner
	Agents   *nodes.Agents
	Prober   *peers.Prober
	Reporter *uplink.Reporter
	Uplink   *uplink.Uplink
	Repairer *repair.Repairer
	// Registrar registers the instances of the region's services. Exchange exchanges them with the
	// other regions.
	Registrar *discovery.Registrar
	Exchange  *discovery.Exchange

	cfg    Config
	limits *limiter
	// ctx ends with the term.
	ctx   context.Context
	parts *errgroup.Group
	// run lists the parts' functions. Each of them runs until the term ends.
	run []func(context.Context) error
	log *slog.Logger
}

// New creates the parts of a term. The term ends with ctx or when a part fails.
func New(ctx context.Context, cfg Config) (*Master, error) {
	m := &Master{Term: cfg.Term, Cluster: cfg.Cluster, cfg: cfg, log: cfg.Logger.With("term", cfg.Term)}
	m.parts, m.ctx = errgroup.WithContext(ctx)
	region := cfg.Region.GetName()
	epoch := fmt.Sprintf("%s/%d/%d", cfg.Cluster.ID, cfg.Cluster.Incarnation, cfg.Term)
	m.Events = eventlog.New(epoch)
	load := &loads{
		clock: cfg.Clock, interval: cfg.StatsInterval, log: m.log,
		stats: func(id string, now time.Duration) (wire.NodeStats, bool) { return m.Agents.Stats(id, now) },
	}
	m.Planner = newPlanner(plannerConfig{
		nodeLease: cfg.NodeLease, exprs: newExprs(region), load: load.at,
		absences:       func(view *state.View) func(string) presence.Absence { return m.Agents.Absences(view) },
		connected:      func() bool { return m.Uplink.Connected() },
		logIsOld:       func() bool { return m.Agents.OldLog() != "" },
		logSuspect:     func() bool { return m.Agents.LogSuspect() },
		reasonsChanged: func(groups map[state.GroupKey]struct{}) { m.Uplink.ReasonsChanged(groups) },
	})
	m.Log = raftlog.NewSequencer(cfg.RaftLog, cfg.FSM, m.Planner.decide, m.committed)
	verifier := raftlog.NewVerifier(cfg.VerifyLeader)
	m.Agents = nodes.New(m.ctx, nodes.Config{
		Region: region, Cluster: cfg.Cluster, Term: cfg.Term, Epoch: epoch,
		NodeLease: cfg.NodeLease, StatsInterval: cfg.StatsInterval, Clock: cfg.Clock, Elected: cfg.Elected,
		Start: cfg.Start, Certain: m.logIsCertain,
		RegionLease: func() time.Duration { return m.Uplink.LeaseLeft() },
		Log:         m.Log, FSM: cfg.FSM, Verifier: verifier, Logger: m.log,
		Hub: cfg.Hub, Streams: cfg.Streams, Servers: cfg.AgentServers, Keys: cfg.Keys, Standby: cfg.Standby, MorePlanned: m.Planner.more.Load,
	})
	var err error
	m.Prober, err = peers.NewProber(peers.ProberConfig{
		Region: cfg.Region, Net: cfg.Net, Addr: cfg.ProbeAddr, Rate: cfg.ProbeRate, Ring: cfg.ProbeRing,
		LastSeen: cfg.ProbeLastSeen, Clock: cfg.Clock, EdgeChanged: func() { m.Uplink.EdgeChanged() },
		Federation: cfg.Federation, Log: m.log,
	})
	if err != nil {
		return nil, err
	}
	m.Reporter = &uplink.Reporter{
		Region: region, Incarnation: cfg.Cluster.Incarnation, View: cfg.FSM.View, PlanInput: m.Planner.Input,
		Stats: m.Agents.Stats, Clock: cfg.Clock,
		Plan: uplink.Plan{
			Reasons: m.Planner.Pending, Unplaced: m.Planner.unplacedOf,
			PlacedRevision: m.Planner.placedRevision, QueueLength: m.Planner.queueLength,
		},
	}
	m.discover(epoch)
	m.Uplink = uplink.New(uplink.Config{
		Definition: cfg.Region, Global: cfg.Global, Net: cfg.Net, Identity: cfg.Identity, Server: cfg.Server, Address: cfg.Address,
		Version: cfg.Version, ReportInterval: cfg.ReportInterval, Clock: cfg.Clock,
		Cluster: cfg.Cluster, Term: cfg.Term, Epoch: epoch, Log: m.Log, FSM: cfg.FSM, Reporter: m.Reporter,
		Verifier: verifier, LeaseReturned: m.Agents.RepeatGrants, Planned: m.Planner.plannedOrders, LogSuspect: m.Agents.LogSuspect,
		Federation: cfg.Federation, Prober: m.Prober, Tunnels: cfg.Tunnels, Servers: cfg.Servers, Logger: m.log,
		Discover: m.Exchange.Connect,
	})
	poller := &peers.Poller{Prober: m.Prober, Connected: m.Uplink.Connected, Net: cfg.Net, Identity: cfg.Identity, Log: m.log}
	recorder := &metrics.Recorder{
		Store: cfg.Metrics, Region: region, Server: cfg.Server, View: cfg.FSM.View, Edges: m.Prober.Edges,
		Stats: m.Agents.Stats, Clock: cfg.Clock, StatsInterval: cfg.StatsInterval, Events: m.Events, Log: m.log,
	}
	m.limits = &limiter{
		log: m.Log, fsm: cfg.FSM, clock: cfg.Clock, elected: cfg.Elected, nodeLease: cfg.NodeLease,
		level: cfg.FeatureLevel, wake: make(chan struct{}, 1), logger: m.log,
		first: make(chan struct{}), committed: m.Uplink.LevelChanged, regionLease: m.Uplink.LeaseLength,
		stopTime: m.Agents.LongestStop,
	}
	m.Uplink.LengthChanged = m.limits.changed
	m.Repairer = m.newRepairer()
	purge := &purger{log: m.Log, fsm: cfg.FSM, logger: m.log}
	m.run = []func(context.Context) error{
		m.Log.Run, verifier.Run, m.Agents.Watch, m.Agents.Deliver, m.limits.before(m.Uplink.Run), m.Prober.Run, poller.Run, recorder.Run,
		m.limits.run, m.watchCommits, purge.run, m.Repairer.Run, cfg.MaintainMembers, m.Registrar.Run, m.Exchange.Run,
	}
	return m, nil
}

// discover makes the parts that handle services.
func (m *Master) discover(epoch string) {
	cfg := &m.cfg
	m.Registrar = discovery.NewRegistrar(discovery.Config{
		Region: cfg.Region.GetName(), Epoch: epoch, Store: cfg.Services, View: cfg.FSM.View, Log: m.log,
	})
	m.Exchange = &discovery.Exchange{
		Region: cfg.Region.GetName(), Store: cfg.Services, Global: len(cfg.Global) > 0, View: m.Prober.View, Clock: cfg.Clock, Log: m.log,
	}
}

// newRepairer returns the part that compares the log with the agents and the scheduler.
func (m *Master) newRepairer() *repair.Repairer {
	return repair.New(repair.Config{
		Region: m.cfg.Region.GetName(), View: m.cfg.FSM.View, Agents: nodes.Outboxes{Agents: m.Agents}, Observe: m.cfg.ObserveRepair, Log: m.log,
		Ask: func(ctx context.Context, id string, compare bool) (*nusav1.HeldOrders, error) {
			conn, err := m.Agents.Conn(id)
			if err != nil {
				return nil, err
			}
			return nusav1.NewRepairsClient(conn).Orders(ctx, &nusav1.HeldOrdersRequest{Compare: compare})
		},
		CheckNodes: func(ctx context.Context) ([]string, bool) { return m.Planner.checkNodes(ctx, m.Log.Wake) },
	})
}

// Context returns a context that ends with the term.
func (m *Master) Context() context.Context { return m.ctx }

// Run does the work of the term. It calls begun once the API can be served, and ended as
// soon as the term has ended. It returns when all parts have stopped, with the error of the
// part that failed first.
func (m *Master) Run(begun, ended func()) error {
	m.log.Info("this server is the master", "cluster", m.Cluster.ID, "incarnation", m.Cluster.Incarnation)
	m.Events.Add("master.elected", m.cfg.Server, "term %d", m.Term)
	m.limits.begin()
	m.Exchange.Begin()
	begun()
	m.parts.Go(func() error {
		<-m.ctx.Done()
		ended()
		return nil
	})
	for _, part := range m.run {
		m.parts.Go(func() error { return part(m.ctx) })
	}
	m.Log.Wake() // makes the first plan; later plans follow changes
	err := m.parts.Wait()
	m.Agents.Close()
	return err
}

// ServersChanged tells the parts that the region's servers or its master changed.
func (m *Master) ServersChanged() {
	m.Agents.ServersChanged()
	m.Uplink.ServersChanged()
	m.limits.changed()
}

// logIsCertain is called when the log can no longer be an old copy. It continues the work
// that waited for that.
func (m *Master) logIsCertain() {
	m.Log.Wake()
	m.Uplink.GroupsChanged(nil) // sends the slot answers that waited
}

// committed passes the results of a log entry to the parts that they concern. The sequencer
// calls it in the order of the log.
func (m *Master) committed(results []state.Result) {
	changed, orderCount, groupCount := false, 0, 0
	for i := range results {
		orderCount += len(results[i].Orders)
		groupCount += len(results[i].Groups)
	}
	orders := make([]*state.Alloc, 0, orderCount)
	groups := make([]state.GroupKey, 0, groupCount)
	var dirtyNodes []string
	for i := range results {
		r := &results[i]
		changed = changed || r.Changed
		orders = append(orders, r.Orders...)
		dirtyNodes = append(dirtyNodes, r.Nodes...)
		groups = append(groups, r.Groups...)
	}
	if !changed {
		return
	}
	m.cfg.GroupsChanged(groups) // first: watches wait for it
	m.Agents.AddOrders(orders)
	m.Agents.MarkDirty(dirtyNodes)
	m.Uplink.GroupsChanged(groups)
	m.Registrar.GroupsChanged(groups)
}
