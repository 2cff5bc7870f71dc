// Package global is the federation's tier: it keeps jobs, slots and regions
// in etcd, decides which regions run a job (package place), and ends the
// streams that the regions' masters dial to it. One server is active; the
// others forward to it.
package global

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/forward"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
)

// storeWait is how long a starting server waits for its store.
const storeWait = 30 * time.Second

// server is one global server: its listeners and, while it is elected, its
// reign.
type server struct {
	cfg    Config
	log    *slog.Logger
	store  store.Store
	hub    *tunnel.Hub
	web    *serve.Server
	leader *leaderTracker
	active atomic.Pointer[active]
	// member is the embedded etcd's fatal error.
	member  <-chan error
	metrics *metrics
}

// Run serves until ctx ends or the first fatal error. Everything that it
// started has ended when it returns. A nil error means that ctx ended.
func Run(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	// The directory first: another process with it would fight over all else.
	dir, err := openDir(cfg)
	if err != nil {
		return err
	}
	if dir != nil {
		defer dir.Close()
	}
	s := &server{cfg: cfg, log: cfg.Logger, hub: tunnel.NewHub(tunnel.Options{})}
	defer s.hub.Close()
	s.metrics = newMetrics(&s.active)
	// Then the addresses, so that one in use is told before etcd starts.
	if err := s.listen(ctx); err != nil {
		return err
	}
	addrs, closeStore, err := s.openStore(ctx, dir)
	if err != nil {
		return errors.Join(err, s.web.Close())
	}
	defer closeStore()
	s.leader = newLeaderTracker(s.store, cfg, addrs.GRPC)
	defer s.leader.close()
	s.register()
	return s.run(ctx, addrs)
}

// run is the server's life once everything is open. The first failure ends
// it; at the end leadership is resigned while the store is still there.
func (s *server) run(ctx context.Context, addrs Addresses) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.web.Run(gctx) })
	g.Go(func() error { return s.leader.run(gctx) })
	g.Go(func() error { return s.campaign(gctx) })
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

func (s *server) listen(ctx context.Context) error {
	f := forward.New(s.target)
	web, err := serve.Open(ctx, serve.Options{
		Net: s.cfg.Net, Logger: s.log, GRPCAddr: s.cfg.GRPCAddr, HTTPAddr: s.cfg.HTTPAddr,
		Unary: []grpcUnary{f.Unary()}, Stream: []grpcStream{f.Stream()}, Ready: s.ready,
	})
	if err != nil {
		return err
	}
	s.web = web
	if err := web.Registry.Register(s.metrics); err != nil {
		return errors.Join(fmt.Errorf("metrics: %w", err), web.Close())
	}
	return nil
}

// ready is for /readyz: somebody is active, here or reachable from here.
func (s *server) ready() error {
	if _, _, err := s.target(); err != nil {
		return err
	}
	return nil
}

// openStore connects to the store and binds the data directory to its
// federation.
func (s *server) openStore(ctx context.Context, dir *serve.DataDir) (Addresses, func(), error) {
	addrs := Addresses{GRPC: s.web.GRPCAddr(), HTTP: s.web.HTTPAddr()}
	closeStore := func() {}
	s.store = s.cfg.Store
	if s.store == nil {
		etcd, err := s.openEtcd(ctx, dir)
		if err != nil {
			return addrs, closeStore, err
		}
		s.store, s.member, addrs.EtcdClient = etcd, etcd.Err(), etcd.ClientAddr()
		closeStore = func() {
			if err := etcd.Close(); err != nil {
				s.log.Warn("close the store", "error", err)
			}
		}
	}
	id, err := federationID(ctx, s.store)
	if err == nil && dir != nil {
		err = dir.SetCluster(id)
	}
	if err != nil {
		closeStore()
		return addrs, func() {}, err
	}
	return addrs, closeStore, nil
}

func (s *server) openEtcd(ctx context.Context, dir *serve.DataDir) (*store.Etcd, error) {
	ctx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	c := store.EtcdConfig{
		Name: s.cfg.Name, Endpoints: s.cfg.Etcd.Endpoints,
		ClientAddr: s.cfg.Etcd.ClientAddr, PeerAddr: s.cfg.Etcd.PeerAddr,
		InitialCluster: s.cfg.Etcd.InitialCluster, Dial: s.cfg.Net.Dial, Logger: s.log,
	}
	if dir != nil {
		c.DataDir = dir.Path("etcd")
	}
	return store.OpenEtcd(ctx, c)
}

// federationID is the identity that the first server ever gave the store.
func federationID(ctx context.Context, s store.Store) (string, error) {
	for {
		kv, ok, _, err := s.Get(ctx, ClusterKey)
		if err != nil {
			return "", fmt.Errorf("identity of the federation: %w", err)
		}
		if ok {
			return string(kv.Value), nil
		}
		_, err = s.Txn(ctx, []store.Compare{store.Mod(ClusterKey, 0)}, []store.Op{store.Put(ClusterKey, []byte(rand.Text()))})
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

// withDefaults fills in what the comments of Config promise.
func (c Config) withDefaults() (Config, error) {
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return c, fmt.Errorf("name of the server: %w; give one", err)
		}
		c.Name = host
	}
	if c.Net.Listen == nil {
		c.Net = network.Host()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Clock == nil {
		c.Clock = bootClock
	}
	for _, d := range []struct {
		field *string
		value string
	}{
		{&c.GRPCAddr, "127.0.0.1:7600"}, {&c.HTTPAddr, "127.0.0.1:7601"},
		{&c.Etcd.ClientAddr, "127.0.0.1:7602"}, {&c.Etcd.PeerAddr, "127.0.0.1:7603"}, {&c.Version, serve.Version},
	} {
		if *d.field == "" {
			*d.field = d.value
		}
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.Lease, 30 * time.Second}, {&c.ReportInterval, 5 * time.Second},
		{&c.CheckpointInterval, 30 * time.Second}, {&c.ElectionTTL, 5 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
		if *d.field < 0 {
			return c, fmt.Errorf("interval %s: must not be negative", *d.field)
		}
	}
	if c.Store == nil && len(c.Etcd.Endpoints) == 0 && c.DataDir == "" {
		return c, errors.New("data directory: required, since etcd is embedded; or name etcd endpoints")
	}
	if c.Advertise != "" {
		if _, _, err := net.SplitHostPort(c.Advertise); err != nil {
			return c, fmt.Errorf("advertised address: %w", err)
		}
	}
	if c.DataDir != "" {
		abs, err := filepath.Abs(c.DataDir)
		if err != nil {
			return c, fmt.Errorf("data directory: %w", err)
		}
		c.DataDir = abs
	}
	return c, nil
}

// bootClock reads CLOCK_BOOTTIME, which goes on while the machine sleeps.
func bootClock() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Only kernels older than 2.6.39 do not know it.
		panic("read CLOCK_BOOTTIME: " + err.Error())
	}
	return time.Duration(ts.Nano())
}
