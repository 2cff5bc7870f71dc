package probe

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/topology"
)

// A probe that does not fit waits, and changes neither the budget nor the method and
// address of the peer's next probe. Probes resume in the order of their due times.
func TestWaitingProbesDoNotCount(t *testing.T) {
	w := newWorld(Limits{Budget: 1000})
	w.setPeers("a", "b", "c", "d")
	later := epoch.Add(time.Second)
	none := func(Probe) bool { return false }
	planned := w.plan.Upcoming()
	for range 3 {
		due, again := w.plan.PopDue(later, w.rnd.Float64, none)
		if len(due) != 0 || !again.IsZero() || w.plan.Waiting() != 4 {
			t.Fatalf("took %v, again %v, waiting %d", due, again, w.plan.Waiting())
		}
		if got := w.plan.Upcoming(); fmt.Sprint(got) != fmt.Sprint(planned) || w.plan.tokens != 100 {
			t.Fatalf("waiting: %v, budget left %v; before %v", got, w.plan.tokens, planned)
		}
		w.plan.Resume(4)
	}
	w.plan.PopDue(later, w.rnd.Float64, none)
	for i := range 3 {
		w.plan.Resume(1)
		due, _ := w.plan.PopDue(later, w.rnd.Float64, anyProbe)
		if len(due) != 1 || due[0] != planned[i] || w.plan.Waiting() != 3-i {
			t.Errorf("resumed %v with %d waiting, want %v", due, w.plan.Waiting(), planned[i])
		}
	}
}

// If only few connects may be in flight, peers that are probed by UDP are probed as if no
// other probe waited. The waiting peers take turns, also while peers are added and
// removed.
func TestWaitingPeersTakeTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(Limits{Budget: 200, Interval: time.Duration(rapid.IntRange(1, 8).Draw(t, "interval")) * time.Second})
		places := rapid.IntRange(1, 40).Draw(t, "places")
		w.answers = func(p Probe, _ time.Duration) (time.Duration, bool) {
			return time.Duration(w.rnd.IntN(900)) * time.Millisecond, p.Peer[0] == 'u'
		}
		w.fits = func(p Probe) bool {
			if p.Method == TCP && places == 0 {
				return false
			}
			if p.Method == TCP {
				places--
				w.events = append(w.events, event{w.now.Add(2 * time.Second), func() {
					places++
					w.plan.Resume(1)
				}})
			}
			return true
		}
		all, silent := places, rapid.IntRange(1, 80).Draw(t, "silent")
		var names []string
		for i := range silent {
			names = append(names, fmt.Sprint("silent", i))
		}
		for i := range rapid.IntRange(1, 20).Draw(t, "up") {
			names = append(names, fmt.Sprint("up", i))
		}
		w.setPeers(names...)
		longest := w.plan.Longest() + time.Second
		round := longest + 2*time.Second*time.Duration(1+silent/all)
		for i := range time.Duration(4) {
			w.run(2 * round * (i + 1))
			if rapid.Bool().Draw(t, "set peers again") {
				w.setPeers(names...)
			}
		}
		last := map[string]time.Time{}
		for _, name := range names {
			last[name] = epoch
			w.took = append(w.took, taken{name, w.now}) // the end
		}
		for _, p := range w.took {
			most := longest
			if p.name[0] == 's' {
				most = round
			}
			if gap := p.at.Sub(last[p.name]); gap > most {
				t.Fatalf("%s waited %v, at most %v is fair with %d places for %d", p.name, gap, most, all, silent)
			}
			last[p.name] = p.at
		}
	})
}

// TestConnectsToUnreachableRegions: more regions are unreachable than connects
// may be in flight. Reachable regions are measured as usual, each of the others
// is tried in turn, and the bound holds.
func TestConnectsToUnreachableRegions(t *testing.T) {
	onStage(t, func(s *stage) {
		const void = 600
		var mu sync.Mutex
		under, most := 0, 0
		last, longest := map[string]time.Time{}, time.Duration(0)
		netA := s.net.Net(hostA)
		netA.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			mu.Lock()
			under++
			most = max(most, under)
			if before, ok := last[addr]; ok {
				longest = max(longest, time.Since(before))
			}
			last[addr] = time.Now()
			mu.Unlock()
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			under--
			return nil, ctx.Err()
		}
		p := s.prober(hostA, Config{Net: netA, Seed: 1, Limits: Limits{Budget: 1000, Interval: 3 * time.Second}})
		peers := []Peer{{Name: "b", Addresses: []string{s.responder(hostB, ResponderConfig{})}}}
		for i := range void {
			peers = append(peers, Peer{Name: region(i), Addresses: []string{fmt.Sprintf("10.1.%d.%d:7613", i/250, i%250)}})
		}
		p.SetPeers(peers)
		wait(40 * time.Second)
		for _, e := range p.Edges() {
			switch {
			case e.To == "b" && (e.State != topology.OK || e.Samples < 14 || e.Loss > 0):
				t.Errorf("reachable: %s", summary(e))
			case e.To != "b" && e.State != topology.Unreachable:
				t.Errorf("unreachable: %s", summary(e))
			}
		}
		mu.Lock()
		defer mu.Unlock()
		// A round over all peers takes 600 / 256 × 2 s = 4.7 s. Every fourth probe uses
		// UDP and takes another turn.
		if len(last) != void || most != maxBlocking || longest > 12*time.Second {
			t.Errorf("%d regions tried, %d at once, the longest wait %v", len(last), most, longest)
		}
	})
}
