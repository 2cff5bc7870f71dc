package quorum

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/regional/gossip"
	"github.com/nusa-scheduler/nusa/regional/voters"
)

// Config is the configuration of a Group.
type Config struct {
	// ID is unique in the region and never used again.
	ID string
	// Dir holds the log and the snapshots. Empty: they are held in memory, for simulations.
	Dir string
	// Log is the kind of log in Dir. Empty stands for WAL. A log of the other kind is
	// converted.
	Log LogKind
	// Net and Listener carry Raft's streams. Advertise is the address at which others reach
	// the listener.
	Net       network.Net
	Listener  net.Listener
	Advertise string
	// Expect is the number of servers that form a new group.
	Expect int
	// Others is true when the configuration names other gossip addresses. The server then
	// forms no group before one of them has responded.
	Others bool

	Heartbeat, Election, LeaderLease, Commit time.Duration
	// ReplaceAfter and DeadAfter are explained at voters.View.
	ReplaceAfter, DeadAfter time.Duration

	Gossip *gossip.Group
	FSM    raft.FSM
	// Cluster returns the name of the group in the FSM. It is empty while the group has
	// none.
	Cluster func() string
	Logger  *slog.Logger
}

// Group is this server's membership in the Raft group.
type Group struct {
	*raft.Raft
	cfg      Config
	stores   stores
	meter    *meter
	trans    *raft.NetworkTransport
	existing bool
	// leaderChanged has room for one value: a change that was not read yet.
	leaderChanged chan struct{}
}

// Open starts Raft. A server with a log on disk takes part at once. Another server waits
// until Run forms a group, or until a leader adds the server. The caller must call Close.
func Open(cfg Config) (*Group, error) {
	log := newLogger(cfg.Logger)
	st := memoryStores()
	if cfg.Dir != "" {
		var err error
		st, err = openStores(cfg.Dir, cmp.Or(cfg.Log, WAL), log)
		if err != nil {
			return nil, err
		}
		if st.converted != "" {
			cfg.Logger.Info("converted the Raft log", "from", st.converted, "to", cfg.Log)
		}
	}
	existing, err := raft.HasExistingState(st.log, st.stable, st.snapshots)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("look for Raft state: %w", err), st.close())
	}
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(cfg.ID)
	c.HeartbeatTimeout = cfg.Heartbeat + 1 // one nanosecond longer: see electSoleVoter
	c.ElectionTimeout = max(cfg.Election, c.HeartbeatTimeout)
	c.LeaderLeaseTimeout, c.CommitTimeout = cfg.LeaderLease, cfg.Commit
	c.TrailingLogs = trailingEntries
	c.ShutdownOnRemove = false // a removed server stays, because it may be added again
	c.NoLegacyTelemetry = true
	c.Logger = log
	g := &Group{cfg: cfg, stores: st, meter: &meter{FSM: cfg.FSM, due: make(chan struct{}, 1)}, existing: existing, leaderChanged: make(chan struct{}, 1)}
	book := &addresses{gossip: cfg.Gossip}
	g.trans = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		ServerAddressProvider: book,
		Stream:                newStream(cfg.Net, cfg.Listener, cfg.ID, cfg.Advertise, cfg.Logger),
		MaxPool:               3,
		Timeout:               max(2*time.Second, 2*cfg.Heartbeat),
		Logger:                log,
	})
	g.Raft, err = raft.NewRaft(c, g.meter, st.log, st.stable, st.snapshots, g.trans)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start Raft: %w", err), g.trans.Close(), st.close())
	}
	book.raft.Store(g.Raft)
	if err := g.electSoleVoter(); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// electSoleVoter starts an election at once if this server is the only voter of its group,
// because there is no leader whose heartbeat the server could wait for. It sets the timeout
// one nanosecond shorter, and this change makes Raft check again whether to start an
// election.
func (g *Group) electSoleVoter() error {
	voters := g.GetConfiguration().Configuration().Servers
	if len(voters) != 1 || voters[0].ID != raft.ServerID(g.cfg.ID) || voters[0].Suffrage != raft.Voter {
		return nil
	}
	c := g.ReloadableConfig()
	c.HeartbeatTimeout = g.cfg.Heartbeat
	if err := g.ReloadConfig(c); err != nil {
		return fmt.Errorf("start Raft: %w", err)
	}
	return nil
}

// addresses finds a server's present address by its id. So a server may come back at
// another address. The address that it returns includes the id: see stream.
type addresses struct {
	gossip *gossip.Group
	// raft is set once Raft has started. It knows the addresses in the configuration.
	raft atomic.Pointer[raft.Raft]
}

// ServerAddr implements raft.ServerAddressProvider.
func (a *addresses) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	found := ""
	for _, m := range a.gossip.Members() {
		if m.ID == string(id) {
			found = m.Raft
		}
	}
	if r := a.raft.Load(); found == "" && r != nil {
		for _, s := range r.GetConfiguration().Configuration().Servers {
			if s.ID == id {
				found = string(s.Address)
			}
		}
	}
	if found == "" {
		return "", fmt.Errorf("the address of server %s is not known", id)
	}
	return target(string(id), found), nil
}

// Existing reports whether Open found a log. The server then belongs to a group.
func (g *Group) Existing() bool { return g.existing }

// Close first stops Raft, so that no further entry is applied, then the streams, then the
// log.
func (g *Group) Close() error {
	err := g.Shutdown().Error()
	g.trans.CloseStreams()
	return errors.Join(err, g.trans.Close(), g.stores.close())
}

// LeaderChanged returns a channel that receives a value after the leader or its address
// changed. One value may stand for several changes.
func (g *Group) LeaderChanged() <-chan struct{} { return g.leaderChanged }

// Run forms a new group if there is none, and reports changes of the leader. It runs until
// ctx ends or the log cannot be written.
func (g *Group) Run(ctx context.Context) error {
	seen := make(chan raft.Observation, 16)
	obs := raft.NewObserver(seen, false, func(o *raft.Observation) bool {
		_, leader := o.Data.(raft.LeaderObservation)
		return leader
	})
	g.RegisterObserver(obs)
	defer g.DeregisterObserver(obs)
	var broken <-chan error // stays nil in memory
	if g.stores.disk != nil {
		broken = g.stores.disk.brokenCh()
	}
	retry := time.NewTicker(time.Second)
	defer retry.Stop()
	var wait waitReport
	for {
		changed := g.cfg.Gossip.Changed()
		formation, err := g.form()
		if err != nil {
			return err
		}
		g.reportWaiting(&wait, formation)
		select {
		case <-ctx.Done():
			return nil
		case err := <-broken: // without its log the server can neither lead nor follow
			return err
		case <-changed:
		case <-retry.C:
		case <-seen:
			select {
			case g.leaderChanged <- struct{}{}:
			default:
			}
		}
	}
}

// form publishes the set of servers with which this server would form a group. Once all of
// them have published the same set, form forms the group. The returned Formation says why
// the group is not formed yet. It is empty if the server belongs to a group.
func (g *Group) form() (voters.Formation, error) {
	local := g.cfg.Gossip.Local()
	belongs := g.existing || len(g.GetConfiguration().Configuration().Servers) > 0
	next := local
	next.Bootstrapped, next.Cluster = belongs, g.cfg.Cluster()
	if belongs {
		next.Candidates = ""
		return voters.Formation{}, g.cfg.Gossip.SetLocal(next)
	}
	var seen []voters.Candidate
	for _, m := range g.cfg.Gossip.Members() {
		if m.Alive {
			seen = append(seen, voters.Candidate{ID: m.ID, Addr: m.Raft, Expect: m.Expect, Bootstrapped: m.Bootstrapped, Candidates: m.Candidates})
		}
	}
	f := voters.Form(g.cfg.ID, seen, g.cfg.Expect, g.cfg.Others && len(seen) < 2)
	next.Candidates = f.Hash
	if err := g.cfg.Gossip.SetLocal(next); err != nil || !f.Ready {
		return f, err
	}
	var c raft.Configuration
	for _, s := range f.Servers {
		c.Servers = append(c.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(s.ID), Address: raft.ServerAddress(s.Addr)})
	}
	g.cfg.Logger.Info("forming the region's group", "servers", len(c.Servers))
	if err := g.BootstrapCluster(c).Error(); err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return f, fmt.Errorf("form the Raft group: %w", err)
	}
	next.Bootstrapped = true
	return f, g.cfg.Gossip.SetLocal(next)
}
