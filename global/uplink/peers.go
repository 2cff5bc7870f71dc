package uplink

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/sets"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// pausePerRegion is the least time between two versions of the peers, for each region of the
	// federation. maxPause bounds that time. So when all regions connect together, each gets a few
	// messages, not one for each other region.
	pausePerRegion = 2 * time.Millisecond
	maxPause       = 5 * time.Second
	// awaitReports is how many report intervals a new term waits for the known regions before it
	// publishes the first version. Without these regions, that version would remove the others from
	// every region's set.
	awaitReports = 2
	// maxRemoved is how many removed regions are kept. A session that missed more gets all peers.
	maxRemoved = 1024
	// maxPacked bounds the encoded tables that are kept for one version.
	maxPacked = 64
	// A coordinate is sent again when the round trips that it predicts may have changed by movedBy
	// seconds, or its error by errorBy.
	movedBy = 0.002
	errorBy = 0.1
)

// peerSet holds all regions in the form in which other regions get them. Each change belongs to a
// version. The state's lock guards the set. Only publishEach changes it.
type peerSet struct {
	version uint64 // 0: none was published yet
	at      time.Duration
	entries map[string]*peerEntry
	names   []string // sorted
	buckets [sets.Buckets]uint64
	// removed are the latest removals, ordered by version. Removals up to version floor are
	// dropped.
	removed []removedPeer
	floor   uint64
	// packed holds encoded tables of this version.
	packed map[tableKey][]byte
}

// peerEntry is one region in a peerSet. An entry is replaced, never changed.
type peerEntry struct {
	definition *nusav1.RegionDefinition
	servers    []*nusav1.RegionalServer
	peer       *nusav1.PeerRegion
	hash       uint64
	changed    uint64 // version of the last change
}

type removedPeer struct {
	name    string
	version uint64
}

// tableKey says what a table contains: the changes since a version, or the buckets in a set of
// bits.
type tableKey struct {
	since   uint64
	buckets uint32
}

const allBuckets = math.MaxUint32 >> (32 - sets.Buckets)

// entryOf returns the entry of a region. If nothing has changed noticeably, it returns the old
// entry. coordinates: a change of the coordinate counts.
func entryOf(old *peerEntry, r *state.Region, coordinates bool) *peerEntry {
	definition := r.Record.GetDefinition()
	same := old != nil && old.definition == definition && len(old.servers) == len(r.Servers) &&
		(len(r.Servers) == 0 || &old.servers[0] == &r.Servers[0])
	at := r.Coordinate
	if old != nil && old.peer.GetCoordinate() != nil && (!coordinates || !sets.Moved(old.peer.GetCoordinate(), at, movedBy, errorBy)) {
		at = old.peer.GetCoordinate()
	}
	if same && at == old.peer.GetCoordinate() {
		return old
	}
	p := &nusav1.PeerRegion{Name: r.Name, Location: definition.GetLocation(), Labels: definition.GetLabels(), Coordinate: at}
	for _, srv := range r.Servers {
		if srv.GetProbeAddress() != "" {
			p.ProbeAddresses = append(p.ProbeAddresses, srv.GetProbeAddress())
		}
		if srv.GetAddress() != "" {
			p.GrpcAddresses = append(p.GrpcAddresses, srv.GetAddress())
		}
	}
	next := &peerEntry{definition: definition, servers: r.Servers, peer: p, hash: sets.HashPeer(p)}
	if old != nil {
		next.changed = old.changed
	}
	return next
}

// next returns the set with the present regions. If nothing has changed, it returns the same set.
func (p *peerSet) next(st *state.State, now time.Duration, coordinates bool) *peerSet {
	next := &peerSet{
		version: p.version + 1, at: now, entries: make(map[string]*peerEntry, len(st.Regions)), names: st.RegionNames(),
		removed: slices.Clone(p.removed), floor: p.floor,
	}
	changed := p.version == 0
	for _, name := range next.names {
		old := p.entries[name]
		e := entryOf(old, st.Regions[name], coordinates)
		if old == nil || e.hash != old.hash {
			e.changed, changed = next.version, true
		}
		next.entries[name] = e
		next.buckets[sets.Bucket(name)] ^= e.hash
	}
	for _, name := range p.names {
		if next.entries[name] == nil {
			next.removed, changed = append(next.removed, removedPeer{name, next.version}), true
		}
	}
	if !changed {
		p.entries = next.entries // equal contents, but with the present pointers
		return p
	}
	next.removed = slices.DeleteFunc(next.removed, func(r removedPeer) bool { return next.entries[r.name] != nil })
	if extra := len(next.removed) - maxRemoved; extra > 0 {
		next.floor, next.removed = next.removed[extra-1].version, next.removed[extra:]
	}
	return next
}

// pack encodes the tables that most sessions need. The caller does not hold the lock, because this
// takes milliseconds.
func (p *peerSet) pack() {
	p.packed = map[tableKey][]byte{}
	for _, key := range []tableKey{{since: p.version - 1}, {buckets: allBuckets}} {
		if key != (tableKey{}) {
			p.table(key)
		}
	}
}

// table returns an encoded table, or nil for an empty one.
func (p *peerSet) table(key tableKey) []byte {
	if out, known := p.packed[key]; known {
		return out
	}
	var of []*nusav1.PeerRegion
	for _, name := range p.names {
		e := p.entries[name]
		if key.since > 0 && e.changed > key.since || key.buckets>>sets.Bucket(name)&1 == 1 {
			of = append(of, e.peer)
		}
	}
	var out []byte
	if len(of) > 0 {
		out = sets.PackPeers(of)
	}
	if len(p.packed) < maxPacked {
		p.packed[key] = out
	}
	return out
}

// lacking returns the bits of the buckets that a region lacks. have are the hashes that the region
// named.
func (p *peerSet) lacking(region string, have []uint64) uint32 {
	if len(have) != sets.Buckets {
		return allBuckets
	}
	out := uint32(0)
	for i, hash := range p.buckets {
		if e := p.entries[region]; e != nil && sets.Bucket(region) == uint32(i) {
			hash ^= e.hash // a region does not have itself in its set
		}
		if have[i] != hash {
			out |= 1 << i
		}
	}
	return out
}

// publishEach publishes a version of the peers after each change, until ctx ends.
func publishEach(ctx context.Context, s *Server) error {
	late := time.NewTimer(0)
	defer late.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.st.PeersDue:
		case <-late.C:
		}
		if wait := publish(s); wait > 0 {
			late.Reset(wait)
		}
	}
}

// publish publishes the peers if that is due. It returns the time after which it must be called
// again; 0: at the next change.
func publish(s *Server) time.Duration {
	st := s.st
	st.Lock()
	now := st.Clock()
	if !st.PeersChanged {
		st.Unlock()
		return 0
	}
	if wait := publishAfter(s, now); wait > 0 {
		st.Unlock()
		return wait
	}
	st.PeersChanged = false
	coordinates := now-s.peersAt >= s.PeersInterval
	if coordinates {
		s.peersAt = now
	}
	next := s.peers.next(st, now, coordinates)
	st.Unlock()
	if next == s.peers {
		return 0
	}
	next.pack()
	st.Lock()
	defer st.Unlock()
	s.peers = next
	for _, r := range st.Regions {
		r.Wake()
	}
	return 0
}

// publishAfter returns how long the peers must not be published yet. The lock is held.
func publishAfter(s *Server, now time.Duration) time.Duration {
	connected := 0
	for _, r := range s.st.Regions {
		if r.Session != nil || r.Record.GetClusterId() == "" || r.Record.GetLost() != nil {
			connected++
		}
	}
	if awaited := s.began + awaitReports*s.ReportInterval; connected < len(s.st.Regions) && s.peers.version == 0 && now < awaited {
		return awaited - now
	}
	if s.peers.version == 0 {
		return 0
	}
	return s.peers.at + min(maxPause, time.Duration(len(s.st.Regions))*pausePerRegion) - now
}

// peersMessage returns the changes of the peers for a session. It returns nil if there are none, or
// if the session has to wait for its turn. The lock is held.
func (c *session) peersMessage() *nusav1.GlobalMessage {
	st, p := c.server.st, c.server.peers
	demand := c.shared.Unsent.Demand
	if p.version == 0 || c.peersVersion == p.version && !demand {
		c.server.turns.give(c, st.Clock())
		return nil
	}
	if c.known == nil {
		if !c.server.turns.take(c, st.Clock()) {
			return nil
		}
		c.peersVersion, c.shared.Unsent.Demand = p.version, false
		return wholePeers(st, p, c.region)
	}
	m := &nusav1.PeerChanges{}
	switch {
	case c.peersVersion == p.version:
	case c.peersVersion == 0 || c.peersVersion < p.floor:
		have := c.known.GetPeers()
		if c.peersVersion > 0 {
			have = nil
		}
		lacks := p.lacking(c.region, have)
		for i := range uint32(sets.Buckets) {
			if lacks>>i&1 == 1 {
				m.Buckets = append(m.Buckets, i)
			}
		}
		if lacks != 0 {
			m.Table = p.table(tableKey{buckets: lacks})
		}
	default:
		m.Table = p.table(tableKey{since: c.peersVersion})
		for _, r := range p.removed {
			if r.version > c.peersVersion {
				m.Removed = append(m.Removed, r.name)
			}
		}
	}
	if demand {
		m.Demand = probeDemand(st.ProbeDemand[c.region])
	}
	out := &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_PeerChanges{PeerChanges: m}}
	switch {
	case !isLarge(out):
		c.server.turns.give(c, st.Clock())
	case !c.server.turns.take(c, st.Clock()):
		return nil
	}
	c.peersVersion, c.shared.Unsent.Demand = p.version, false
	if len(m.Buckets)+len(m.Table)+len(m.Removed) == 0 && m.Demand == nil {
		return nil
	}
	return out
}

func probeDemand(of map[string]float64) *nusav1.ProbeDemand {
	out := &nusav1.ProbeDemand{}
	for _, name := range slices.SortedFunc(maps.Keys(of), cmp.Compare[string]) {
		if of[name] != 0 {
			out.Regions, out.Values = append(out.Regions, name), append(out.Values, of[name])
		}
	}
	return out
}

// wholePeers returns every region except the given one, for a region of an earlier version. The
// lock is held.
func wholePeers(st *state.State, p *peerSet, to string) *nusav1.GlobalMessage {
	out := &nusav1.PeerRegions{}
	for _, name := range p.names {
		if name == to {
			continue
		}
		peer := p.entries[name].peer
		if d := st.ProbeDemand[to][name]; d != 0 {
			peer = &nusav1.PeerRegion{
				Name: name, Location: peer.GetLocation(), Labels: peer.GetLabels(), ProbeAddresses: peer.GetProbeAddresses(),
				Coordinate: peer.GetCoordinate(), ProbeDemand: d, GrpcAddresses: peer.GetGrpcAddresses(),
			}
		}
		out.Regions = append(out.Regions, peer)
	}
	return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Peers{Peers: out}}
}
