package emulate

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/sets"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// maxPeers bounds the peers, which are the other regions, of one message.
const maxPeers = 10_000

// knownSets tells the global tier what the region already has of the sets that the tier
// sends (package internal/sets). The caller holds r.mu.
func (r *region) knownSets() *nusav1.KnownSets {
	out := &nusav1.KnownSets{Peers: r.peerHashes, Column: r.column, Matrix: r.matrix}
	if r.asksReceived {
		out.Asks = sets.HashAsks(r.asks)
	}
	if r.wholeOrders {
		out.Orders = sets.HashOrders(r.ordersLevel, func(yield func(string, int64) bool) {
			for key, s := range r.held {
				if !yield(key, s.revision) {
					return
				}
			}
		})
	}
	return out
}

// changePeers notes the hashes of changed peers. An emulated region does not use the peers
// themselves.
func (r *region) changePeers(c *nusav1.PeerChanges) error {
	table, err := r.f.tables.read(c.GetTable())
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.peers == nil || len(c.GetBuckets()) == sets.Buckets {
		r.peers, r.peerHashes = map[string]uint64{}, make([]uint64, sets.Buckets)
	}
	put := func(name string, hash uint64) {
		r.peerHashes[sets.Bucket(name)] ^= r.peers[name] ^ hash
		r.peers[name] = hash
		if hash == 0 {
			delete(r.peers, name)
		}
	}
	if n := len(c.GetBuckets()); n > 0 && n < sets.Buckets {
		for name := range r.peers {
			if slices.Contains(c.GetBuckets(), sets.Bucket(name)) {
				put(name, 0)
			}
		}
	}
	for _, p := range table {
		if p.name != r.place.Name {
			put(p.name, p.hash)
		}
	}
	for _, name := range c.GetRemoved() {
		put(name, 0)
	}
	return nil
}

// peerTables decodes each table of peers once for all regions, because the work of the
// regions is not measured. It is safe for concurrent use.
type peerTables struct {
	mu      sync.Mutex
	decoded map[string][]hashedPeer
}

type hashedPeer struct {
	name string
	hash uint64
}

// maxTables bounds the decoded tables that peerTables holds.
const maxTables = 16

func (t *peerTables) read(data []byte) ([]hashedPeer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if out, known := t.decoded[string(data)]; known {
		return out, nil
	}
	peers, err := sets.UnpackPeers(data, maxPeers)
	if err != nil {
		return nil, err
	}
	out := make([]hashedPeer, len(peers))
	for i, p := range peers {
		out[i] = hashedPeer{p.GetName(), sets.HashPeer(p)}
	}
	if t.decoded == nil || len(t.decoded) >= maxTables {
		t.decoded = map[string][]hashedPeer{}
	}
	t.decoded[string(data)] = out
	return out, nil
}

// changeAsks applies changes of the asks whose fit counts the region reports.
func (r *region) changeAsks(c *nusav1.AskChanges) {
	r.mu.Lock()
	var next []*nusav1.ShapeSubscription
	if c.GetFull() {
		r.reportDue = true
	} else {
		next = slices.DeleteFunc(slices.Clone(r.asks), func(a *nusav1.ShapeSubscription) bool {
			return slices.Contains(c.GetRemoved(), a.GetAsk())
		})
		r.fitsDue = append(r.fitsDue, c.GetAdded()...)
	}
	next = append(next, c.GetAdded()...)
	slices.SortFunc(next, func(a, b *nusav1.ShapeSubscription) int { return cmp.Compare(a.GetAsk(), b.GetAsk()) })
	r.asks, r.asksReceived = next, true
	r.mu.Unlock()
	r.wakeSender()
}

// sentRow holds what a region has sent of its row in all its sessions. Only the sender
// uses sentRow, except that begin uses it before the sender starts.
type sentRow struct {
	sequence             uint64
	edges                []bool // by region
	any                  bool
	coordinate           *nusav1.Coordinate
	confirmedAt, wholeAt time.Time
}

// resume starts a session in which the server has the row up to the position at. If that
// is not all that was sent, the next row is full.
func (s *sentRow) resume(epoch string, at *nusav1.Position) {
	if at.GetEpoch() != epoch || at.GetSequence() != s.sequence {
		s.any = false
	}
}

// changes returns the part of a region's row that is due to be sent, or nil. The round
// trips of emulated regions never change, so each edge is sent once and then confirmed.
func (s *sentRow) changes(r *region, now time.Time) *nusav1.RowChanges {
	const drift, noticeable, errorBy = 0.01, 0.001, 0.05
	out := &nusav1.RowChanges{Full: !s.any || now.Sub(s.wholeAt) >= wholeRow}
	if out.Full {
		s.edges, s.any, s.wholeAt = make([]bool, len(r.f.regions)), true, now
	}
	var edges []topology.Edge
	same := false
	for i, to := range r.f.regions {
		switch {
		case i == r.n || !to.known.Load():
		case s.edges[i]:
			same = true
		default:
			s.edges[i] = true
			edges = append(edges, edge(r.place, to.place, rand.N(confirmRow)))
		}
	}
	if len(edges) > 0 {
		out.Edges = sets.PackRow(edges)
	}
	if out.Full || now.Sub(s.confirmedAt) >= confirmRow {
		s.confirmedAt = now
		if same {
			out.Confirmed = durationpb.New(confirmRow)
		}
	}
	if at := coordinate(r.place, drift*rand.Float64()); sets.Moved(s.coordinate, at, noticeable, errorBy) {
		s.coordinate, out.Coordinate = at, at
		r.mu.Lock()
		r.coordinate = at
		r.mu.Unlock()
	}
	if !out.Full && len(edges) == 0 && out.Confirmed == nil && out.Coordinate == nil {
		return nil
	}
	s.sequence++
	out.Position = &nusav1.Position{Epoch: r.epoch, Sequence: s.sequence}
	return out
}
