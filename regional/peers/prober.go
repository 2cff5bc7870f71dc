package peers

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/sets"
	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/probe"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// maxPeers bounds the other regions that are probed.
const maxPeers = topo.MaxRegions

// From fewRegions regions on, routers are cached for routersMaxAge, because building a
// router costs more than a query.
const (
	fewRegions    = 128
	routersMaxAge = time.Second
)

const (
	// staleAfter is the age from which a received edge is stale, even if its state is OK.
	// While the global tier is connected, that tier decides which edges are stale, and the
	// age counts from its newest matrix.
	staleAfter = 2 * time.Minute
	// maxMatrixAge bounds the age of the global tier's newest matrix while that tier works.
	// The global tier sends a new matrix every five minutes. A matrix is at most a minute
	// old when it is sent. The seventh minute is a margin for delays.
	maxMatrixAge = 7 * time.Minute
	// globalGoneAfter is the silence after which the global tier counts as gone. It is the
	// longest time until the rows of all peers have arrived: the cache notes the presence
	// of the global tier each copyEvery, polls begin after islandAfter, and they reach
	// every peer within pollEvery and pollTimeout. So the rows of the peers arrive before
	// the values of the global tier become stale.
	globalGoneAfter = copyEvery + islandAfter + pollEvery + pollTimeout
)

// ProberConfig holds what a Prober needs from its server and its term.
type ProberConfig struct {
	Region *nusav1.RegionDefinition
	Net    network.Net
	// Addr is the address on which the probe responder listens. The prober sends from the
	// same host.
	Addr string
	// Rate bounds how many probes the prober sends in a second.
	Rate int
	Ring *probe.Keyring
	// LastSeen returns how long ago a probe of a region arrived at this server. It returns
	// false if none arrived (probe.Responder).
	LastSeen func(region string) (time.Duration, bool)
	// Clock is monotonic. Ages count on it.
	Clock func() time.Duration
	// EdgeChanged is called when a measured edge changed noticeably.
	EdgeChanged func()
	// Federation has the messages that this master or earlier masters received.
	Federation *FederationCache
	Log        *slog.Logger
}

// Prober measures round trips to the other regions while this server is the master. It also
// holds the values that the global tier and the peers sent about those regions.
type Prober struct {
	cfg   ProberConfig
	probe *probe.Prober

	mu    sync.Mutex
	peers []*nusav1.PeerRegion
	// matrix holds the received edges, with times on Clock. These are the column of this
	// region and the rows of polled peers. All other edges come from the compact matrix of
	// the global tier. The row of this region is not in matrix: it is added for each view.
	matrix *topology.Matrix
	// routers caches the routers of the view at routersAt.
	routers   *topology.RouterCache
	routersAt time.Duration

	// Watches holds the clients that watch the matrix on this server.
	Watches topo.WatchLog
}

// NewProber returns a prober that starts with the values of cfg.Federation.
func NewProber(cfg ProberConfig) (*Prober, error) {
	host, _, _ := net.SplitHostPort(cfg.Addr)
	measured, err := probe.New(probe.Config{
		Region: cfg.Region.GetName(), Net: cfg.Net, Bind: net.JoinHostPort(host, "0"),
		Limits: probe.Limits{Budget: float64(cfg.Rate)},
		Seed:   rand.Uint64(), Logger: cfg.Log,
		Ring: cfg.Ring, LastSeen: cfg.LastSeen,
		Changed: func(topology.Edge) { cfg.EdgeChanged() },
	})
	if err != nil {
		return nil, err
	}
	p := &Prober{cfg: cfg, probe: measured, matrix: topology.NewMatrix()}
	k := cfg.Federation.Copy("")
	p.SetPeers(k.GetPeers().GetRegions())
	if k.GetMatrix() == nil {
		return p, nil
	}
	if err := p.setMatrix(k.GetMatrix(), k.GetMatrixAge().AsDuration()); err != nil {
		cfg.Log.Warn("the stored matrix is not used", "error", err)
	}
	return p, nil
}

// Run probes until ctx ends.
func (p *Prober) Run(ctx context.Context) error { return p.probe.Run(ctx) }

// SetPeers replaces the regions to probe.
func (p *Prober) SetPeers(peers []*nusav1.PeerRegion) {
	if len(peers) > maxPeers {
		p.cfg.Log.Warn("too many regions, the last ones are not probed", "regions", len(peers), "max", maxPeers)
		peers = peers[:maxPeers]
	}
	own := p.cfg.Region
	all := make([]topology.Region, 0, len(peers)+1)
	var out []probe.Peer
	demand := map[string]float64{}
	for _, r := range peers {
		at := topo.CoordinateFromProto(r.GetCoordinate())
		out = append(out, probe.Peer{Name: r.GetName(), Addresses: r.GetProbeAddresses(), Coordinate: at})
		all = append(all, topology.Region{
			Name: r.GetName(), Location: topo.LocationFromProto(r.GetLocation()), Labels: r.GetLabels(), Coordinate: at,
		})
		demand[r.GetName()] = r.GetProbeDemand()
	}
	all = append(all, topology.Region{Name: own.GetName(), Location: topo.LocationFromProto(own.GetLocation()), Labels: own.GetLabels()})
	p.mu.Lock()
	p.peers = peers
	p.matrix.SetRegions(all)
	p.mu.Unlock()
	p.probe.SetPeers(out)
	p.probe.Prefer(demand)
}

// SetColumn stores the edges to this region that other regions measured.
func (p *Prober) SetColumn(edges []*nusav1.Edge) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range edges {
		if w.GetTo() == p.name() && w.GetFrom() != w.GetTo() {
			p.matrix.Set(topo.EdgeFromProto(w), p.Now())
		}
	}
}

// ChangeColumn applies changes to the edges to this region that other regions measured.
func (p *Prober) ChangeColumn(c *nusav1.ColumnChanges) error {
	edges, err := sets.UnpackColumn(p.name(), c.GetEdges(), maxPeers)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.Now()
	if age := c.GetConfirmed(); age != nil {
		p.matrix.ConfirmColumn(p.name(), c.GetUnconfirmed(), max(0, age.AsDuration()), now)
	}
	for _, e := range edges {
		if e.From != e.To && topo.Plausible(&e) {
			p.matrix.Set(e, now)
		}
	}
	return nil
}

// setRow stores the edges that a peer measured and sent directly.
func (p *Prober) setRow(peer string, edges []*nusav1.Edge) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range edges {
		if w.GetFrom() == peer && w.GetTo() != peer && w.GetSource() == nusav1.RTTSource_RTT_SOURCE_MEASURED && topo.PlausibleEdge(w) {
			p.matrix.Set(topo.EdgeFromProto(w), p.Now())
		}
	}
}

// SetMatrix stores a matrix that the global tier just sent.
func (p *Prober) SetMatrix(m *nusav1.CompactMatrix) error { return p.setMatrix(m, 0) }

// setMatrix stores the medians of the whole federation. The medians are age old. Each
// becomes an edge without samples, whose every percentile is the median. They replace
// neither this region's row and column nor newer rows of peers.
func (p *Prober) setMatrix(m *nusav1.CompactMatrix, age time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.matrix.View(p.Now(), staleAfter, nil)
	next := topology.NewMatrix()
	next.SetRegions(was.Regions())
	if err := topo.Expand(m, func(from, to string, p50 time.Duration, state topology.State) {
		next.Set(topology.Edge{
			From: from, To: to, State: state, Source: topology.Measured, P50: p50, P90: p50, P99: p50, Age: age,
		}, p.Now())
	}); err != nil {
		return err
	}
	for e := range was.Edges() {
		compact := e.Samples == 0 && e.State != topology.Unreachable // the edge came with a compact matrix
		if !compact && (e.To == p.name() || e.Age < age+staleAfter) {
			next.Set(e, p.Now())
		}
	}
	p.matrix = next
	return nil
}

// staleAge returns the age from which a received edge counts as stale now.
func (p *Prober) staleAge() time.Duration {
	silence, _ := p.cfg.Federation.Silence()
	age, received := p.cfg.Federation.matrixAge()
	if received && age <= maxMatrixAge && silence <= globalGoneAfter {
		return age + staleAfter
	}
	return staleAfter
}

func (p *Prober) name() string { return p.cfg.Region.GetName() }

// Now reads the clock on which the times of the matrix and its watches are.
func (p *Prober) Now() time.Duration { return p.cfg.Clock() }

// Edges returns this region's own row as it is measured now.
func (p *Prober) Edges() []topology.Edge { return p.probe.Edges() }

// Coordinate returns this region's network coordinate.
func (p *Prober) Coordinate() *topology.Coordinate {
	c := p.probe.Coordinate()
	return &c
}

// View returns the topology as this region knows it: its own row as measured
// now, the received edges with their ages, and the regions' locations.
func (p *Prober) View() *topology.View {
	own, at := p.probe.Edges(), p.Coordinate()
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.Now()
	for _, e := range own {
		p.matrix.Set(e, now)
	}
	p.matrix.SetCoordinate(p.name(), at)
	return p.matrix.View(now, p.staleAge(), nil)
}

// Routers returns the routers of the present view. With many regions the view may be up to
// routersMaxAge old.
func (p *Prober) Routers() *topology.RouterCache {
	p.mu.Lock()
	cached, fresh := p.routers, len(p.peers) >= fewRegions && p.Now()-p.routersAt < routersMaxAge
	p.mu.Unlock()
	if cached != nil && fresh {
		return cached
	}
	built := topology.NewRouterCache(p.View())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.routers, p.routersAt = built, p.Now()
	return built
}

// Others returns the other regions, as the global tier listed them.
func (p *Prober) Others() []*nusav1.PeerRegion {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peers
}
