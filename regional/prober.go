package regional

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/probe"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// maxPeers bounds the other regions that are believed to exist.
const maxPeers = topo.MaxRegions

// Routers of more than fewRegions are used for routersAge, since they cost more to
// build than an answer does.
const (
	fewRegions = 128
	routersAge = time.Second
)

const (
	// toldStale is the age beyond which what others told is stale, whatever they
	// said: they are silent. While the global tier is there it says what is stale,
	// and this counts as of its latest matrix.
	toldStale = 2 * time.Minute
	// matrixLate is how old that may be: one comes each five minutes, made a minute
	// before at most.
	matrixLate = 7 * time.Minute
	// awayAfter is how long after the global tier is there no more: its presence is
	// noted each keepEvery, and after islandAfter all peers are asked once within
	// askEvery. So what they say comes before what it said ends.
	awayAfter = keepEvery + islandAfter + askEvery + askWithin
)

// prober measures round trips to the other regions while this server is the
// master, and holds what the global tier told about them.
type prober struct {
	l     *leader
	probe *probe.Prober
	err   error

	mu    sync.Mutex
	peers []*nusav1.PeerRegion
	// matrix has what was told, on Config.Clock: the column, rows that peers
	// were asked for, and beneath both the compact matrix. This region's own row
	// comes in with each view.
	matrix *topology.Matrix
	// kept are routers for the questions of the next moment.
	kept   *topology.RouterCache
	keptAt time.Duration

	// watches are what those are told who watch the matrix here.
	watches topo.WatchLog
}

func newProber(l *leader) *prober {
	p := &prober{l: l, matrix: topology.NewMatrix()}
	host, _, _ := net.SplitHostPort(l.s.cfg.ProbeAddr)
	p.probe, p.err = probe.New(probe.Config{
		Region: l.s.cfg.Region.GetName(), Net: l.s.cfg.Net, Bind: net.JoinHostPort(host, "0"),
		Limits: probe.Limits{Budget: float64(l.s.cfg.ProbeRate)},
		Seed:   rand.Uint64(), Logger: l.s.cfg.Logger,
		Keys: l.s.cfg.ProbeKeys, LastSeen: l.s.responder.LastSeen,
		Changed: func(topology.Edge) { l.uplink.measured() },
	})
	return p
}

func (p *prober) run(ctx context.Context) error {
	if p.err != nil {
		return p.err
	}
	return p.probe.Run(ctx)
}

// begin goes on with what this server knows from earlier masters.
func (p *prober) begin() {
	if p.err != nil {
		return // run tells
	}
	k := p.l.s.fed.copy("")
	p.setPeers(k.GetPeers().GetRegions())
	if k.GetMatrix() == nil {
		return
	}
	if err := p.setCompact(k.GetMatrix(), k.GetMatrixAge().AsDuration()); err != nil {
		p.l.log.Warn("the kept matrix is not used", "error", err)
	}
}

// setPeers replaces the regions to probe.
func (p *prober) setPeers(peers []*nusav1.PeerRegion) {
	if len(peers) > maxPeers {
		p.l.log.Warn("too many regions, the last ones are not probed", "regions", len(peers), "max", maxPeers)
		peers = peers[:maxPeers]
	}
	def := p.l.s.cfg.Region
	all := make([]topology.Region, 0, len(peers)+1)
	var out []probe.Peer
	interest := map[string]float64{}
	for _, r := range peers {
		at := topo.CoordinateFromProto(r.GetCoordinate())
		out = append(out, probe.Peer{Name: r.GetName(), Addresses: r.GetProbeAddresses(), Coordinate: at})
		all = append(all, topology.Region{
			Name: r.GetName(), Location: topo.LocationFromProto(r.GetLocation()), Labels: r.GetLabels(), Coordinate: at,
		})
		interest[r.GetName()] = r.GetInterest()
	}
	all = append(all, topology.Region{Name: def.GetName(), Location: topo.LocationFromProto(def.GetLocation()), Labels: def.GetLabels()})
	p.mu.Lock()
	p.peers = peers
	p.matrix.SetRegions(all)
	p.mu.Unlock()
	p.probe.SetPeers(out)
	p.probe.Prefer(interest)
}

// setColumn takes what other regions measured to here.
func (p *prober) setColumn(edges []*nusav1.Edge) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range edges {
		if w.GetTo() == p.name() && w.GetFrom() != w.GetTo() {
			p.matrix.Set(topo.EdgeFromProto(w), p.now())
		}
	}
}

// setRow takes what a peer itself measured, as it told.
func (p *prober) setRow(peer string, edges []*nusav1.Edge) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range edges {
		if w.GetFrom() == peer && w.GetTo() != peer && w.GetSource() == nusav1.RTTSource_RTT_SOURCE_MEASURED && topo.PlausibleEdge(w) {
			p.matrix.Set(topo.EdgeFromProto(w), p.now())
		}
	}
}

// setCompact takes the medians of the whole federation as of so long ago. They
// are edges without samples, whose every percentile is the median, and count
// where nothing better is known: not for this region's row and column, nor where
// a peer has told later.
func (p *prober) setCompact(m *nusav1.CompactMatrix, age time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.matrix.View(p.now(), toldStale, nil)
	next := topology.NewMatrix()
	next.SetRegions(was.Regions())
	if err := topo.Expand(m, func(from, to string, p50 time.Duration, state topology.State) {
		next.Set(topology.Edge{
			From: from, To: to, State: state, Source: topology.Measured, P50: p50, P90: p50, P99: p50, Age: age,
		}, p.now())
	}); err != nil {
		return err
	}
	for e := range was.Edges() {
		told := e.Samples > 0 || e.State == topology.Unreachable // not of a compact matrix
		if told && (e.To == p.name() || e.Age < age+toldStale) {
			next.Set(e, p.now())
		}
	}
	p.matrix = next
	return nil
}

// staleAge is the age beyond which what was told is stale now.
func (p *prober) staleAge() time.Duration {
	silent, _ := p.l.s.fed.silent()
	age, told := p.l.s.fed.matrixAge()
	if told && age <= matrixLate && silent <= awayAfter {
		return age + toldStale
	}
	return toldStale
}

func (p *prober) name() string { return p.l.s.cfg.Region.GetName() }

func (p *prober) now() time.Duration { return p.l.s.cfg.Clock() }

// coordinate is this region's network coordinate.
func (p *prober) coordinate() *topology.Coordinate {
	c := p.probe.Coordinate()
	return &c
}

// view is what this region knows of the topology: its own row as measured now,
// what it was told with its age, and where the others are.
func (p *prober) view() *topology.View {
	own, at := p.probe.Edges(), p.coordinate()
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	for _, e := range own {
		p.matrix.Set(e, now)
	}
	p.matrix.SetCoordinate(p.name(), at)
	return p.matrix.View(now, p.staleAge(), nil)
}

// routers are of the present view or, of many regions, of one that is hardly
// older.
func (p *prober) routers() *topology.RouterCache {
	p.mu.Lock()
	kept, fresh := p.kept, len(p.peers) >= fewRegions && p.now()-p.keptAt < routersAge
	p.mu.Unlock()
	if kept != nil && fresh {
		return kept
	}
	kept = topology.NewRouterCache(p.view())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept, p.keptAt = kept, p.now()
	return kept
}

// others are the regions that the global tier named.
func (p *prober) others() []*nusav1.PeerRegion {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peers
}
