package probe

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/topology"
)

// Config of a Prober. The zero value of a field is its default.
type Config struct {
	// Region that probes: the From of every edge.
	Region string
	// Net carries the probes.
	Net network.Net
	// Bind is where the probing socket is opened; default "127.0.0.1:0".
	Bind string
	// Key authenticates probes and answers (HMAC-SHA256); nil is none. Both
	// ends need the same.
	Key []byte
	// Limits of the plan.
	Limits Limits
	// Timeout after which a probe counts as lost; default 2 s.
	Timeout time.Duration
	// Seed of the jitter.
	Seed uint64
	// Resolve turns "host:port" into an address that Net's packet conns
	// accept; default: literal addresses, else net.ResolveUDPAddr.
	Resolve func(ctx context.Context, addr string) (net.Addr, error)
	// Changed is called with an edge whose state changed or whose median moved
	// noticeably. It is called from one goroutine and must not block.
	Changed func(topology.Edge)
	// Logger; default discards.
	Logger *slog.Logger
}

const (
	defaultTimeout = 2 * time.Second
	// maxDials bounds the TCP probes and name look-ups under way; beyond it
	// the probe is skipped.
	maxDials = 64
	// watchTick, watchFor: while a young probe is out the prober wakes this
	// often to see how late it is woken: that is its own scheduling delay.
	watchTick = 5 * time.Millisecond
	watchFor  = time.Second
	// A median that moved by more than both is a noticeable change.
	changeFloor = time.Millisecond
	changeShare = 0.1
)

// Prober measures the edges from one region. Make it with New; the methods are
// safe for concurrent use.
type Prober struct {
	cfg     Config
	tracker *topology.Tracker
	session uint64
	wake    chan struct{}

	mu       sync.Mutex
	rnd      *rand.Rand
	plan     *Plan
	peers    map[string]*peer
	out      map[uint64]*outstanding // by sequence number
	sequence uint64
	wakeAt   time.Time // when the loop wants to be woken
}

// peer is what the prober holds of another region.
type peer struct {
	Peer
	window   Window
	reported topology.Edge
	dirty    bool // has samples that were not reported yet
}

// outstanding is a probe under way.
type outstanding struct {
	peer   string
	method string
	sent   time.Time
	delay  time.Duration
}

// New makes a prober without peers.
func New(cfg Config) (*Prober, error) {
	if cfg.Region == "" {
		return nil, errors.New("prober: no region name")
	}
	if cfg.Net.ListenPacket == nil || cfg.Net.Dial == nil {
		return nil, errors.New("prober: no network")
	}
	if cfg.Bind == "" {
		cfg.Bind = "127.0.0.1:0"
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Resolve == nil {
		cfg.Resolve = resolve
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	var session [8]byte
	if _, err := crand.Read(session[:]); err != nil {
		return nil, fmt.Errorf("prober: session number: %w", err)
	}
	return &Prober{
		cfg:     cfg,
		tracker: topology.NewTracker(cfg.Region),
		session: binary.BigEndian.Uint64(session[:]),
		wake:    make(chan struct{}, 1),
		rnd:     rand.New(rand.NewPCG(cfg.Seed, 0x70726f6265)),
		plan:    NewPlan(cfg.Limits),
		peers:   make(map[string]*peer),
		out:     make(map[uint64]*outstanding),
	}, nil
}

func resolve(_ context.Context, addr string) (net.Addr, error) {
	if literal, err := netip.ParseAddrPort(addr); err == nil {
		return net.UDPAddrFromAddrPort(literal), nil
	}
	return net.ResolveUDPAddr("udp", addr)
}

// SetPeers replaces the list of whom to probe. Peers that stay keep their
// measurements; a peer without addresses, and the own region, are not probed.
func (p *Prober) SetPeers(peers []Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := make(map[string]*peer, len(peers))
	names := make([]string, 0, len(peers))
	for _, told := range peers {
		if told.Name == p.cfg.Region || len(told.Addresses) == 0 {
			continue
		}
		told.Addresses = slices.Clone(told.Addresses)
		known := p.peers[told.Name]
		if known == nil {
			known = &peer{}
		}
		known.Peer = told
		next[told.Name] = known
		names = append(names, told.Name)
	}
	for name := range p.peers {
		if next[name] == nil {
			p.tracker.Forget(name)
		}
	}
	p.peers = next
	p.plan.SetPeers(names, time.Now(), p.rnd.Float64)
	p.poke()
}

// Edges are the measured edges to the peers, by name. Those of state Unknown
// have had neither an answer nor enough losses yet.
func (p *Prober) Edges() []topology.Edge {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	edges := make([]topology.Edge, 0, len(p.peers))
	for name, known := range p.peers {
		edges = append(edges, known.window.Edge(p.cfg.Region, name, now, p.plan.Interval()))
	}
	slices.SortFunc(edges, func(a, b topology.Edge) int { return strings.Compare(a.To, b.To) })
	return edges
}

// Coordinate is the region's present network coordinate.
func (p *Prober) Coordinate() topology.Coordinate { return p.tracker.Coordinate() }

// Run probes until ctx ends, then returns nil; an error means that the probing
// socket could not be opened or failed. A prober runs once.
func (p *Prober) Run(ctx context.Context) error {
	conn, err := p.cfg.Net.ListenPacket(ctx, p.cfg.Bind)
	if err != nil {
		return fmt.Errorf("prober of %s: open %s: %w", p.cfg.Region, p.cfg.Bind, err)
	}
	g, ctx := errgroup.WithContext(ctx)
	var dials errgroup.Group
	dials.SetLimit(maxDials)
	g.Go(func() error {
		p.loop(ctx, conn, &dials)
		return nil
	})
	g.Go(func() error { return p.read(ctx, conn) })
	g.Go(func() error {
		<-ctx.Done()
		return conn.Close()
	})
	err = g.Wait()
	_ = dials.Wait() // they settle their probes themselves
	if err != nil {
		return fmt.Errorf("prober of %s: %w", p.cfg.Region, err)
	}
	return nil
}

// poke makes the loop look again.
func (p *Prober) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// loop sends what is due, notices what is lost, and reports changes.
func (p *Prober) loop(ctx context.Context, conn net.PacketConn, dials *errgroup.Group) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
			p.noteDelay(time.Now())
		}
		due, again := p.step(time.Now())
		for _, d := range due {
			p.send(ctx, conn, dials, d)
		}
		for _, e := range p.changes(time.Now()) {
			p.cfg.Changed(e)
		}
		timer.Reset(p.sleep(again))
	}
}

// step settles lost probes and takes the due ones from the plan.
func (p *Prober) step(now time.Time) (due []Probe, again time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wakeAt = time.Time{} // awake
	for sequence, o := range p.out {
		if o.method == UDP && now.Sub(o.sent) >= p.cfg.Timeout {
			p.settle(sequence, Sample{Lost: true}, now)
		}
	}
	return p.plan.Take(now, p.rnd.Float64)
}

// sleep is how long the loop may rest: until the plan's next probe, the next
// loss, or the next look at its own delay. It notes the time, to see how late
// the waking is.
func (p *Prober) sleep(again time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if again.IsZero() {
		again = now.Add(time.Hour) // nothing to do until poked
	}
	for _, o := range p.out {
		look := o.sent.Add(p.cfg.Timeout)
		if now.Sub(o.sent) < watchFor {
			look = now.Add(watchTick)
		}
		if look.Before(again) {
			again = look
		}
	}
	p.wakeAt = again
	return max(0, again.Sub(now))
}

// noteDelay charges the lateness of this waking to the probes under way.
func (p *Prober) noteDelay(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wakeAt.IsZero() {
		return
	}
	late := now.Sub(p.wakeAt)
	for _, o := range p.out {
		o.delay = max(o.delay, late)
	}
}

// changes are the edges to report.
func (p *Prober) changes(now time.Time) []topology.Edge {
	if p.cfg.Changed == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var changed []topology.Edge
	for name, known := range p.peers {
		if !known.dirty {
			continue
		}
		known.dirty = false
		e := known.window.Edge(p.cfg.Region, name, now, p.plan.Interval())
		if noticeable(known.reported, e) {
			known.reported = e
			changed = append(changed, e)
		}
	}
	slices.SortFunc(changed, func(a, b topology.Edge) int { return strings.Compare(a.To, b.To) })
	return changed
}

func noticeable(was, is topology.Edge) bool {
	moved := (is.P50 - was.P50).Abs()
	return was.State != is.State || moved > changeFloor && float64(moved) > changeShare*float64(was.P50)
}

// settle ends a probe: its sample goes to the window, the plan and the
// coordinate. mu is held.
func (p *Prober) settle(sequence uint64, s Sample, now time.Time) {
	o := p.out[sequence]
	delete(p.out, sequence)
	known := p.peers[o.peer]
	if known == nil {
		return // removed meanwhile
	}
	s.At, s.Method = o.sent, o.method
	s.Delay = max(s.Delay, o.delay)
	known.window.Add(s)
	known.dirty = true
	if s.Lost {
		p.plan.Lost(o.peer, o.method, now, p.rnd.Float64)
		return
	}
	p.plan.Answered(o.peer, o.method, now, p.rnd.Float64)
	if known.Coordinate != nil && !s.delayed() {
		if err := p.tracker.Update(o.peer, *known.Coordinate, s.RTT); err != nil {
			p.cfg.Logger.Debug("coordinate not learned", "peer", o.peer, "error", err)
		}
	}
}
