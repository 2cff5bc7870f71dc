package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/credentials"

	"github.com/nusa-scheduler/nusa/agent/engine"
	"github.com/nusa-scheduler/nusa/agent/retry"
	"github.com/nusa-scheduler/nusa/agent/store"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/notify"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/member"
)

const (
	// sessions is the number of sessions: one with the master, and one with another server.
	sessions = 2
	// maxServers bounds the remembered servers of a region.
	maxServers = 32
)

// Config configures the sessions.
type Config struct {
	NodeID       string
	Region, Name string
	// Servers are the configured addresses. The agent also learns the addresses that the
	// region sends.
	Servers     []string
	Net         network.Net
	Credentials credentials.TransportCredentials
	Log         *slog.Logger
	// Clock is the clock of leases.
	Clock     func() time.Duration
	Engine    *engine.Engine
	Reports   *Reports
	Inventory Inventory
	// Cluster stores which cluster the data directory belongs to.
	Cluster Cluster
	Writer  *store.Writer
	Metrics *Metrics
	// Orders gets the certificates that the region wants the agent to have. It may be nil.
	Orders *member.Orders
	// Discover copies the instances of services from the master until ctx ends. nil: the agent has no
	// such copy.
	Discover func(ctx context.Context, client nusav1.DiscoveryClient)
	// Master and Position come from the store.
	Master   store.MasterTerm
	Position link.Position
}

// Inventory describes the node.
type Inventory interface {
	Get() *nusav1.NodeInventory
	// Changed returns a channel that the next change closes.
	Changed() <-chan struct{}
	// Address returns the host's address, for people.
	Address() string
	// Stats measures the host.
	Stats(ctx context.Context) (*nusav1.NodeStats, error)
}

// Cluster is the cluster that a data directory belongs to.
type Cluster interface {
	ClusterID() string
	SetCluster(id string) error
}

// Pool finds the region's servers and holds the sessions with them.
type Pool struct {
	cfg     Config
	contact *contact
	tunnels *tunnel.Listener
	// leaving is closed when the sessions must say goodbye.
	leaving chan struct{}
	// ended wakes SayGoodbye when a session has ended.
	ended notify.Signal

	mu sync.Mutex
	// servers are the addresses that the region has sent.
	servers []string
	// master is the latest known address of the master, or "" if it is unknown.
	master string
	// active is the session with the master.
	active *session
	term   store.MasterTerm
	// position is the position of the stored orders.
	position link.Position
	slots    [sessions]*slot
}

// slot holds one session.
type slot struct {
	n int
	// addr is the server's address. It is "" between two sessions.
	addr string
	// next is the index of the known address that the slot tries next.
	next int
	// wake ends a pause early, because the pool has learned something new.
	wake chan struct{} // capacity 1
}

// NewPool returns a pool without sessions.
func NewPool(cfg Config) *Pool {
	p := &Pool{cfg: cfg, contact: newContact(cfg.Log), tunnels: tunnel.NewListener(maxTunnels),
		leaving: make(chan struct{}), term: cfg.Master, position: cfg.Position}
	for i := range p.slots {
		p.slots[i] = &slot{n: i, wake: make(chan struct{}, 1)}
	}
	return p
}

// Tunnels returns the listener that accepts the tunnels which the region asks for.
func (p *Pool) Tunnels() *tunnel.Listener { return p.tunnels }

// Run holds the sessions until ctx ends. It returns earlier only for an error that no retry
// can solve.
func (p *Pool) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, l := range p.slots {
		g.Go(func() error { return p.runSlot(ctx, l) })
	}
	quiet, stop := context.WithCancel(ctx)
	defer stop()
	warnings := errgroup.Group{}
	warnings.Go(func() error { return p.contact.run(quiet) })
	err := g.Wait()
	stop()
	return errors.Join(err, warnings.Wait())
}

// outcome says how a session ended.
type outcome int

const (
	ended   outcome = iota
	refused         // the server refused the agent for now
	moved           // the slot connects to the master at once
)

func (p *Pool) runSlot(ctx context.Context, l *slot) error {
	backOff := retry.New()
	last, warned := ended, false
	for ctx.Err() == nil && !p.isLeaving() {
		addr := p.choose(l)
		if addr == "" {
			p.pause(ctx, l, backOff.MaxInterval)
			continue
		}
		began := time.Now()
		err := p.runSession(ctx, l, addr)
		p.release(l, errors.Is(err, errMove))
		now := ended
		var refusal *refusalError
		switch {
		case ctx.Err() != nil || errors.Is(err, errLeft):
			return nil
		case errors.Is(err, serve.ErrOtherCluster):
			return err
		case errors.As(err, &refusal) && refusal.permanent:
			return fmt.Errorf("%s: %w", addr, err)
		case errors.Is(err, errMove) && last != moved: // do not move twice in a row
			last = moved // warned stays set, because a standby may lead to the refusing master each time
			continue
		case refusal != nil:
			now = refused
		}
		if time.Since(began) > backOff.MaxInterval {
			backOff.Reset()
		}
		if now == refused && !warned {
			p.cfg.Log.Warn("the region refuses this agent, which asks again", "server", addr, "error", err)
		}
		last, warned = now, now == refused
		p.cfg.Log.Debug("session ended", "server", addr, "error", err)
		p.pause(ctx, l, backOff.NextBackOff())
	}
	return nil
}

func (p *Pool) isLeaving() bool {
	select {
	case <-p.leaving:
		return true
	default:
		return false
	}
}

// SayGoodbye makes every session say goodbye and waits until all have ended.
func (p *Pool) SayGoodbye(ctx context.Context) {
	close(p.leaving)
	for {
		ended := p.ended.C()
		p.mu.Lock()
		idle := p.slots[0].addr == "" && p.slots[1].addr == ""
		p.mu.Unlock()
		if idle {
			return
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return
		}
	}
}

// pause waits for d, or until the slot is woken.
func (p *Pool) pause(ctx context.Context, l *slot, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.wake:
	case <-ctx.Done():
	}
}

// choose returns the server for a slot, or "" if the slot must wait. The master has
// priority. The second slot waits for the addresses that the region sends, because two
// configured addresses may belong to one server.
func (p *Pool) choose(l *slot) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	other := p.slots[1-l.n].addr
	if len(p.servers) < sessions && l.n > 0 {
		return ""
	}
	if p.master != "" && p.master != other {
		l.addr = p.master
		return l.addr
	}
	known := p.servers
	if l.n == 0 {
		// Also try the configured addresses, because all servers may have new addresses.
		known = slices.Concat(p.servers, p.cfg.Servers)
	}
	for range known {
		addr := known[l.next%len(known)]
		l.next++
		if addr != other {
			l.addr = addr
			return addr
		}
	}
	return ""
}

// release frees a slot. Unless the slot moves to the master, the session may have ended
// because the known address of the master is wrong. In that case release forgets that
// address.
func (p *Pool) release(l *slot, moves bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !moves && l.addr == p.master && p.active == nil {
		p.master = ""
	}
	l.addr = ""
	p.ended.Notify()
}

// setServers stores the region's list of servers.
func (p *Pool) setServers(list *nusav1.ServerList) {
	var addrs []string
	for _, s := range list.GetServers() {
		if a := s.GetAddress(); a != "" && len(addrs) < maxServers {
			addrs = append(addrs, a)
		}
	}
	if len(addrs) == 0 {
		return
	}
	slices.Sort(addrs)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(addrs, p.servers) {
		p.servers = addrs
		for _, l := range p.slots {
			l.wakeUp()
		}
	}
}

func (l *slot) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// setMaster stores the master's address that a standby sent. It returns true if this slot
// must connect to the master itself, because the other slot has a session with another
// server.
func (p *Pool) setMaster(l *slot, master string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	other := p.slots[1-l.n]
	if master == l.addr {
		p.master = master
	}
	if master == "" || master == l.addr || master == other.addr || p.active != nil && p.active.slot.addr == master {
		return false
	}
	p.master = master
	if other.addr == "" && p.active == nil {
		other.wakeUp()
		return false
	}
	return true
}

// activate makes s the session with the master, unless the agent knows a newer master.
// restored reports that the master's log has another incarnation than the log of the
// previous master.
func (p *Pool) activate(s *session, w *nusav1.MasterWelcome) (restored bool, err error) {
	term := store.MasterTerm{Incarnation: w.GetIncarnation(), Term: w.GetTerm()}
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.GetClusterId() != "" {
		if err := p.cfg.Cluster.SetCluster(w.GetClusterId()); err != nil {
			return false, err
		}
	}
	if term.Before(p.term) {
		return false, fmt.Errorf("%w: term %d of incarnation %d, known is term %d of incarnation %d",
			errOldMaster, term.Term, term.Incarnation, p.term.Term, p.term.Incarnation)
	}
	if term != p.term {
		// The term is stored, so that the agent refuses an older master also after a
		// restart. A full disk must not separate the agent from its master, so a failed
		// write is repeated later.
		if b := store.MasterBatch(term); p.cfg.Writer.Write(b) != nil {
			p.cfg.Writer.Enqueue(b)
		}
		restored = term.Incarnation != p.term.Incarnation
		p.term = term
	}
	if p.active != nil && p.active != s {
		p.active.end(engine.ErrSuperseded)
	}
	p.active = s
	p.cfg.Metrics.connected.Set(1)
	p.cfg.Metrics.sessions.Inc()
	// The slot's address becomes the address that the master itself names. Otherwise the
	// other slot would connect to the same server under its other address.
	for _, srv := range w.GetServers().GetServers() {
		if srv.GetLeader() && srv.GetAddress() != "" {
			s.slot.addr = srv.GetAddress()
		}
	}
	p.master = s.slot.addr
	return restored, nil
}

// deactivate records that s is no longer the session with the master.
func (p *Pool) deactivate(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active != s {
		return
	}
	p.active, p.master = nil, ""
	p.cfg.Metrics.connected.Set(0)
}

// Connected reports whether there is a session with the master.
func (p *Pool) Connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.active != nil
}

// isActive reports whether s is the session with the master, so that its orders count.
func (p *Pool) isActive(s *session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.active == s
}

// setPosition records the position of the stored orders.
func (p *Pool) setPosition(at link.Position) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.position = at
}

func (p *Pool) storedPosition() link.Position {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.position
}
