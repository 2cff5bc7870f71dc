package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// lanes is how many sessions are held: one with the master, one warm with
// another server, which knows at once who the next master is.
const lanes = 2

// pool finds the region's servers and holds the sessions.
type pool struct {
	cfg       Config
	log       *slog.Logger
	engine    *engine
	inventory *inventory
	dir       *serve.DataDir
	tunnels   *tunnel.Listener
	// leaving is closed when sessions shall say goodbye.
	leaving chan struct{}
	// ended beats when a session has ended.
	ended *pulse

	mu sync.Mutex
	// servers are the region's own addresses, once learned.
	servers []string
	// master is where somebody said the master is; "" = unknown.
	master string
	// active is the session with the master.
	active *session
	mark   masterMark
	// position of the orders stored.
	position link.Position
	lane     [lanes]*lane
}

// lane is the place of one session.
type lane struct {
	n int
	// addr in use, "" = between two sessions.
	addr string
	// next of the known addresses to try.
	next int
	// wake ends a pause: something is known now that was not before.
	wake chan struct{} // capacity 1
}

func newPool(cfg Config, log *slog.Logger, e *engine, inv *inventory, dir *serve.DataDir, c contents) *pool {
	p := &pool{cfg: cfg, log: log, engine: e, inventory: inv, dir: dir, tunnels: tunnel.NewListener(maxTunnels),
		leaving: make(chan struct{}), ended: newPulse(), mark: c.master, position: c.position}
	for i := range p.lane {
		p.lane[i] = &lane{n: i, wake: make(chan struct{}, 1)}
	}
	return p
}

// run holds the sessions until ctx ends. An error is one that no retry mends.
func (p *pool) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, l := range p.lane {
		g.Go(func() error { return p.runLane(ctx, l) })
	}
	return g.Wait()
}

func (p *pool) runLane(ctx context.Context, l *lane) error {
	retry := newBackOff()
	moved, said := false, false
	for ctx.Err() == nil && !p.isLeaving() {
		addr := p.take(l)
		if addr == "" {
			p.pause(ctx, l, retry.MaxInterval)
			continue
		}
		began := time.Now()
		err := p.converse(ctx, l, addr)
		p.release(l, errors.Is(err, errMove))
		var refused *refusal
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errLeft):
			return nil
		case errors.Is(err, serve.ErrOtherCluster):
			return err
		case errors.As(err, &refused) && refused.permanent:
			return fmt.Errorf("%s: %w", addr, err)
		case errors.Is(err, errMove) && !moved:
			moved = true // go there at once, but not twice in a row
			continue
		}
		moved = false
		if time.Since(began) > retry.MaxInterval {
			retry.Reset()
		}
		if refused != nil && !said {
			p.log.Warn("the region does not take this agent, which goes on asking", "server", addr, "error", err)
		}
		said = refused != nil
		p.log.Debug("session ended", "server", addr, "error", err)
		p.pause(ctx, l, retry.NextBackOff())
	}
	return nil
}

func (p *pool) isLeaving() bool {
	select {
	case <-p.leaving:
		return true
	default:
		return false
	}
}

// sayGoodbye waits until every session has said so.
func (p *pool) sayGoodbye(ctx context.Context) {
	close(p.leaving)
	for {
		ended := p.ended.next()
		p.mu.Lock()
		idle := p.lane[0].addr == "" && p.lane[1].addr == ""
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

// pause waits; less if the lane is woken.
func (p *pool) pause(ctx context.Context, l *lane, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.wake:
	case <-ctx.Done():
	}
}

// take chooses the server for a lane; "" = none for now. The master comes
// first. The second lane waits until the region's own list is known: before,
// two names may well mean one server.
func (p *pool) take(l *lane) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	other := p.lane[1-l.n].addr
	if len(p.servers) < lanes && l.n > 0 {
		return ""
	}
	if p.master != "" && p.master != other {
		l.addr = p.master
		return l.addr
	}
	known := p.servers
	if l.n == 0 {
		// The seeds have their turn too: all servers may have moved.
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

// release ends a lane's hold of its server. Unless it moves, what it believed
// about the master may be why the session ended.
func (p *pool) release(l *lane, moves bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !moves && l.addr == p.master && p.active == nil {
		p.master = ""
	}
	l.addr = ""
	p.ended.beat()
}

// learn takes the region's list of servers.
func (p *pool) learn(list *nusav1.ServerList) {
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
		p.wakeAll()
	}
}

// maxServers of a region that are remembered.
const maxServers = 32

func (p *pool) wakeAll() {
	for _, l := range p.lane {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// hint notes where a standby says the master is. True: this lane shall go
// there itself, because the other is busy with another server.
func (p *pool) hint(l *lane, master string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	other := p.lane[1-l.n]
	if master == l.addr {
		p.master = master
	}
	if master == "" || master == l.addr || master == other.addr || p.active != nil && p.active.lane.addr == master {
		return false
	}
	p.master = master
	if other.addr == "" && p.active == nil {
		select {
		case other.wake <- struct{}{}:
		default:
		}
		return false
	}
	return true
}

// activate makes s the session with the master, unless the agent has already
// listened to a later one.
func (p *pool) activate(s *session, w *nusav1.MasterWelcome) error {
	mark := masterMark{Incarnation: w.GetIncarnation(), Term: w.GetTerm()}
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.GetClusterId() != "" {
		if err := p.dir.SetCluster(w.GetClusterId()); err != nil {
			return err
		}
	}
	if mark.before(p.mark) {
		return fmt.Errorf("%w: term %d of incarnation %d, known is term %d of incarnation %d",
			errOldMaster, mark.Term, mark.Incarnation, p.mark.Term, p.mark.Incarnation)
	}
	if mark != p.mark {
		// An older one is not listened to again, also after a restart; but a
		// full disk is no reason to have no master.
		n := newNotes()
		n.master = &mark
		if p.engine.keeper.write(n) != nil {
			p.engine.keeper.owe(n)
		}
		p.mark = mark
	}
	if p.active != nil && p.active != s {
		p.active.end(errSuperseded)
	}
	p.active = s
	p.engine.metrics.connected.Set(1)
	p.engine.metrics.sessions.Inc()
	// The master's own name for itself, so that the other lane does not take
	// it for another server.
	for _, srv := range w.GetServers().GetServers() {
		if srv.GetLeader() && srv.GetAddress() != "" {
			s.lane.addr = srv.GetAddress()
		}
	}
	p.master = s.lane.addr
	return nil
}

// deactivate: s is no longer the session with the master.
func (p *pool) deactivate(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active != s {
		return
	}
	p.active, p.master = nil, ""
	p.engine.metrics.connected.Set(0)
}

// connected says whether there is a session with the master.
func (p *pool) connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.active != nil
}

func (p *pool) setPosition(at link.Position) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.position = at
}

// identity is what a hello says of the past.
type identity struct {
	cluster  string
	position link.Position
}

func (p *pool) identity() identity {
	p.mu.Lock()
	defer p.mu.Unlock()
	return identity{cluster: p.dir.ClusterID(), position: p.position}
}

// owns says whether s may still bring orders.
func (p *pool) owns(s *session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.active == s
}
