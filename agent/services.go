package agent

import (
	"context"
	"log/slog"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/agent/dns"
	"github.com/nusa-scheduler/nusa/internal/discovery"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// services is the agent's copy of the instances of services, and the DNS server that answers from it. It
// is nil if the agent has no DNS address.
type services struct {
	region, path string
	store        *discovery.Store
	dns          *dns.Server
	log          *slog.Logger
}

// openServices reads the copy of an earlier process and opens the DNS sockets.
func openServices(ctx context.Context, cfg Config, dir *serve.DataDir) (*services, error) {
	if cfg.DNSAddr == "" {
		return nil, nil
	}
	s := &services{region: cfg.Region, path: dir.Path("services"), store: discovery.New(cfg.Clock), log: cfg.Logger}
	if err := discovery.Load(s.store, s.path, cfg.Region); err != nil {
		cfg.Logger.Warn("the stored copy of the services is not used", "path", s.path, "error", err)
	}
	s.store.Disconnected()
	var err error
	s.dns, err = dns.Listen(ctx, cfg.Net, cfg.DNSAddr, s.store, cfg.Logger)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *services) close() {
	if s != nil {
		s.dns.Close()
	}
}

// address returns the address of the DNS server, or "".
func (s *services) address() string {
	if s == nil {
		return ""
	}
	return s.dns.Addr()
}

// run answers questions and saves the copy until ctx ends.
func (s *services) run(ctx context.Context) error {
	if s == nil {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.dns.Run(ctx) })
	g.Go(func() error { return discovery.SaveEach(ctx, s.store, s.path, s.log) })
	return g.Wait()
}

// discover returns the function that follows a master, or nil.
func (s *services) discover() func(context.Context, nusav1.DiscoveryClient) {
	if s == nil {
		return nil
	}
	return func(ctx context.Context, client nusav1.DiscoveryClient) {
		source := &discovery.Source{
			Client: client, Store: s.store, Own: s.region, Roster: s.store.SetRoster, Up: s.store.Connected, Down: s.store.Disconnected,
		}
		discovery.Keep(ctx, source.Follow, discovery.LogFailures(s.log, "copy of the master"))
	}
}
