package peers

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/origins"
	"github.com/nusa-scheduler/nusa/internal/sets"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/topology"
)

// FederationCache holds the messages that the global tier last sent this region about the
// other regions. The global tier decides these values, so they are not in the Raft log.
// Instead each server copies them from the master and writes them to a file. A new master,
// and a region that starts again, uses its copy. FederationCache is safe for concurrent
// use.
type FederationCache struct {
	clock func() time.Duration

	mu sync.Mutex
	// A message is never changed, only replaced. nil: never received.
	peers   *nusav1.PeerRegions
	origins *nusav1.OriginTable
	matrix  *nusav1.CompactMatrix
	table   *origins.Table // the same records as in origins
	// These are the times on clock when the global tier last sent or confirmed each
	// message.
	peersAt, originsAt, matrixAt time.Duration
	// token is a hash of the three messages.
	token string
}

// NewFederationCache returns an empty cache. clock is monotonic.
func NewFederationCache(clock func() time.Duration) *FederationCache {
	return &FederationCache{clock: clock}
}

// SetPeers stores the list of other regions.
func (f *FederationCache) SetPeers(p *nusav1.PeerRegions) {
	f.update(func() { f.peers, f.peersAt = p, f.clock() })
}

// MergePeers applies changes to the list of other regions, and returns the new list.
// Malformed changes return an error and change nothing.
func (f *FederationCache) MergePeers(own string, c *nusav1.PeerChanges) (*nusav1.PeerRegions, error) {
	f.mu.Lock()
	have := f.peers.GetRegions()
	f.mu.Unlock()
	merged, err := sets.MergePeers(own, have, c, maxPeers)
	if err != nil {
		return nil, err
	}
	out := &nusav1.PeerRegions{Regions: merged}
	f.SetPeers(out)
	return out, nil
}

// Known returns the hashes and the position of the cached messages, for the hello of a
// session.
func (f *FederationCache) Known() *nusav1.KnownSets {
	f.mu.Lock()
	peers, origins, matrix := f.peers, f.origins, f.matrix
	f.mu.Unlock()
	out := &nusav1.KnownSets{Peers: sets.HashPeers(peers.GetRegions()), Matrix: matrix.GetPosition()}
	if origins != nil {
		out.Origins = sets.HashOrigins(origins)
	}
	return out
}

// SetOrigins stores the origin records. Malformed records return an error and change
// nothing.
func (f *FederationCache) SetOrigins(o *nusav1.OriginTable) error {
	table, err := origins.NewTable(o.GetRecords())
	if err != nil {
		return err
	}
	f.update(func() { f.origins, f.table, f.originsAt = o, table, f.clock() })
	return nil
}

// MergeMatrix returns the stored matrix with changes applied. It stores nothing.
func (f *FederationCache) MergeMatrix(c *nusav1.MatrixChanges) (*nusav1.CompactMatrix, error) {
	f.mu.Lock()
	have := f.matrix
	f.mu.Unlock()
	return sets.MergeMatrix(have, c, topo.MaxRegions)
}

// SetMatrix stores a compact matrix that the caller has checked.
func (f *FederationCache) SetMatrix(m *nusav1.CompactMatrix) {
	f.update(func() { f.matrix, f.matrixAt = m, f.clock() })
}

// Connected records that a session with the global tier exists. During a session the global
// tier sends every change of regions and origin records, so the stored ones are up to date.
func (f *FederationCache) Connected() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peersAt, f.originsAt = f.clock(), f.clock()
}

// Silence returns the time since the global tier last sent or confirmed the list of other
// regions. It returns false if the list was never received.
func (f *FederationCache) Silence() (time.Duration, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(0, f.clock()-f.peersAt), f.peers != nil
}

// matrixAge returns the age of the matrix. It returns false if there is none.
func (f *FederationCache) matrixAge() (time.Duration, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(0, f.clock()-f.matrixAt), f.matrix != nil
}

// Origins returns the origin records and their age. It returns false if none were received.
func (f *FederationCache) Origins() (table *origins.Table, age time.Duration, received bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.table, f.clock() - f.originsAt, f.origins != nil
}

// update changes the messages and computes the token from them.
func (f *FederationCache) update(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	h := sha256.New()
	for _, m := range []proto.Message{f.peers, f.origins, f.matrix} {
		raw, _ := wire.Deterministic.Marshal(m) // cannot fail: the message was decoded before
		fmt.Fprintf(h, "%d ", len(raw))
		h.Write(raw)
	}
	f.token = hex.EncodeToString(h.Sum(nil)[:16])
}

// Copy returns all messages with their ages. have is the token of the caller's copy. If it
// equals the token of this cache, Copy returns only the ages.
func (f *FederationCache) Copy(have string) *nusav1.FederationCache {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock()
	out := &nusav1.FederationCache{Token: f.token, Peers: f.peers, Origins: f.origins, Matrix: f.matrix}
	age := func(known bool, at time.Duration) *durationpb.Duration {
		if !known {
			return nil
		}
		return durationpb.New(now - at)
	}
	out.PeersAge, out.OriginsAge, out.MatrixAge = age(f.peers != nil, f.peersAt), age(f.origins != nil, f.originsAt), age(f.matrix != nil, f.matrixAt)
	if have != "" && have == f.token {
		out.Peers, out.Origins, out.Matrix = nil, nil, nil
	}
	return out
}

// adopt stores the parts of a copy that are newer than the stored parts.
func (f *FederationCache) adopt(k *nusav1.FederationCache) error {
	now := f.clock()
	at := func(age *durationpb.Duration) time.Duration { return now - max(age.AsDuration(), 0) }
	newer := func(age *durationpb.Duration, have bool, was time.Duration) bool {
		return age != nil && (!have || at(age) > was)
	}
	table, err := origins.NewTable(k.GetOrigins().GetRecords())
	if err != nil {
		return err
	}
	if err := topo.Expand(k.GetMatrix(), func(string, string, time.Duration, topology.State) {}); err != nil {
		return err
	}
	f.update(func() {
		same := k.GetToken() == f.token
		if newer(k.GetPeersAge(), f.peers != nil, f.peersAt) && (same || k.Peers != nil) {
			f.peersAt = at(k.GetPeersAge())
			if k.Peers != nil {
				f.peers = k.Peers
			}
		}
		if newer(k.GetOriginsAge(), f.origins != nil, f.originsAt) && (same || k.Origins != nil) {
			f.originsAt = at(k.GetOriginsAge())
			if k.Origins != nil {
				f.origins, f.table = k.Origins, table
			}
		}
		if newer(k.GetMatrixAge(), f.matrix != nil, f.matrixAt) && (same || k.Matrix != nil) {
			f.matrixAt = at(k.GetMatrixAge())
			if k.Matrix != nil {
				f.matrix = k.Matrix
			}
		}
	})
	return nil
}
