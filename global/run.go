package global

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/buses"
	"github.com/nusa-scheduler/nusa/global/deadletters"
	"github.com/nusa-scheduler/nusa/global/discovery"
	"github.com/nusa-scheduler/nusa/global/hooks"
	"github.com/nusa-scheduler/nusa/global/intakes"
	"github.com/nusa-scheduler/nusa/global/overview"
	"github.com/nusa-scheduler/nusa/global/reservations"
	"github.com/nusa-scheduler/nusa/global/rollouts"
	"github.com/nusa-scheduler/nusa/global/room"
	"github.com/nusa-scheduler/nusa/global/schedules"
	"github.com/nusa-scheduler/nusa/global/spares"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/global/tasks"
	"github.com/nusa-scheduler/nusa/global/workflows"
	"github.com/nusa-scheduler/nusa/internal/forward"
	"github.com/nusa-scheduler/nusa/internal/logtap"
	"github.com/nusa-scheduler/nusa/internal/rest"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/submits"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	"github.com/nusa-scheduler/nusa/internal/weblogin"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/auditsink"
	"github.com/nusa-scheduler/nusa/security/gate"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/recorder"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/security/trust"
	page "github.com/nusa-scheduler/nusa/web"
)

// storeWait is how long a starting server waits for its store.
const storeWait = 30 * time.Second

// server is one global server: its listeners, and a leadership term while it is elected.
type server struct {
	cfg    Config
	log    *slog.Logger
	tap    *logtap.Tap // of log
	store  store.Store
	hub    *tunnel.Hub
	web    *serve.Server
	leader *leaderTracker
	// active is nil while the server is not the active one.
	active atomic.Pointer[leadershipTerm]
	// loading is nil if the server is not elected, or serves already.
	loading atomic.Pointer[loading]
	// usage is how full the store was at the latest measurement. nil: not measured yet.
	usage atomic.Pointer[room.Usage]
	// reach knows whether the store answers.
	reach reach
	// known is the greatest revision of the store that this server has seen. regions are the
	// regions that it has seen.
	known   *knownRevision
	regions *knownRegions
	// issuing is nil if this server issues no identities. plain: nobody has asked for that.
	issuing  *issuing
	plain    bool
	rotating rotating
	// federation is the id of the federation.
	federation string
	// member delivers a fatal error of the embedded etcd.
	member  <-chan error
	metrics *metrics
	// denials are entries for the audit trail.
	denials *recorder.Queue
	// sink writes entries of the audit trail elsewhere. nil: nowhere.
	sink *auditsink.Sink
	bans bans
	// hooks, buses and intakes are the metrics of the webhooks, the buses and the intakes.
	hooks   *hooks.Metrics
	buses   *buses.Metrics
	intakes *intakes.Metrics
}

// Run serves until ctx ends or a fatal error occurs. When Run returns, everything that it started
// has ended. A nil error means that ctx ended.
func Run(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	if err := cfg.Identity.Require("nusa global --name "+cfg.Name, identity.Rules{{Kind: identity.Global, Name: cfg.Name}}); err != nil {
		return err
	}
	// The directory is opened first, because another process that uses it would also conflict in
	// every step below.
	dir, err := openDir(cfg)
	if err != nil {
		return err
	}
	if dir != nil {
		defer dir.Close()
	}
	tap := logtap.New()
	cfg.Logger = tap.Logger(cfg.Logger)
	s := &server{cfg: cfg, log: cfg.Logger, tap: tap, hub: tunnel.NewHub(tunnel.Options{}), denials: recorder.NewQueue(), sink: auditsink.New(cfg.AuditSink, cfg.Name, cfg.Logger)}
	defer s.hub.Close()
	s.metrics, s.hooks, s.buses, s.intakes = newMetrics(&s.active), hooks.NewMetrics(), buses.NewMetrics(), intakes.NewMetrics()
	addrs, closeStore, err := s.open(ctx, dir)
	if err != nil {
		return err
	}
	defer closeStore()
	s.leader = newLeaderTracker(s.store, s.cfg, addrs.GRPC)
	defer s.leader.close()
	s.services().Register(s.web)
	nusav1.RegisterWebhooksServer(s.web, &hooks.Server{Current: s.sender})
	nusav1.RegisterBusesServer(s.web, &buses.Server{Current: s.publisher})
	nusav1.RegisterIntakesServer(s.web, &intakes.Server{Current: s.taker})
	nusav1.RegisterOverviewServer(s.web, s.overview())
	nusav1.RegisterReservationsServer(s.web, &reservations.Service{Current: s.reservations})
	nusav1.RegisterSparesServer(s.web, &spares.Service{Current: s.spares})
	nusav1.RegisterRolloutsServer(s.web, &rollouts.Service{Current: s.term})
	nusav1.RegisterSchedulesServer(s.web, &schedules.Service{Current: s.schedules})
	nusav1.RegisterDeadLettersServer(s.web, &deadletters.Service{Current: s.letters})
	nusav1.RegisterTasksServer(s.web, &tasks.Service{Current: s.term})
	nusav1.RegisterSemaphoresServer(s.web, &workflows.Semaphores{Current: s.workflows})
	nusav1.RegisterWorkflowsServer(s.web, &workflows.Service{Current: s.workflows})
	discovery.Register(s.web, s.discovery)
	return s.run(ctx, addrs)
}

// run starts the loops of an opened server, and runs until ctx ends or one of them fails. The
// leadership is resigned while the store is still open.
func (s *server) run(ctx context.Context, addrs Addresses) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.web.Run(gctx) })
	g.Go(func() error { return s.leader.run(gctx) })
	g.Go(func() error { return s.cfg.Identity.Watch(gctx) })
	g.Go(func() error { return s.issuing.keep(gctx, s.cfg.Identity, &s.rotating.orders) })
	g.Go(func() error { return remind(gctx, s) })
	g.Go(func() error { return followKeys(gctx, s) })
	g.Go(func() error { return s.campaign(gctx) })
	g.Go(func() error { return s.keepStore(gctx) })
	g.Go(func() error {
		return s.reach.follow(gctx, s.store, func() bool { return s.active.Load() != nil }, s.log)
	})
	g.Go(func() error { return s.noteKnown(gctx) })
	g.Go(func() error { return writeDenials(gctx, s) })
	g.Go(func() error { return s.sink.Run(gctx) })
	g.Go(func() error { return watchBans(gctx, s) })
	g.Go(func() error {
		select {
		case <-gctx.Done():
			return gctx.Err()
		case err := <-s.member:
			return fmt.Errorf("embedded etcd member: %w", err)
		}
	})
	g.Go(func() error {
		select {
		case <-gctx.Done():
		case <-s.leader.known:
			s.log.Info("global server is ready", "name", s.cfg.Name, "grpc", addrs.GRPC, "http", addrs.HTTP)
			if s.cfg.Ready != nil {
				s.cfg.Ready(addrs)
			}
		}
		return nil
	})
	err := g.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// open opens the addresses and the store. The addresses come first, so that an address in use
// is reported early. But a server that issues its own identity needs the root in the store first.
func (s *server) open(ctx context.Context, dir *serve.DataDir) (Addresses, func(), error) {
	if err := issueEarly(s); err != nil {
		return Addresses{}, nil, err
	}
	if s.cfg.Secure == nil || s.issuing != nil {
		if err := s.listen(ctx); err != nil {
			return Addresses{}, nil, err
		}
	}
	etcdClient, closeStore, err := s.openStore(ctx, dir)
	if err != nil {
		if s.web != nil {
			err = errors.Join(err, s.web.Close())
		}
		return Addresses{}, nil, err
	}
	if s.web == nil {
		if err := s.listen(ctx); err != nil {
			closeStore()
			return Addresses{}, nil, err
		}
	}
	return Addresses{
		GRPC: s.web.GRPCAddr(), API: s.web.MoreAddr(0), Federation: s.web.MoreAddr(1), HTTP: s.web.HTTPAddr(), EtcdClient: etcdClient,
	}, closeStore, nil
}

func (s *server) listen(ctx context.Context) error {
	f := forward.New(s.target, "/nusa.v1.Identity/", nusav1.Monitor_Self_FullMethodName)
	f.WhyNoOther(s.reach.why)
	f.Await(nusav1.Federation_Session_FullMethodName, s.awaitLoaded)
	f.ReadRequestsAs(nusav1.Jobs_SubmitMany_FullMethodName, func() proto.Message { return new(submits.Request) })
	id := s.cfg.Identity
	id.RefuseIf(s.bans.refuses)
	g := gate.New(gate.Options{Source: id, Rights: s.rights, Limits: s.cfg.Limits, Record: s.denials.Add})
	apiAddr, regions := s.cfg.APIAddr, s.cfg.FederationAddr
	members := gate.Split(id.ID(), apiAddr != "", regions != "")
	web, err := serve.Open(ctx, serve.Options{
		More: []serve.Listener{
			{Addr: apiAddr, Flag: "--api-addr", Only: func(l net.Listener) net.Listener { return trust.Only(id, l, members.API) }},
			{Addr: regions, Flag: "--federation-addr", Only: func(l net.Listener) net.Listener { return trust.Only(id, l, members.Members) }},
		},
		Net: s.cfg.Net, Logger: s.log, GRPCAddr: s.cfg.GRPCAddr, HTTPAddr: s.cfg.HTTPAddr,
		Socket:      s.cfg.Socket,
		Credentials: id.Server(members.Main), Tap: trust.Tap, HTTPTLS: id.Web(),
		Unary: g.Around(f.Unary()), Stream: g.AroundStreams(f.Stream()), Ready: s.ready,
		Codec: submits.NewCodec(),
	})
	if err != nil {
		return err
	}
	s.web = web
	page.Mount(web.Mux)
	weblogin.Mount(web.Mux, weblogin.Options{Plain: id == nil})
	if err := errors.Join(web.Registry.Register(s.metrics), web.Registry.Register(s.hooks), web.Registry.Register(s.buses), web.Registry.Register(s.intakes), g.Register(web.Registry), s.sink.Register(web.Registry)); err != nil {
		return errors.Join(fmt.Errorf("metrics: %w", err), web.Close())
	}
	if err := rest.Mount(web, rest.Options{Origins: s.cfg.HTTPOrigins, Plain: id == nil}); err != nil {
		return errors.Join(err, web.Close())
	}
	return nil
}

// rights returns who may do what, or nil while this server is not the active one.
func (s *server) rights() *rights.Set {
	t := s.active.Load()
	if t == nil {
		return nil
	}
	return t.state.Auth.Load()
}

// ready returns nil for /readyz if this server is active, or if it reaches the active server and
// the store. A server without the store could not replace the active server.
func (s *server) ready() error {
	if err := s.cfg.Identity.Ready(); err != nil {
		return err
	}
	if s.active.Load() == nil && s.reach.why() != "" {
		return errors.New(s.reach.why())
	}
	if _, _, err := s.target(); err != nil {
		return err
	}
	return nil
}

// openStore connects to the store, and binds the data directory to the store's federation.
func (s *server) openStore(ctx context.Context, dir *serve.DataDir) (etcdClient string, closeStore func(), err error) {
	closeStore = func() {}
	s.store = s.cfg.Store
	if s.store == nil {
		etcd, err := s.openEtcd(ctx, dir)
		if err != nil {
			return "", closeStore, err
		}
		s.store, s.member, etcdClient = etcd, etcd.Err(), etcd.ClientAddr()
		closeStore = func() {
			if err := etcd.Close(); err != nil {
				s.log.Warn("cannot close the store", "error", err)
			}
		}
	}
	known := ""
	if dir != nil {
		known = dir.ClusterID()
	}
	if known == "" {
		err = openRoot(ctx, s)
	}
	if err == nil {
		s.federation, err = federationID(ctx, s.store, known)
	}
	if err == nil && known != "" {
		err = openRoot(ctx, s)
	}
	if err == nil && dir != nil {
		err = dir.SetCluster(s.federation)
	}
	if err == nil {
		s.known, err = openKnownRevision(dir)
	}
	if err == nil {
		s.regions, err = openKnownRegions(dir)
	}
	if err != nil {
		closeStore()
		return "", func() {}, err
	}
	return etcdClient, closeStore, nil
}

func (s *server) openEtcd(ctx context.Context, dir *serve.DataDir) (*store.Etcd, error) {
	ctx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	rootsAtStart(s)
	c := store.EtcdConfig{
		Name: s.cfg.Name, Endpoints: s.cfg.Etcd.Endpoints,
		ClientAddr: s.cfg.Etcd.ClientAddr, PeerAddr: s.cfg.Etcd.PeerAddr,
		Quota: s.cfg.Etcd.Quota, InitialCluster: s.cfg.Etcd.InitialCluster, Dial: s.cfg.Net.Dial, Logger: s.log,
		Identity: s.cfg.Identity, Outside: s.cfg.Etcd.Outside,
	}
	if dir != nil {
		c.DataDir = dir.Path("etcd")
	}
	switch {
	case len(c.Endpoints) > 0:
		s.log.Info("waiting for etcd at " + strings.Join(c.Endpoints, ", "))
	case len(c.InitialCluster) > 0:
		s.log.Info("waiting for a majority of the etcd members", "members", c.InitialCluster)
	}
	return store.OpenEtcd(ctx, c)
}

// federationID returns the identity of the federation. The first server of all stored it. A server
// that knows an identity does not store a new one in an empty store.
func federationID(ctx context.Context, s store.Store, known string) (string, error) {
	for {
		kv, ok, _, err := s.Get(ctx, state.ClusterKey)
		if err != nil {
			return "", fmt.Errorf("identity of the federation: %w", err)
		}
		if ok {
			return string(kv.Value), nil
		}
		if known != "" {
			return "", fmt.Errorf("%w: this server belongs to federation %s, and the store is empty: restore its data, or start with a new data directory to begin another federation, which no region of the old one joins by itself",
				state.ErrForeignStore, known)
		}
		_, err = s.Txn(ctx, []store.Compare{store.Mod(state.ClusterKey, 0)}, []store.Op{store.Put(state.ClusterKey, []byte(rand.Text()))})
		if err != nil && !errors.Is(err, store.ErrCompareFailed) {
			return "", fmt.Errorf("identity of the federation: %w", err)
		}
	}
}

func openDir(cfg Config) (*serve.DataDir, error) {
	if cfg.DataDir == "" {
		return nil, nil
	}
	return serve.OpenDataDir(cfg.DataDir, "global", "")
}

// sender returns what delivers to webhooks, or nil while this server is not the active one.
func (s *server) sender() *hooks.Sender {
	if t := s.active.Load(); t != nil {
		return t.hooks
	}
	return nil
}

// publisher returns what delivers to buses, or nil while this server is not the active one.
func (s *server) publisher() *buses.Term {
	if t := s.active.Load(); t != nil {
		return t.buses
	}
	return nil
}

// taker returns what takes jobs from message brokers, or nil while this server is not the active one.
func (s *server) taker() *intakes.Term {
	if t := s.active.Load(); t != nil {
		return t.intakes
	}
	return nil
}

// reservations returns the reservations of the present term, or nil if this server is not active.
func (s *server) reservations() *reservations.Book {
	if t := s.active.Load(); t != nil {
		return t.book
	}
	return nil
}

// spares returns the spares of the present term, or nil if this server is not active.
func (s *server) spares() *spares.Book {
	if t := s.active.Load(); t != nil {
		return t.spares
	}
	return nil
}

// term returns the present term, or nil if this server is not active.
func (s *server) term() *api.Term {
	if t := s.active.Load(); t != nil {
		return t.api
	}
	return nil
}

// schedules returns the schedules of the present term, or nil if this server is not active.
func (s *server) schedules() *schedules.Book {
	if t := s.active.Load(); t != nil {
		return t.schedules
	}
	return nil
}

// letters returns the dead letters of the present term, or nil if this server is not active.
func (s *server) letters() *deadletters.Book {
	if t := s.active.Load(); t != nil {
		return t.letters
	}
	return nil
}

// workflows returns the workflows of the present term, or nil if this server is not active.
func (s *server) workflows() *workflows.Book {
	if t := s.active.Load(); t != nil {
		return t.workflows
	}
	return nil
}

// discovery returns the instances of services of the present term, or nil if this server is not active.
func (s *server) discovery() *discovery.Exchange {
	if t := s.active.Load(); t != nil {
		return t.services
	}
	return nil
}

// services returns the gRPC services of the server.
func (s *server) services() *api.Services {
	return &api.Services{
		Current: s.term,
		Hub:     s.hub, Servers: s.servers, Enroll: enrollServer(&s.cfg, s.store, s.active.Load, s.issuing), GivenRoots: s.issuing.given, Denied: s.denials.AddStranger,
		Info: s.info, Log: s.tap,
	}
}

// info describes the server, without its alarms.
func (s *server) info() *nusav1.InfoResponse {
	leader, _ := s.leader.get()
	out := &nusav1.InfoResponse{
		Role: "global", Name: s.cfg.Name, Region: s.cfg.Region, Version: s.cfg.Version,
		Leader: s.active.Load() != nil, LeaderAddress: leader.GetAddress(), FederationId: s.federation,
	}
	out.HttpAddress, out.HttpTls = s.web.HTTPAt()
	return out
}

// overview returns the service of the overview.
func (s *server) overview() *overview.Server {
	return &overview.Server{Current: func() *overview.Term {
		if t := s.active.Load(); t != nil {
			return t.overview
		}
		return nil
	}}
}
