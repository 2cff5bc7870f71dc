package regional

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	services "github.com/nusa-scheduler/nusa/internal/discovery"
	"github.com/nusa-scheduler/nusa/internal/forward"
	"github.com/nusa-scheduler/nusa/internal/logtap"
	"github.com/nusa-scheduler/nusa/internal/rest"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	"github.com/nusa-scheduler/nusa/internal/weblogin"
	"github.com/nusa-scheduler/nusa/probe"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/api"
	"github.com/nusa-scheduler/nusa/regional/discovery"
	"github.com/nusa-scheduler/nusa/regional/gossip"
	"github.com/nusa-scheduler/nusa/regional/letters"
	"github.com/nusa-scheduler/nusa/regional/metrics"
	"github.com/nusa-scheduler/nusa/regional/nodes"
	"github.com/nusa-scheduler/nusa/regional/overview"
	"github.com/nusa-scheduler/nusa/regional/peers"
	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/quorum"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/reserved"
	"github.com/nusa-scheduler/nusa/regional/tasks"
	"github.com/nusa-scheduler/nusa/regional/versions"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/auditsink"
	"github.com/nusa-scheduler/nusa/security/gate"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/recorder"
	"github.com/nusa-scheduler/nusa/security/trust"
	"github.com/nusa-scheduler/nusa/web"
	"google.golang.org/protobuf/proto"
)

// server is one regional server, as the master or not.
type server struct {
	cfg   Config
	id    string
	addrs Addresses

	dir       *serve.DataDir // nil with InMemory
	fsm       *raftlog.FSM
	gossip    *gossip.Group
	quorum    *quorum.Group
	raftLis   net.Listener
	responder *probe.Responder
	serve     *serve.Server
	// hub has the tunnels to the agents. tunnels accepts the tunnels that the uplink opens
	// to the global tier. The server serves calls through these tunnels like any other
	// call.
	hub     *tunnel.Hub
	tunnels *tunnel.Listener
	masters *masterConn
	// streams counts the goroutines that use a gRPC stream. They end with the stream,
	// perhaps after the stream's handler returned.
	streams sync.WaitGroup
	gate    *gate.Gate
	rights  *rightsCopy
	denials *recorder.Queue
	// sink writes entries of the audit trail elsewhere. nil: nowhere.
	sink *auditsink.Sink
	// calls are the services of the API.
	calls *api.Server
	// counters are metrics.
	counters counters

	leadership leadership
	start      presence.Start
	known      *knownServers
	history    *metrics.Store
	// tasks writes the history of tasks.
	tasks *tasks.Recorder
	// federation caches the messages of the global tier. copier copies them from the
	// master, and writes them to the data directory.
	federation *peers.FederationCache
	copier     *peers.Copier
	// discovery has the instances of services of all regions. followers copies them from the master.
	discovery *services.Store
	followers *discovery.Copier
	// stopping is closed when the server stops. It ends the streams that would not end by
	// themselves.
	stopping chan struct{}
	bans     bans
	wanted   wantedKeys
	tap      *logtap.Tap // of the logger
	// probes are the keys of latency probes.
	probes *probe.Keyring
}

// open opens the parts that can fail early: the data directory and a listener on every
// address.
func open(ctx context.Context, cfg Config) (*server, error) {
	tap := logtap.New()
	cfg.Logger = tap.Logger(cfg.Logger)
	s := &server{
		cfg: cfg, tap: tap, fsm: raftlog.NewFSM(), stopping: make(chan struct{}), denials: recorder.NewQueue(), counters: newCounters(), sink: auditsink.New(cfg.AuditSink, cfg.Name, cfg.Logger),
		probes:     probe.NewKeyring(cfg.ProbeKeys),
		federation: peers.NewFederationCache(cfg.Clock), history: metrics.NewStore(),
		hub: tunnel.NewHub(tunnel.Options{}), tunnels: tunnel.NewListener(0), masters: &masterConn{net: cfg.Net, creds: cfg.Identity.Dial(identity.ServersOf(cfg.Region.GetName()))},
	}
	s.bans.view = s.fsm.View
	cfg.Identity.RefuseIf(s.bans.refuses)
	err := s.openDir()
	if err == nil {
		err = s.openAddresses(ctx)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	s.addrs = Addresses{
		GRPC: s.advertise(s.serve.GRPCAddr()), HTTP: s.advertise(s.serve.HTTPAddr()),
		Raft: s.advertise(s.raftLis.Addr().String()), Probe: s.advertise(s.responder.Addr()),
		Gossip: s.gossip.Addr(),
		API:    s.advertise(s.serve.MoreAddr(0)), Agents: s.advertise(s.serve.MoreAddr(1)),
	}
	s.register()
	return s, nil
}

// openDir opens the data directory and reads the files of an earlier process.
func (s *server) openDir() error {
	var err error
	s.dir, s.id, err = openIdentity(s.cfg)
	if err != nil {
		return err
	}
	s.known = readKnownServers(s.dir, s.cfg.Logger)
	s.copier = &peers.Copier{Federation: s.federation, Log: s.cfg.Logger, Leads: s.leadsConnected, Master: s.connToMaster}
	if s.dir != nil {
		s.copier.Path = s.dir.Path("federation")
	}
	s.copier.Load()
	s.tasks = taskRecorder(s)
	region := s.cfg.Region.GetName()
	s.discovery = services.New(s.cfg.Clock)
	s.followers = &discovery.Copier{Region: region, Store: s.discovery, Master: s.connToMaster, Log: s.cfg.Logger}
	if s.dir != nil {
		s.followers.Path = s.dir.Path("services")
	}
	s.followers.Load()
	return nil
}

// openAddresses opens a listener on every address.
func (s *server) openAddresses(ctx context.Context) error {
	cfg := &s.cfg
	// A server that is not the master forwards calls to the master. It forwards no call of
	// Dispatch, because agents look for the master themselves. It forwards no call of
	// Siblings.State, Monitor.Self and Tasks.Copy either, because those calls are about this very server.
	fwd := forward.New(s.forwardTo, "/nusa.v1.Dispatch/", "/nusa.v1.Siblings/State", nusav1.Monitor_Self_FullMethodName, nusav1.Tasks_Copy_FullMethodName)
	fwd.ReadRequestsAs(nusav1.Jobs_SubmitMany_FullMethodName, func() proto.Message { return new(wire.SubmitRequest) })
	s.rights = &rightsCopy{view: s.fsm.View, log: cfg.Logger, federated: len(cfg.Global) > 0}
	s.gate = gate.New(gate.Options{Source: cfg.Identity, Rights: s.rights.get, Limits: cfg.Limits, Record: s.denials.Add})
	var err error
	members := gate.Split(cfg.Identity.ID(), cfg.APIAddr != "", cfg.AgentAddr != "")
	s.serve, err = serve.Open(ctx, serve.Options{
		More: []serve.Listener{
			{Addr: cfg.APIAddr, Flag: "--api-addr", Only: func(l net.Listener) net.Listener { return trust.Only(cfg.Identity, l, members.API) }},
			{Addr: cfg.AgentAddr, Flag: "--agent-addr", Only: func(l net.Listener) net.Listener { return trust.Only(cfg.Identity, l, members.Members) }},
		},
		Net: cfg.Net, Logger: cfg.Logger, GRPCAddr: cfg.GRPCAddr, HTTPAddr: cfg.HTTPAddr,
		Socket:      cfg.Socket,
		Credentials: cfg.Identity.Server(members.Main), Tap: trust.Tap, HTTPTLS: cfg.Identity.Web(),
		Unary:  s.gate.Around(fwd.Unary()),
		Stream: s.gate.AroundStreams(fwd.Stream()),
		Ready:  s.ready, SmallBuffers: true, Codec: wire.NewCodec(),
	})
	if err == nil {
		web.Mount(s.serve.Mux)
		weblogin.Refuse(s.serve.Mux, "this is a server of a region, and people log in at the global tier: open the page of a global server, or give a token")
		err = errors.Join(s.gate.Register(s.serve.Registry), s.counters.register(s), s.sink.Register(s.serve.Registry),
			rest.Mount(s.serve, rest.Options{Origins: cfg.HTTPOrigins, Plain: cfg.Identity == nil}))
	}
	if err != nil {
		return err
	}
	s.raftLis, err = serve.Listen(ctx, cfg.Net, cfg.RaftAddr, "--raft-addr")
	if err != nil {
		return err
	}
	s.responder, err = probe.Listen(ctx, probe.ResponderConfig{
		Net: cfg.Net, Region: cfg.Region.GetName(), Addr: cfg.ProbeAddr, Ring: s.probes, Logger: cfg.Logger,
	})
	if err != nil {
		return serve.ListenError(cfg.ProbeAddr, "--probe-addr", err)
	}
	s.gossip, err = gossip.Listen(ctx, gossip.Config{
		Net: cfg.Net, Listen: cfg.GossipAddr, Advertise: cfg.Advertise, Region: cfg.Region.GetName(),
		Keys: cfg.GossipKeys, KeyFile: cfg.GossipKeyFile, Given: cfg.GossipKeysGiven, Join: slices.Concat(cfg.Join, s.known.saved), Fast: cfg.Raft.fast(), Logger: serve.QuietAfter(ctx, cfg.Logger),
	})
	if err != nil {
		return serve.ListenError(cfg.GossipAddr, "--gossip-addr", err)
	}
	return nil
}

// register registers the gRPC services.
func (s *server) register() {
	g := s.serve
	nusav1.RegisterDispatchServer(g, &nodes.Dispatch{
		Current: s.currentAgents, Standby: s.standbyMessage, Stopping: s.stopping, Streams: &s.streams, Hub: s.hub,
	})
	s.calls = s.services()
	s.calls.Register(g)
	(&discovery.Server{Store: s.discovery, Current: s.leadership.exchange, Stopping: s.stopping, Streams: &s.streams}).Register(g)
	nusav1.RegisterTasksServer(g, &tasks.Service{Recorder: s.tasks})
	nusav1.RegisterOverviewServer(g, &overview.Server{Current: s.leadership.overviewTerm})
	nusav1.RegisterDeadLettersServer(g, &letters.Service{View: s.fsm.View, Region: s.cfg.Region.GetName()})
	nusav1.RegisterRolloutsServer(g, &versions.Service{Server: s.calls})
	nusav1.RegisterReservationsServer(g, &reserved.Service{View: s.fsm.View})
}

// fast reports whether the timing is for servers on one machine.
func (t RaftTiming) fast() bool { return t.Heartbeat < 500*time.Millisecond }

// raftDir returns the folder of Raft's files. It is empty with InMemory.
func (s *server) raftDir() string {
	if s.cfg.InMemory {
		return ""
	}
	return filepath.Dir(s.dir.Path("raft", "x"))
}

// advertise returns the address under which others reach a local address.
func (s *server) advertise(addr string) string {
	if addr == "" {
		return ""
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return net.JoinHostPort(s.cfg.Advertise, port)
}

// close closes everything that open opened, for a server that never ran.
func (s *server) close() {
	if s.gossip != nil {
		s.gossip.Close()
	}
	if s.responder != nil {
		_ = s.responder.Close()
	}
	if s.raftLis != nil {
		_ = s.raftLis.Close()
	}
	if s.serve != nil {
		_ = s.serve.Close()
	}
	s.release()
}

// release closes the parts that have no goroutine of their own.
func (s *server) release() {
	if s.masters != nil {
		s.masters.close()
	}
	if s.hub != nil {
		_ = s.hub.Close()
	}
	if s.tunnels != nil {
		_ = s.tunnels.Close()
	}
	if s.dir != nil {
		_ = s.dir.Close()
	}
}
