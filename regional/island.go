package regional

import (
	"context"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// islandAfter is how long the global tier may be away before peers are asked
	// for their rows: longer than it takes another global server to take over.
	islandAfter = 15 * time.Second
	// askEvery is how often each peer is asked then, give or take a fifth;
	// askAgain after a failure, at another of its servers.
	askEvery = 30 * time.Second
	askAgain = 10 * time.Second
	// askWithin bounds one question, asksAtOnce those under way, and
	// firstAsks spreads the first ones.
	askWithin  = 5 * time.Second
	asksAtOnce = 8
	firstAsks  = 50 * time.Millisecond // for each peer
)

// asked is what is kept of a peer between two questions.
type asked struct {
	due    time.Time
	server int // of its addresses, the one to ask
	busy   bool
}

// asker asks peer regions for their rows while the global tier is away.
type asker struct {
	l *leader

	mu    sync.Mutex
	peers map[string]*asked
}

// askPeers asks them directly, region to region, whenever the global tier has
// been away for a while, so that the matrix stays whole. Until ctx ends.
func (l *leader) askPeers(ctx context.Context) error {
	a := &asker{l: l, peers: map[string]*asked{}}
	var calls errgroup.Group
	calls.SetLimit(asksAtOnce)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for up := time.Now(); ; {
		select {
		case <-ctx.Done():
			return calls.Wait()
		case now := <-tick.C:
			l.prober.watches.DropIdle(l.prober.now())
			switch {
			case l.uplink.up():
				up = now
				a.forget()
			case now.Sub(up) >= islandAfter:
				a.askDue(ctx, now, &calls)
			}
		}
	}
}

func (a *asker) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.peers)
}

// askDue asks the peers whose turn it is, as far as there is room; the others'
// turn remains.
func (a *asker) askDue(ctx context.Context, now time.Time, calls *errgroup.Group) {
	a.mu.Lock()
	defer a.mu.Unlock()
	others := a.l.prober.others()
	there := map[string]bool{}
	for _, r := range others {
		servers := r.GetGrpcAddresses()
		if len(servers) == 0 {
			continue
		}
		there[r.GetName()] = true
		p := a.peers[r.GetName()]
		if p == nil {
			spread := float64(min(askEvery, time.Duration(len(others))*firstAsks))
			p = &asked{due: now.Add(time.Duration(rand.Float64() * spread)), server: rand.IntN(len(servers))}
			a.peers[r.GetName()] = p
		}
		if p.busy || p.due.After(now) {
			continue
		}
		address := servers[p.server%len(servers)]
		if calls.TryGo(func() error { a.ask(ctx, r.GetName(), address, p); return nil }) {
			p.busy = true
		}
	}
	maps.DeleteFunc(a.peers, func(name string, _ *asked) bool { return !there[name] })
}

// ask takes one peer's row from one of its servers.
func (a *asker) ask(ctx context.Context, peer, address string, p *asked) {
	row, err := a.row(ctx, peer, address)
	if err == nil {
		a.l.prober.setRow(peer, row.GetEdges())
	} else {
		a.l.log.Debug("a peer's row was not told", "region", peer, "server", address, "error", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p.busy = false
	wait := askEvery
	if err != nil {
		wait = askAgain
		p.server++
	}
	p.due = time.Now().Add(time.Duration((0.8 + 0.4*rand.Float64()) * float64(wait)))
}

func (a *asker) row(ctx context.Context, peer, address string) (*nusav1.MatrixResponse, error) {
	conn, err := serve.Dial(a.l.s.cfg.Net, address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	return nusav1.NewTopologyClient(conn).Matrix(ctx, &nusav1.MatrixRequest{From: peer})
}
