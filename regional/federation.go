package regional

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/origins"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// keepEvery is how often a server looks for what the master was told, and
	// keepWithin how long that may take.
	keepEvery  = 15 * time.Second
	keepWithin = 5 * time.Second
	// saveEvery is how often what was told is written to disk, if it changed;
	// coordinates drift all the time. saveAges is how often its ages are.
	saveEvery = time.Minute
	saveAges  = time.Hour
	// maxKept bounds the file: 1024 peers, 1,000 origin records and a matrix of
	// 1024 regions, with room.
	maxKept = 8 << 20
)

// federation is what the global tier last told this region about the others,
// for the days without it. It is round trips and names that others decide, so
// it is not in the log: each server asks the master for a copy and keeps it in a
// file. A new master, or a region that starts over, goes on with that.
type federation struct {
	clock func() time.Duration

	mu      sync.Mutex
	peers   *nusav1.PeerRegions // parts are replaced, never written to; nil: never told
	origins *nusav1.OriginTable
	matrix  *nusav1.CompactMatrix
	table   *origins.Table // of the origins
	// When the global tier last said so, on the clock.
	peersAt, originsAt, matrixAt time.Duration
	token                        string

	// Only the keeping goroutine's: the file has that token since then.
	saved   string
	savedAt time.Duration
}

// setPeers takes the other regions.
func (f *federation) setPeers(p *nusav1.PeerRegions) {
	f.put(func() { f.peers, f.peersAt = p, f.clock() })
}

// setOrigins takes the origin records; those that are not well formed change
// nothing.
func (f *federation) setOrigins(o *nusav1.OriginTable) error {
	table, err := origins.NewTable(o.GetRecords())
	if err != nil {
		return err
	}
	f.put(func() { f.origins, f.table, f.originsAt = o, table, f.clock() })
	return nil
}

// setMatrix takes a compact matrix, checked by who uses it.
func (f *federation) setMatrix(m *nusav1.CompactMatrix) {
	f.put(func() { f.matrix, f.matrixAt = m, f.clock() })
}

// connected notes that the global tier is there: it tells of other regions and
// origins as they change, so what it told is what it would say now.
func (f *federation) connected() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peersAt, f.originsAt = f.clock(), f.clock()
}

// silent is for how long the global tier has not told which other regions there
// are, or that they are as they were; false if it never has.
func (f *federation) silent() (time.Duration, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(0, f.clock()-f.peersAt), f.peers != nil
}

// matrixAge is how old the latest matrix is; false if there is none.
func (f *federation) matrixAge() (time.Duration, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(0, f.clock()-f.matrixAt), f.matrix != nil
}

func (f *federation) put(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	h := sha256.New()
	for _, m := range []proto.Message{f.peers, f.origins, f.matrix} {
		raw, _ := wire.Deterministic.Marshal(m) // decoded from the wire: it encodes again
		fmt.Fprintf(h, "%d ", len(raw))
		h.Write(raw)
	}
	f.token = hex.EncodeToString(h.Sum(nil)[:16])
}

// copy is all of it, with ages; without parts where the asker has the same.
func (f *federation) copy(have string) *nusav1.KeptFederation {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock()
	out := &nusav1.KeptFederation{Token: f.token, Peers: f.peers, Origins: f.origins, Matrix: f.matrix}
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

// adopt takes the parts of a copy that are newer than one's own.
func (f *federation) adopt(k *nusav1.KeptFederation) error {
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
	f.put(func() {
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

// originTable are the records, how old this copy is, and whether there is one.
func (f *federation) originTable() (table *origins.Table, age time.Duration, told bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.table, f.clock() - f.originsAt, f.origins != nil
}

// read takes what the file of an earlier life has. One that cannot be read only
// costs an island's knowledge.
func (f *federation) read(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Size() > maxKept {
		return fmt.Errorf("%d bytes, at most %d are read", info.Size(), maxKept)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	k := &nusav1.KeptFederation{}
	if err := proto.Unmarshal(raw, k); err != nil {
		return err
	}
	since := max(time.Since(info.ModTime()), 0)
	for _, age := range []**durationpb.Duration{&k.PeersAge, &k.OriginsAge, &k.MatrixAge} {
		if *age != nil {
			*age = durationpb.New((*age).AsDuration() + since)
		}
	}
	return f.adopt(k)
}

// save writes the file if what it has is not what there is; the last time
// without waiting for its turn.
func (f *federation) save(path string, last bool) error {
	k, now := f.copy(""), f.clock()
	if path == "" || k.GetToken() == "" {
		return nil
	}
	wait := saveEvery
	if k.GetToken() == f.saved {
		wait = saveAges
	}
	if f.saved != "" && !last && now-f.savedAt < wait {
		return nil
	}
	raw, err := proto.Marshal(k)
	if err != nil {
		return err
	}
	f.saved, f.savedAt = k.GetToken(), now // also where it fails: not again at once
	return serve.ReplaceFile(path, raw)
}

// readFederation takes what an earlier life of this server wrote.
func (s *server) readFederation() {
	if s.dir == nil {
		return
	}
	if err := s.fed.read(s.dir.Path("federation")); err != nil {
		s.cfg.Logger.Warn("what the global tier told before is not known any more", "path", s.dir.Path("federation"), "error", err)
	}
}

// keepFederation keeps this server's copy up to date until ctx ends.
func (s *server) keepFederation(ctx context.Context) error {
	path := ""
	if s.dir != nil {
		path = s.dir.Path("federation")
	}
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		if l := s.standing.leader(); l == nil {
			s.copyFromMaster(ctx) // nothing at the end
		} else if l.uplink.up() {
			s.fed.connected()
		}
		if err := s.fed.save(path, ctx.Err() != nil); err != nil {
			s.cfg.Logger.Warn("what the global tier told is not written", "path", path, "error", err)
		}
		if ctx.Err() != nil {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// copyFromMaster asks the master what it was told. A master of an earlier
// version does not answer, which costs nothing but the copy.
func (s *server) copyFromMaster(ctx context.Context) {
	_, address := s.master()
	if address == "" || s.masterID() == s.id {
		return
	}
	conn, err := s.masters.to(address)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, keepWithin)
	defer cancel()
	k, err := nusav1.NewSiblingsClient(conn).Kept(ctx, &nusav1.KeptRequest{Have: s.fed.copy("").GetToken()})
	if err == nil {
		err = s.fed.adopt(k)
	}
	if err != nil && ctx.Err() == nil {
		s.cfg.Logger.Debug("no copy of what the master was told", "master", address, "error", err)
	}
}

// siblings answers the other servers of the region.
type siblings struct {
	nusav1.UnimplementedSiblingsServer
	s *server
}

// Kept is this server's copy.
func (b siblings) Kept(_ context.Context, req *nusav1.KeptRequest) (*nusav1.KeptFederation, error) {
	return b.s.fed.copy(req.GetHave()), nil
}
