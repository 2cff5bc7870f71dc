package peers

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/trust"
)

const (
	// islandAfter is how long the region must be without a session with the global tier
	// before it polls its peers. Another global server takes over in less time.
	islandAfter = 15 * time.Second
	// pollEvery is how often each peer is polled, plus or minus a fifth. pollRetry is the
	// pause after a failure. The next poll then asks another server of the peer.
	pollEvery = 30 * time.Second
	pollRetry = 10 * time.Second
	// pollTimeout bounds one call. maxPolls bounds the calls in progress. The first calls
	// are spread over a time of firstPollSpread for each peer.
	pollTimeout     = 5 * time.Second
	maxPolls        = 8
	firstPollSpread = 50 * time.Millisecond
)

// Poller asks the other regions directly for their rows of the matrix while no global tier
// is connected, so that the matrix stays complete.
type Poller struct {
	// Prober receives the rows and lists the peers.
	Prober *Prober
	// Connected reports whether a session with the global tier exists.
	Connected func() bool
	Net       network.Net
	// Identity is for connections to the servers of the peers. It may be nil.
	Identity *trust.Source
	Log      *slog.Logger

	mu    sync.Mutex
	peers map[string]*polledPeer
}

// polledPeer is the state of one peer between two polls.
type polledPeer struct {
	due    time.Time
	server int // index of the address to ask
	busy   bool
}

// Run polls the peers whenever the global tier has been gone for islandAfter. It returns
// when ctx ends.
func (p *Poller) Run(ctx context.Context) error {
	p.peers = map[string]*polledPeer{}
	var calls errgroup.Group
	calls.SetLimit(maxPolls)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for connected := time.Now(); ; {
		select {
		case <-ctx.Done():
			return calls.Wait()
		case now := <-tick.C:
			p.Prober.Watches.DropIdle(p.Prober.Now())
			switch {
			case p.Connected():
				connected = now
				p.reset()
			case now.Sub(connected) >= islandAfter:
				p.pollDue(ctx, now, &calls)
			}
		}
	}
}

func (p *Poller) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.peers)
}

// pollDue starts the polls that are due, as many as calls has room for. The others stay
// due.
func (p *Poller) pollDue(ctx context.Context, now time.Time, calls *errgroup.Group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	others := p.Prober.Others()
	present := map[string]bool{}
	for _, r := range others {
		servers := r.GetGrpcAddresses()
		if len(servers) == 0 {
			continue
		}
		present[r.GetName()] = true
		peer := p.peers[r.GetName()]
		if peer == nil {
			spread := float64(min(pollEvery, time.Duration(len(others))*firstPollSpread))
			peer = &polledPeer{due: now.Add(time.Duration(rand.Float64() * spread)), server: rand.IntN(len(servers))}
			p.peers[r.GetName()] = peer
		}
		if peer.busy || peer.due.After(now) {
			continue
		}
		address := servers[peer.server%len(servers)]
		if calls.TryGo(func() error { p.poll(ctx, r.GetName(), address, peer); return nil }) {
			peer.busy = true
		}
	}
	maps.DeleteFunc(p.peers, func(name string, _ *polledPeer) bool { return !present[name] })
}

// poll reads one peer's row from one of its servers and stores it.
func (p *Poller) poll(ctx context.Context, name, address string, peer *polledPeer) {
	row, err := p.row(ctx, name, address)
	if err == nil {
		p.Prober.setRow(name, row.GetEdges())
	} else {
		p.Log.Debug("cannot read the row of a peer region", "region", name, "server", address, "error", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	peer.busy = false
	wait := pollEvery
	if err != nil {
		wait = pollRetry
		peer.server++
	}
	peer.due = time.Now().Add(time.Duration((0.8 + 0.4*rand.Float64()) * float64(wait)))
}

func (p *Poller) row(ctx context.Context, name, address string) (*nusav1.MatrixResponse, error) {
	conn, err := serve.Dial(p.Net, address, p.Identity.Dial(identity.ServersOf(name)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	return nusav1.NewTopologyClient(conn).Matrix(ctx, &nusav1.MatrixRequest{From: name})
}
