package probe

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	// Region is the region that probes: the From of every edge.
	Region string
	// Net carries the probes.
	Net network.Net
	// Bind is the address of the probing socket; default "127.0.0.1:0".
	Bind string
	// Keys authenticate probes and responses (HMAC-SHA256). Probes are made with the first
	// key. A response may have any of the keys, so that a key can be replaced without a
	// gap. Both ends need a common key. Without keys a TCP connect counts without proof of
	// identity.
	Keys [][]byte
	// Ring replaces Keys, and may change while the prober runs.
	Ring *Keyring
	// Limits are the limits of the plan.
	Limits Limits
	// Timeout after which a probe counts as lost; default 2 s.
	Timeout time.Duration
	// Seed is the seed of the jitter.
	Seed uint64
	// Resolve converts "host:port" to an address that packet connections of Net accept.
	// Default: a function that reads literal addresses, and calls net.ResolveUDPAddr for
	// others.
	Resolve func(ctx context.Context, addr string) (net.Addr, error)
	// LastSeen returns how long ago a probe of another region arrived here, and false if
	// none did. It is usually Responder.LastSeen. It may be nil.
	LastSeen func(region string) (time.Duration, bool)
	// Changed is called with an edge whose state has changed, or whose median has changed
	// noticeably. It is called from one goroutine and must not block. It may be nil.
	Changed func(topology.Edge)
	// Logger receives warnings; default: none.
	Logger *slog.Logger
}

const (
	defaultTimeout = 2 * time.Second
	// maxBlocking bounds the TCP probes and name look-ups in flight. Further probes wait
	// in the plan. The bound suffices for the default budget and time-out if every probe
	// is lost.
	maxBlocking = 256
	// waitLogEvery is the least time between two warnings that probes wait.
	waitLogEvery = 10 * time.Minute
	// If the kernel does not report when responses arrived, the prober measures its own
	// scheduling delay: how late its loop wakes up. For that the loop wakes up shortly
	// before a response is due, by the share watchEarly of the round trip. Then it wakes
	// up again and again until the response arrives, but not longer than watchFor after
	// the request. The interval is watchTick, or the share watchShare of the time since
	// the request if that is longer. Delays that are shorter than that interval do not
	// matter for a sample.
	watchTick  = 5 * time.Millisecond
	watchShare = 1.0 / 16
	watchFor   = time.Second
	watchEarly = 1.0 / 32
	// A median has changed noticeably if it has changed by more than changeFloor and by
	// more than the share changeShare.
	changeFloor = time.Millisecond
	changeShare = 0.1
	// If the loop wakes up more than veryLate too late, there may be unread responses. Then no
	// probe counts as lost for answerGrace.
	veryLate    = 100 * time.Millisecond
	answerGrace = 20 * time.Millisecond
	// weighEvery is the interval at which the weights of the peers are computed.
	weighEvery = 5 * time.Second
)

// Prober measures the edges from one region. Make it by New. Its methods are safe for
// concurrent use.
type Prober struct {
	cfg     Config
	tracker *topology.Tracker
	id      uint64 // the hash of the region's name
	wake    chan struct{}

	mu           sync.Mutex
	rnd          *rand.Rand
	plan         *Plan
	peers        map[string]*peer
	dirty        []*peer // peers whose edges changed and were not reported yet
	inFlight     map[ticket]*inFlightProbe
	probes       uint64 // the number of probes that were sent
	connects     uint64 // the number of probes that were sent by TCP
	session      uint64 // the session of the packets over TCP
	demand       map[string]float64
	weighedAt    time.Time // when updateWeights last ran
	wakeAt       time.Time // when the loop has to wake up
	grace        time.Time // no probe is considered lost before this time
	blocking     int       // the number of TCP probes and look-ups in flight
	waitLoggedAt time.Time // when waiting probes were last logged
	stamped      bool      // the kernel reports when responses arrived
}

// ticket identifies a probe in flight. TCP probes have session 0.
type ticket struct{ session, sequence uint64 }

// peer is the prober's state of another region.
type peer struct {
	Peer
	window   Window
	reported topology.Edge
	moved    time.Time // when its edge last changed noticeably
	dirty    bool
	gone     bool // not among the peers any more
	proven   bool // the region proved its identity in the latest connect

	// address is the address that is probed now. session and sequence number the latest
	// request to that address.
	address  string
	session  uint64
	sequence uint64
	// acknowledged says which requests had arrived before acknowledgedAt, the sequence of
	// the request that got the latest response.
	acknowledged   arrivals
	acknowledgedAt uint64
}

// inFlightProbe is a probe in flight.
type inFlightProbe struct {
	ticket
	peer   *peer
	method string
	sent   time.Time
	expect time.Duration // the usual round trip; 0 if unknown
	late   time.Duration // from sent to the end of the write
	delay  time.Duration // the longest delay of a wake-up of the loop since then
}

// New returns a prober without peers.
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
	return &Prober{
		cfg:      cfg,
		tracker:  topology.NewTracker(cfg.Region),
		id:       regionID(cfg.Region),
		wake:     make(chan struct{}, 1),
		rnd:      rand.New(rand.NewPCG(cfg.Seed, 0x70726f6265)),
		plan:     NewPlan(cfg.Limits),
		peers:    make(map[string]*peer),
		inFlight: make(map[ticket]*inFlightProbe),
		session:  randomSession(),
	}, nil
}

// randomSession returns a number that no other process can guess. It is never 0.
func randomSession() uint64 {
	var b [8]byte
	_, _ = crand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:]) | 1
}

func resolve(_ context.Context, addr string) (net.Addr, error) {
	if literal, err := netip.ParseAddrPort(addr); err == nil {
		return net.UDPAddrFromAddrPort(literal), nil
	}
	return net.ResolveUDPAddr("udp", addr)
}

// SetPeers replaces the peers. Remaining peers keep their measurements. Peers without
// addresses and the prober's own region are not probed.
func (p *Prober) SetPeers(peers []Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := make(map[string]*peer, len(peers))
	names := make([]string, 0, len(peers))
	for _, given := range peers {
		if given.Name == p.cfg.Region || len(given.Addresses) == 0 {
			continue
		}
		given.Addresses = slices.Clone(given.Addresses)
		known := p.peers[given.Name]
		if known == nil {
			known = &peer{}
		}
		known.Peer = given
		next[given.Name] = known
		names = append(names, given.Name)
	}
	for name, known := range p.peers {
		if next[name] == nil {
			known.gone = true
			p.tracker.Forget(name)
		}
	}
	now := time.Now()
	p.peers = next
	p.plan.SetPeers(names, now, p.rnd.Float64)
	p.updateWeights(now)
	p.wakeLoop()
}

// Prefer sets the demand for the edge to each peer, 0..1, for example the demand of
// placement. Missing peers have 0. If the budget is too small for the interval of all
// peers, edges with more demand are probed more often. So are edges that changed recently,
// and edges whose prediction is uncertain.
func (p *Prober) Prefer(demand map[string]float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.demand = maps.Clone(demand)
	p.weighedAt = time.Time{}
	p.wakeLoop()
}

// updateWeights computes the weight of each peer. It is the mean of three values 0..1: the
// demand, whether the edge changed within WindowAge, and the uncertainty of a prediction.
// p.mu is held.
func (p *Prober) updateWeights(now time.Time) {
	p.weighedAt = now
	weights := make(map[string]float64, len(p.peers))
	for name, known := range p.peers {
		unsure := 1.0
		if known.Coordinate != nil {
			unsure = min(1, known.Coordinate.Error)
		}
		changed := 0.0
		if !known.moved.IsZero() && now.Sub(known.moved) < WindowAge {
			changed = 1
		}
		weights[name] = (min(1, max(0, p.demand[name])) + changed + unsure) / 3
	}
	p.plan.Prefer(weights)
}

// Edges returns the measured edges to the peers, sorted by name. An edge with the state
// Unknown has had no response, and not enough lost probes to count as unreachable.
func (p *Prober) Edges() []topology.Edge {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	edges := make([]topology.Edge, 0, len(p.peers))
	for name, known := range p.peers {
		edges = append(edges, p.edge(name, known, now))
	}
	slices.SortFunc(edges, func(a, b topology.Edge) int { return strings.Compare(a.To, b.To) })
	return edges
}

// edge returns the edge to one peer. p.mu is held.
func (p *Prober) edge(name string, known *peer, now time.Time) topology.Edge {
	every := p.plan.Every(name)
	e := known.window.Edge(p.cfg.Region, name, now, every)
	if e.Method == TCP && !known.proven {
		e.Method = Connect
	}
	if e.State == topology.Unreachable && p.cfg.LastSeen != nil {
		ago, ok := p.cfg.LastSeen(name)
		e.ReverseReachable = ok && ago <= StaleIntervals*every
	}
	return e
}

// Coordinate returns the region's present network coordinate.
func (p *Prober) Coordinate() topology.Coordinate { return p.tracker.Coordinate() }

// Run probes until ctx ends, and then returns nil. An error means that the probing socket
// could not be opened or has failed. Call Run once.
func (p *Prober) Run(ctx context.Context) error {
	conn, err := p.cfg.Net.ListenPacket(ctx, p.cfg.Bind)
	if err != nil {
		return fmt.Errorf("prober of %s: open %s: %w", p.cfg.Region, p.cfg.Bind, err)
	}
	read, stamped := receiver(conn)
	p.mu.Lock()
	p.stamped = stamped
	p.mu.Unlock()
	g, ctx := errgroup.WithContext(ctx)
	var dials sync.WaitGroup
	g.Go(func() error {
		p.loop(ctx, conn, &dials)
		return nil
	})
	g.Go(func() error { return p.read(ctx, read) })
	g.Go(func() error {
		<-ctx.Done()
		return conn.Close()
	})
	err = g.Wait()
	dials.Wait() // the dials record their probes themselves
	if err != nil {
		return fmt.Errorf("prober of %s: %w", p.cfg.Region, err)
	}
	return nil
}

// wakeLoop makes the loop run a step at once.
func (p *Prober) wakeLoop() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
