package regional

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/forward"
	"github.com/nusa-scheduler/nusa/internal/series"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	"github.com/nusa-scheduler/nusa/probe"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/gossip"
	"github.com/nusa-scheduler/nusa/regional/metrics"
	"github.com/nusa-scheduler/nusa/regional/nodes"
	"github.com/nusa-scheduler/nusa/regional/peers"
	"github.com/nusa-scheduler/nusa/regional/quorum"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// server is one regional server: what it has whether or not it leads.
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
	// hub has the tunnels down to the agents, tunnels those up to the global
	// tier: calls that come down through them are served like any other.
	hub     *tunnel.Hub
	tunnels *tunnel.Listener
	masters *masterConn
	// streams are the goroutines that receive on streams served here: they end
	// with the stream, which may be after the handler.
	streams sync.WaitGroup

	leadership leadership
	known      *knownServers
	history    *metrics.Store
	// federation is what the global tier sent; copier keeps it up to date.
	federation *peers.Federation
	copier     *peers.Copier
	// stopping is closed when streams without an end of their own must end.
	stopping chan struct{}
}

// run boots in the order in which parts need one another, and stops in the
// opposite one.
func run(ctx context.Context, cfg Config) error {
	s, err := open(ctx, cfg)
	if err != nil {
		return err
	}
	return s.run(ctx)
}

// open takes what can be refused early: the data directory and every address.
func open(ctx context.Context, cfg Config) (_ *server, err error) {
	s := &server{cfg: cfg, fsm: raftlog.NewFSM(), stopping: make(chan struct{}),
		federation: peers.NewFederation(cfg.Clock),
		history:    metrics.NewStore()}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.dir, s.id, err = openIdentity(cfg); err != nil {
		return nil, err
	}
	s.known = readKnownServers(s.dir, cfg.Logger)
	s.copier = &peers.Copier{Federation: s.federation, Log: cfg.Logger, Leads: s.leadsConnected, Master: s.connToMaster}
	if s.dir != nil {
		s.copier.Path = s.dir.Path("federation")
	}
	s.copier.Load()
	s.hub, s.tunnels = tunnel.NewHub(tunnel.Options{}), tunnel.NewListener(0)
	s.masters = &masterConn{net: cfg.Net}
	// A server that is not the master passes calls on; agents look for the
	// master themselves.
	fwd := forward.New(s.forwardTo, "/nusa.v1.Dispatch/", "/nusa.v1.Siblings/State")
	fwd.ReadRequestsAs(nusav1.Jobs_SubmitMany_FullMethodName, func() proto.Message { return new(wire.SubmitRequest) })
	if s.serve, err = serve.Open(ctx, serve.Options{
		Net: cfg.Net, Logger: cfg.Logger, GRPCAddr: cfg.GRPCAddr, HTTPAddr: cfg.HTTPAddr,
		Unary:  []grpc.UnaryServerInterceptor{fwd.Unary()},
		Stream: []grpc.StreamServerInterceptor{fwd.Stream()},
		Ready:  s.ready, SmallBuffers: true, Codec: wire.NewCodec(),
	}); err != nil {
		return nil, err
	}
	if s.raftLis, err = serve.Listen(ctx, cfg.Net, cfg.RaftAddr, "--raft-addr"); err != nil {
		return nil, err
	}
	if s.responder, err = probe.Listen(ctx, probe.ResponderConfig{
		Net: cfg.Net, Region: cfg.Region.GetName(), Addr: cfg.ProbeAddr, Keys: cfg.ProbeKeys, Logger: cfg.Logger,
	}); err != nil {
		return nil, serve.ListenError(cfg.ProbeAddr, "--probe-addr", err)
	}
	if s.gossip, err = gossip.Listen(ctx, gossip.Config{
		Net: cfg.Net, Listen: cfg.GossipAddr, Advertise: cfg.Advertise, Region: cfg.Region.GetName(),
		Key: cfg.GossipKey, Join: slices.Concat(cfg.Join, s.known.saved), Fast: cfg.Raft.fast(), Logger: serve.QuietAfter(ctx, cfg.Logger),
	}); err != nil {
		return nil, serve.ListenError(cfg.GossipAddr, "--gossip-addr", err)
	}
	s.addrs = Addresses{
		GRPC: s.advertise(s.serve.GRPCAddr()), HTTP: s.advertise(s.serve.HTTPAddr()),
		Raft: s.advertise(s.raftLis.Addr().String()), Probe: s.advertise(s.responder.Addr()),
		Gossip: s.gossip.Addr(),
	}
	s.register()
	return s, nil
}

// fast says that the group is tuned for one machine.
func (t RaftTiming) fast() bool { return t.Heartbeat < 500*time.Millisecond }

func (s *server) raftDir() string {
	if s.cfg.InMemory {
		return ""
	}
	return filepath.Dir(s.dir.Path("raft", "x"))
}

// advertise is the address that others use for one listened on here.
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

// close gives everything back that open took, of a server that never ran.
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

// release ends what has no goroutine of its own.
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

// run starts the parts and waits for the end of ctx or the first failure. Then
// it stops in this order: leadership is given away, so that the region hardly
// notices; the master's work ends; calls end; then gossip, Raft, and last the
// data directory.
func (s *server) run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var err error
	s.quorum, err = quorum.Open(quorum.Config{
		ID: s.id, Dir: s.raftDir(), Log: s.cfg.RaftLog, Net: s.cfg.Net, Listener: s.raftLis, Advertise: s.addrs.Raft,
		Expect: s.cfg.BootstrapExpect, Others: s.othersConfigured(),
		Heartbeat: s.cfg.Raft.Heartbeat, Election: s.cfg.Raft.Election,
		LeaderLease: s.cfg.Raft.LeaderLease, Commit: s.cfg.Raft.Commit,
		ReplaceAfter: 5 * s.cfg.Raft.Heartbeat, DeadAfter: s.cfg.DeadServerAfter,
		Gossip: s.gossip, FSM: s.fsm, Logger: serve.QuietAfter(ctx, s.cfg.Logger),
		Cluster: func() string { return s.fsm.View().Cluster().ID },
	})
	if err != nil {
		s.close()
		return err
	}
	if err := s.gossip.SetLocal(s.meta()); err != nil {
		fail(err)
	}
	start := func(name string, f func(context.Context) error) *part { return startPart(ctx, fail, name, f) }
	gossips := start("gossip", s.gossip.Run)
	group := start("group", s.quorum.Run)
	snapshots := start("snapshots", s.quorum.TakeSnapshots)
	watch := start("watch", s.watchServers)
	probes := start("probe responder", s.responder.Run)
	calls := start("API", s.serve.Run)
	keeps := start("history", s.runHistory)
	copies := start("federation", s.copier.Run)
	down := start("tunnels", func(context.Context) error { return s.serveTunnels() })
	office := start("master", s.lead)
	if s.cfg.Ready != nil {
		s.cfg.Ready(s.addrs)
	}
	select {
	case <-ctx.Done():
	case <-s.fsm.Broken():
		fail(s.fsm.Err())
	}
	s.handOver()
	office.stop()
	close(s.stopping)
	calls.stop()
	s.streams.Wait()
	_ = s.tunnels.Close()
	for _, p := range []*part{copies, keeps, down, probes, watch, snapshots, group, gossips} {
		p.stop()
	}
	if err := s.quorum.Close(); err != nil {
		fail(fmt.Errorf("stop Raft: %w", err))
	}
	s.release()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// part is a goroutine of the server that is stopped in its turn.
type part struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// startPart runs f until the part is stopped. A failure stops the server.
func startPart(ctx context.Context, fail context.CancelCauseFunc, name string, f func(context.Context) error) *part {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &part{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		if err := f(own); err != nil {
			fail(fmt.Errorf("%s: %w", name, err))
		} else if own.Err() == nil && ctx.Err() == nil {
			fail(fmt.Errorf("%s: ended by itself", name))
		}
	}()
	return p
}

func (p *part) stop() {
	p.cancel()
	<-p.done
}

// runHistory keeps the file of metrics open.
func (s *server) runHistory(ctx context.Context) error {
	path := ""
	if s.dir != nil {
		path = s.dir.Path("history", "series.db")
	}
	limits := series.Limits{Series: s.cfg.HistorySeries, Bytes: s.cfg.HistoryBytes}
	return s.history.Run(ctx, path, limits, s.cfg.Logger)
}

// handOver lets another server lead at once instead of after an election.
func (s *server) handOver() {
	if s.leadership.master() == nil || len(s.quorum.GetConfiguration().Configuration().Servers) < 2 {
		return
	}
	if err := s.quorum.LeadershipTransfer().Error(); err != nil {
		s.cfg.Logger.Debug("leadership could not be given away", "error", err)
	}
}

func (s *server) othersConfigured() bool {
	for _, a := range s.cfg.Join {
		if a != s.addrs.Gossip && a != s.cfg.GossipAddr {
			return true
		}
	}
	return false
}

func (s *server) meta() gossip.Meta {
	return gossip.Meta{
		ID: s.id, Name: s.cfg.Name, GRPC: s.addrs.GRPC, Raft: s.addrs.Raft, Probe: s.addrs.Probe,
		Expect: s.cfg.BootstrapExpect, Bootstrapped: s.quorum.Existing(),
		Cluster: s.fsm.View().Cluster().ID, Started: time.Now().UnixMilli(), Version: s.cfg.Version,
	}
}

// serveTunnels serves the API to whom the uplink opens tunnels for.
func (s *server) serveTunnels() error {
	if err := s.serve.GRPC.Serve(s.tunnels); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// register gives the server its services.
func (s *server) register() {
	g := s.serve.GRPC
	nusav1.RegisterDispatchServer(g, &nodes.Dispatch{
		Current: s.currentAgents, Standby: s.standbyMessage, Stopping: s.stopping, Streams: &s.streams, Hub: s.hub,
	})
	s.services().Register(g)
}
