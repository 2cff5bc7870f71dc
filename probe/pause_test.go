package probe

import (
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/topology"
)

var quiet = slog.New(slog.DiscardHandler)

func testProber(t testing.TB) *Prober {
	t.Helper()
	p, err := New(Config{Region: "a", Net: network.Host()})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// checkEdge checks invariants of every edge.
func checkEdge(t interface {
	Helper()
	Fatalf(string, ...any)
}, e topology.Edge) {
	t.Helper()
	ordered := 0 <= e.Min && e.Min <= e.P50 && e.P50 <= e.P90 && e.P90 <= e.P99 && e.Jitter >= 0 && e.Age >= 0
	counted := 0 <= e.Loss && e.Loss <= 1 && 0 <= e.LossOut && 0 <= e.LossBack && e.LossOut+e.LossBack <= e.Loss+1e-9 && e.Samples >= 0 && e.SetAside >= 0
	if !ordered || !counted || e.State > topology.Unreachable {
		t.Fatalf("an impossible edge: %+v", e)
	}
}

// A prober that did not run for a while reads the waiting responses before it considers a
// probe lost. If it knows how long the responses waited, it also knows their round trips.
// Losses in that time do not count.
func TestPausedProberLosesNothing(t *testing.T) {
	for _, stamped := range []bool{false, true} {
		p := testProber(t)
		p.stamped = stamped
		p.SetPeers([]Peer{{Name: "b", Addresses: []string{"10.0.0.2:7613"}}, {Name: "c", Addresses: []string{"10.0.0.3:7613"}}})
		p.step(time.Now())
		answered, silent := p.begin("b", "10.0.0.2:7613", UDP), p.begin("c", "10.0.0.3:7613", UDP)
		p.sleep(time.Time{})
		woken := answered.sent.Add(time.Minute)
		p.noteDelay(woken)
		p.step(woken)
		if len(p.inFlight) != 2 {
			t.Fatalf("%d probes are in flight, want both: their responses were not read yet", len(p.inFlight))
		}
		waited := time.Duration(0)
		if stamped {
			waited = time.Minute - 50*msec
		}
		answer := packet{from: p.id, session: answered.session, sequence: answered.sequence}.answer()
		if err := p.receiveAnswer(answer.encode(nil, "b"), woken, waited); err != nil {
			t.Error(err)
		}
		p.step(woken.Add(answerGrace))
		if len(p.inFlight) != 0 || silent.delay < time.Second {
			t.Errorf("%d probes are in flight, the prober was late by %v", len(p.inFlight), silent.delay)
		}
		for i, e := range p.Edges() {
			if e.Loss != 0 {
				t.Errorf("%s: the prober paused, not the peer", summary(e))
			}
			if known := stamped && i == 0; known && e.P50 != 50*msec || !known && e.State != topology.Unknown {
				t.Errorf("stamped %v: %s", stamped, summary(e))
			}
		}
	}
}

// Peers come, go, and change their address while probes are in flight.
func TestPeersComeGoAndMove(t *testing.T) {
	onStage(t, func(s *stage) {
		b, c := s.responder(hostB, ResponderConfig{}), s.responder(hostC, ResponderConfig{Region: "b"})
		p := s.prober(hostA, Config{Seed: 1})
		at := func(addr string) []Peer { return []Peer{{Name: "b", Addresses: []string{addr}}} }
		p.SetPeers(at(b))
		wait(20 * msec) // the first probe is in flight
		p.SetPeers(nil)
		wait(10 * time.Second)
		if edges := p.Edges(); len(edges) != 0 {
			t.Errorf("edges to removed peers: %v", edges)
		}
		p.SetPeers(at(b))
		wait(10 * time.Second)
		if e := p.Edges()[0]; e.State != topology.OK || e.Loss != 0 || e.Samples != 5 {
			t.Errorf("back: %s", summary(e))
		}
		s.net.Cut(hostA, hostB)
		p.SetPeers(at(c))
		wait(WindowAge)
		if e := p.Edges()[0]; e.State != topology.OK || e.Loss != 0 || e.Samples < 15 {
			t.Errorf("moved: %s", summary(e))
		}
		// The address now belongs to another region, which does not respond for
		// b over UDP. Any host accepts a connect, and the edge's method says
		// so.
		s.net.Heal(hostA, hostB)
		d := s.responder("10.0.0.4", ResponderConfig{Region: "d"})
		p.SetPeers(at(d))
		wait(2 * time.Minute)
		if e := p.Edges()[0]; e.Method != Connect {
			t.Errorf("answered by another region: %s", summary(e))
		}
		rnd := rand.New(rand.NewPCG(5, 5))
		for range 200 {
			var peers []Peer
			for i := range rnd.IntN(5) {
				peers = append(peers, Peer{Name: []string{"b", "c", "d", "e", "f"}[i], Addresses: []string{[]string{b, c, d, "10.0.0.9:1", "no address"}[rnd.IntN(5)]}})
			}
			p.SetPeers(peers)
			p.Prefer(map[string]float64{"b": 1, "x": 1})
			wait(time.Duration(rnd.IntN(4000)) * msec)
			for _, e := range p.Edges() {
				checkEdge(t, e)
			}
		}
		p.SetPeers(at(c))
		wait(WindowAge)
		if e := p.Edges()[0]; e.State != topology.OK || e.Method != UDP || e.P50 != 40*msec {
			t.Errorf("at last: %s", summary(e))
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.inFlight) > 1 || len(p.peers) != 1 || len(p.plan.queue) != 1 || len(p.dirty) > 1 {
			t.Errorf("not released: %d probes, %d peers, %d plans, %d to report", len(p.inFlight), len(p.peers), len(p.plan.queue), len(p.dirty))
		}
	})
}

// Among many peers, important ones are probed more often: those with demand, with a
// recent change, or with an uncertain coordinate.
func TestPreferredPeersAreProbedMoreOften(t *testing.T) {
	p, err := New(Config{Region: "a", Net: network.Host(), Limits: Limits{Budget: 1}})
	if err != nil {
		t.Fatal(err)
	}
	var peers []Peer
	for i := range 100 {
		peers = append(peers, Peer{Name: region(i), Addresses: []string{"10.0.0.1:1"}, Coordinate: &topology.Coordinate{}})
	}
	peers[3].Coordinate.Error = 1.5
	p.SetPeers(peers)
	p.Prefer(map[string]float64{region(1): 1, "unknown": 1})
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.peers[region(2)].moved = now
	p.updateWeights(now)
	usual := p.plan.Every(region(50))
	for i := range 4 {
		// The three share the other half of the budget, so each is probed as
		// often as any peer may be.
		if every := p.plan.Every(region(i)); (i > 0) != (every < usual/2) || every < defaultInterval {
			t.Errorf("peer %d every %v, an ordinary one every %v", i, every, usual)
		}
	}
	if p.updateWeights(now.Add(WindowAge)); p.plan.Every(region(2)) != p.plan.Every(region(50)) {
		t.Error("a peer that changed long ago is still preferred")
	}
}
