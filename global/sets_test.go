package global

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/sets"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// changeAsks applies changes of the asks, and reports the fit of the new asks.
func (r *fakeRegion) changeAsks(c *nusav1.AskChanges) []*nusav1.RegionMessage {
	if c.GetFull() {
		r.asks = nil
	}
	r.asks = slices.DeleteFunc(r.asks, func(a *nusav1.ShapeSubscription) bool { return slices.Contains(c.GetRemoved(), a.GetAsk()) })
	r.asks = append(r.asks, c.GetAdded()...)
	slices.SortFunc(r.asks, func(a, b *nusav1.ShapeSubscription) int { return cmp.Compare(a.GetAsk(), b.GetAsk()) })
	fits := &nusav1.FitCounts{}
	for _, a := range c.GetAdded() {
		fits.Fits = append(fits.Fits, &nusav1.FitCount{Ask: a.GetAsk(), Count: r.fits})
	}
	return []*nusav1.RegionMessage{{Kind: &nusav1.RegionMessage_Fits{Fits: fits}}}
}

// knowing makes a region take the changes of sets. It starts with the sets of the region's last
// session.
func knowing(last *fakeRegion) func(*fakeRegion) {
	return func(r *fakeRegion) {
		r.hello.Known = &nusav1.KnownSets{}
		r.hello.Servers[0].Address = r.hello.GetMasterAddress()
		r.hello.Definition.Location = &nusav1.Location{Latitude: 1.25, Longitude: 103.5, Name: "Singapore"}
		if last == nil {
			return
		}
		r.peerList, r.asks, r.origins = last.peerList, last.asks, last.origins
		r.hello.Term = last.hello.GetTerm() + 1
		r.hello.Known = &nusav1.KnownSets{
			Peers: sets.HashPeers(last.peerList), Asks: sets.HashAsks(last.asks), Origins: sets.HashOrigins(last.origins),
		}
	}
}

// virtual starts a server in virtual time.
func (f *federation) virtual(t *testing.T, name string) *testServer {
	start := time.Now()
	return f.start(t, name, func(c *Config) {
		c.Clock = func() time.Duration { return time.Since(start) }
		c.ReportInterval, c.CheckpointInterval, c.ElectionTTL = 0, 0, 0
	})
}

func sum(of []int) (out int) {
	for _, n := range of {
		out += n
	}
	return out
}

// sent returns how many messages of a kind a region received, and their bytes.
func (r *fakeRegion) sent(kind string) (messages, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sizes[kind]), sum(r.sizes[kind])
}

// TestStormOfHellos: when all regions connect at once, each gets the other regions in few messages
// with few bytes. When they connect again, each gets nothing new, also from another active server.
func TestStormOfHellos(t *testing.T) {
	const regions, perPeer, perPacked = 100, 70, 60 // in bytes: a whole peer takes at least perPeer, and a packed one at most perPacked
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		s := f.virtual(t, "g1")
		waitActive(t, s)
		join := func(s *testServer, last []*fakeRegion) (all []*fakeRegion) {
			for i := range regions {
				if last != nil {
					last[i].leave()
				}
			}
			synctest.Wait()
			for i := range regions {
				change := knowing(nil)
				if last != nil {
					change = knowing(last[i])
				}
				all = append(all, s.join(helloOf(fmt.Sprintf("region-%02d", i), 1), change))
			}
			time.Sleep(12 * time.Second)
			synctest.Wait()
			return all
		}
		check := func(when string, all []*fakeRegion, mostMessages, mostBytes int) {
			t.Helper()
			for _, r := range all {
				name := r.hello.GetDefinition().GetName()
				n, bytes := r.sent("PeerChanges")
				if n > mostMessages || bytes > mostBytes {
					t.Fatalf("%s: %s got its peers in %d messages of %d bytes, want at most %d of %d: %v", when, name, n, bytes, mostMessages, mostBytes, r.sizes)
				}
				if len(r.peerList) != regions-1 || len(r.peerList[0].GetProbeAddresses()) != 1 || r.peerList[0].GetLocation().GetName() != "Singapore" {
					t.Fatalf("%s: %s has %d peers, the first is %v", when, name, len(r.peerList), r.peerList[:min(1, len(r.peerList))])
				}
				if whole, _ := r.sent("Peers"); whole > 0 {
					t.Fatalf("%s: %s got the whole list", when, name)
				}
			}
		}
		all := join(s, nil)
		check("first", all, 4, regions*perPacked)
		all = join(s, all)
		check("again", all, 1, 16)
		for _, kind := range []string{"AskChanges", "Origins"} {
			if n, bytes := all[0].sent(kind); n > 0 {
				t.Errorf("another session got %d messages of %d bytes of kind %s", n, bytes, kind)
			}
		}
		s.stop()
		successor := f.virtual(t, "g2")
		waitActive(t, successor)
		all = join(successor, all)
		check("at another server", all, 1, 16)
		old := successor.joined("old")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		// A region gets at most one message for the list at its hello, one for its own definition
		// and one for its first coordinate.
		if n, bytes := old.sent("Peers"); n > 3 || bytes < regions*perPeer || len(old.peers.GetRegions()) != regions {
			t.Errorf("a region of an earlier version got its peers in %d messages of %d bytes", n, bytes)
		}
	})
}

// TestNewAskIsSentAlone: a new ask is sent alone. The region reports the fit of the ask before its next full report.
func TestNewAskIsSentAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFederation().virtual(t, "g1")
		waitActive(t, s)
		alpha := s.joined("alpha", knowing(nil), func(r *fakeRegion) { r.fits = 1 })
		synctest.Wait()
		for i := range 3 {
			name := fmt.Sprint("job-", i)
			reports := alpha.sequence
			spec := testJob(name, 5)
			spec.Groups["web"].Tasks["server"].Resources.CpuMilli = int64(200 + i) // no job fits into the bins of the report
			s.submit(spec)
			time.Sleep(time.Second)
			synctest.Wait()
			alpha.mu.Lock()
			asks, sizes, later := len(alpha.asks), alpha.sizes["AskChanges"], alpha.sequence
			alpha.mu.Unlock()
			if asks != i+1 || len(sizes) != i+2 || sizes[i+1] > 100 || later != reports {
				t.Errorf("after job %d: %d asks in messages of %v bytes, %d reports", i, asks, sizes, later-reports)
			}
		}
	})
}

// rowChanges returns a region's row of equal round trips.
func rowChanges(from string, to []string, rtt time.Duration, sequence uint64) *nusav1.RegionMessage {
	var edges []topology.Edge
	for _, name := range to {
		if name != from {
			edges = append(edges, topology.Edge{To: name, State: topology.OK, Source: topology.Measured, P50: rtt, P90: rtt, P99: rtt, Min: rtt, Samples: 10, Method: "udp"})
		}
	}
	return &nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Row{Row: &nusav1.RowChanges{
		Full: sequence == 1, Edges: sets.PackRow(edges), Position: &nusav1.Position{Epoch: from, Sequence: sequence},
	}}}
}

// TestIdleRegionsGetLittle: while nothing changes, a region gets little more than leases, although
// the ages of all round trips are kept up to date. The next session resumes the sets.
func TestIdleRegionsGetLittle(t *testing.T) {
	const regions, minutes, mostPer5s = 30, 10, 250 // in bytes, without the bytes of gRPC itself
	synctest.Test(t, func(t *testing.T) {
		s := newFederation().virtual(t, "g1")
		waitActive(t, s)
		var names []string
		for i := range regions {
			names = append(names, fmt.Sprintf("region-%02d", i))
		}
		all := map[string]*fakeRegion{}
		for _, name := range names {
			all[name] = s.joined(name, knowing(nil))
		}
		for _, name := range names {
			all[name].send(rowChanges(name, names, 40*time.Millisecond, 1))
		}
		lease := uint64(0)
		live := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(2 * time.Second) {
				lease++
				for _, r := range all {
					r.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Lease{Lease: &nusav1.LeaseRequest{Id: lease, Granted: lease - 1}}})
					if lease%15 == 0 {
						r.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Row{Row: &nusav1.RowChanges{
							Confirmed: durationpb.New(5 * time.Second), Position: &nusav1.Position{Epoch: r.hello.GetDefinition().GetName(), Sequence: 2},
						}}})
					}
				}
			}
			synctest.Wait()
		}
		down := func(r *fakeRegion) (out int) {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, sizes := range r.sizes {
				out += sum(sizes)
			}
			return out
		}
		live(time.Minute)
		r := all["region-07"]
		before := down(r)
		live(minutes * time.Minute)
		if each := (down(r) - before) / (minutes * 12); each > mostPer5s {
			t.Errorf("an idle region gets %d bytes in 5 s, want at most %d: %v", each, mostPer5s, r.sizes)
		}
		for _, e := range [][2]string{{"region-03", "region-07"}, {"region-07", "region-29"}} {
			m, err := s.topology().Matrix(t.Context(), &nusav1.MatrixRequest{From: e[0]})
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(m.GetEdges(), func(x *nusav1.Edge) bool { return x.GetTo() == e[1] })
			if i < 0 || m.GetEdges()[i].GetState() != nusav1.EdgeState_EDGE_STATE_OK || m.GetEdges()[i].GetAge().AsDuration() > 40*time.Second {
				t.Errorf("%s to %s: %v", e[0], e[1], m.GetEdges()[max(0, i)])
			}
		}
		r.mu.Lock()
		column, matrix, sizes := r.columnAt, r.compact, r.sizes["MatrixChanges"]
		r.mu.Unlock()
		if len(matrix.GetRegions()) != regions || len(sizes) < 3 || slices.Max(sizes[1:]) > 100 {
			t.Errorf("a matrix of %d regions in messages of %v bytes", len(matrix.GetRegions()), sizes)
		}
		r.leave()
		again := s.joined("region-07", knowing(r), func(next *fakeRegion) {
			next.compact, next.hello.Known.Column, next.hello.Known.Matrix = matrix, column, matrix.GetPosition()
		})
		if at := again.welcome.GetRow(); at.GetEpoch() != "region-07" || at.GetSequence() != 2 {
			t.Errorf("the row is known up to %v", at)
		}
		all["region-07"] = again
		live(10 * time.Second)
		if _, bytes := again.sent("ColumnChanges"); bytes > 100 {
			t.Errorf("another session got %d bytes of its column", bytes)
		}
		live(6 * time.Minute)
		if n, bytes := again.sent("MatrixChanges"); n == 0 || bytes > 200 {
			t.Errorf("another session got its matrix in %d messages of %d bytes", n, bytes)
		}
		all["region-03"].send(rowChanges("region-03", []string{"region-07"}, 90*time.Millisecond, 3))
		live(10 * time.Second)
		if len(again.edges) != 1 || again.edges[0].From != "region-03" {
			t.Errorf("edges after a change: %v", again.edges)
		}
	})
}
