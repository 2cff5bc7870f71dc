package regional

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/probe"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// maxPeers bounds the other regions that are believed to exist.
const maxPeers = 1024

// prober measures round trips to the other regions while this server is the
// master, and holds what the global tier told about them.
type prober struct {
	l     *leader
	probe *probe.Prober
	err   error

	mu     sync.Mutex
	peers  []*nusav1.PeerRegion
	column []topology.Edge
	told   time.Time // when the column came
}

func newProber(l *leader) *prober {
	p := &prober{l: l}
	host, _, _ := net.SplitHostPort(l.s.cfg.ProbeAddr)
	p.probe, p.err = probe.New(probe.Config{
		Region: l.s.cfg.Region.GetName(), Net: l.s.cfg.Net, Bind: net.JoinHostPort(host, "0"),
		Limits: probe.Limits{Budget: float64(l.s.cfg.ProbeRate)},
		Seed:   rand.Uint64(), Logger: l.s.cfg.Logger,
		Keys: l.s.cfg.ProbeKeys, Heard: l.s.responder.Heard,
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

// setPeers replaces the regions to probe.
func (p *prober) setPeers(peers []*nusav1.PeerRegion) {
	if len(peers) > maxPeers {
		p.l.log.Warn("too many regions, the last ones are not probed", "regions", len(peers), "max", maxPeers)
		peers = peers[:maxPeers]
	}
	p.mu.Lock()
	p.peers = peers
	p.mu.Unlock()
	var out []probe.Peer
	for _, r := range peers {
		out = append(out, probe.Peer{Name: r.GetName(), Addresses: r.GetProbeAddresses(), Coordinate: coordinateFromWire(r.GetCoordinate())})
	}
	p.probe.SetPeers(out)
}

// setColumn replaces, edge by edge, what other regions measured to here.
func (p *prober) setColumn(edges []*nusav1.Edge) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.age(time.Now())
	for _, w := range edges {
		e := edgeFromWire(w)
		i := slices.IndexFunc(p.column, func(o topology.Edge) bool { return o.From == e.From })
		switch {
		case i >= 0:
			p.column[i] = e
		case len(p.column) < maxPeers:
			p.column = append(p.column, e)
		}
	}
}

// age adds the time since the column came to its edges. p.mu is held.
func (p *prober) age(now time.Time) {
	for i := range p.column {
		p.column[i].Age += now.Sub(p.told)
	}
	p.told = now
}

// coordinate is this region's network coordinate.
func (p *prober) coordinate() *topology.Coordinate {
	c := p.probe.Coordinate()
	return &c
}

// view is what this region knows of the topology: its own row, its column, and
// where the others are.
func (p *prober) view() *topology.View {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.age(time.Now())
	def := p.l.s.cfg.Region
	all := []topology.Region{{
		Name: def.GetName(), Location: locationFromWire(def.GetLocation()), Labels: def.GetLabels(), Coordinate: p.coordinate(),
	}}
	for _, r := range p.peers {
		all = append(all, topology.Region{
			Name: r.GetName(), Location: locationFromWire(r.GetLocation()), Labels: r.GetLabels(),
			Coordinate: coordinateFromWire(r.GetCoordinate()),
		})
	}
	return topology.NewView(all, slices.Concat(p.probe.Edges(), p.column))
}

// others are the regions that the global tier named.
func (p *prober) others() []*nusav1.PeerRegion {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peers
}
