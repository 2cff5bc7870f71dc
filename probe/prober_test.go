package probe

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/sim/simnet"
	"github.com/nusa-scheduler/nusa/topology"
)

// IP addresses of the hosts of the simulated network.
const hostA, hostB, hostC = "10.0.0.1", "10.0.0.2", "10.0.0.3"

// stage runs probers and responders in a synctest bubble until the test ends.
type stage struct {
	t    *testing.T
	net  *simnet.Network
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// onStage runs a test in virtual time. The one-way delay is 15 ms from a, 25 ms to a,
// and 5 ms otherwise.
func onStage(t *testing.T, play func(s *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &stage{t: t}
		s.net = simnet.New(simnet.Options{Latency: func(from, to string) time.Duration {
			switch hostA {
			case from:
				return 15 * msec
			case to:
				return 25 * msec
			}
			return 5 * msec
		}})
		s.ctx, s.stop = context.WithCancel(t.Context())
		play(s)
		s.stop()
		s.wg.Wait()
	})
}

func (s *stage) run(what string, run func(context.Context) error) {
	s.wg.Go(func() {
		if err := run(s.ctx); err != nil {
			s.t.Errorf("%s: %v", what, err)
		}
	})
}

// responder runs a responder on a host and returns its address.
func (s *stage) responder(host string, cfg ResponderConfig) string {
	s.t.Helper()
	cfg.Net, cfg.Addr = s.net.Net(host), host+":0"
	if cfg.Region == "" {
		cfg.Region = map[string]string{hostA: "a", hostB: "b", hostC: "c"}[host]
	}
	r, err := Listen(s.ctx, cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.run("responder of "+host, r.Run)
	return r.Addr()
}

func (s *stage) prober(host string, cfg Config) *Prober {
	s.t.Helper()
	cfg.Bind = host + ":0"
	if cfg.Net.Dial == nil {
		cfg.Net = s.net.Net(host)
	}
	if cfg.Region == "" {
		cfg.Region = "a"
	}
	p, err := New(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.run("prober of "+host, p.Run)
	return p
}

func wait(d time.Duration) {
	time.Sleep(d) // virtual
	synctest.Wait()
}

func summary(e topology.Edge) string {
	return fmt.Sprintf("%s %s %s p50 %v p99 %v jitter %v loss %.2f of %d", e.To, e.State, e.Method, e.P50, e.P99, e.Jitter, e.Loss, e.Samples)
}

func expect(t *testing.T, p *Prober, want ...string) {
	t.Helper()
	var got []string
	for _, e := range p.Edges() {
		got = append(got, summary(e))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("edges:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestNewFederationHasAMatrixAtOnce(t *testing.T) {
	onStage(t, func(s *stage) {
		b, c := s.responder(hostB, ResponderConfig{}), s.responder(hostC, ResponderConfig{})
		fromA := s.prober(hostA, Config{Region: "a", Seed: 1})
		fromB := s.prober(hostB, Config{Region: "b", Seed: 2})
		fromA.SetPeers([]Peer{{Name: "c", Addresses: []string{c}}, {Name: "b", Addresses: []string{b}},
			{Name: "a", Addresses: []string{b}}, {Name: "homeless"}})
		fromB.SetPeers([]Peer{{Name: "c", Addresses: []string{c}}})
		expect(t, fromA, "b unknown  p50 0s p99 0s jitter 0s loss 0.00 of 0", "c unknown  p50 0s p99 0s jitter 0s loss 0.00 of 0")
		wait(3 * time.Second)
		expect(t, fromA, "b ok udp p50 40ms p99 40ms jitter 0s loss 0.00 of 5", "c ok udp p50 40ms p99 40ms jitter 0s loss 0.00 of 5")
		expect(t, fromB, "c ok udp p50 10ms p99 10ms jitter 0s loss 0.00 of 5")
		wait(2 * time.Minute)
		if e := fromA.Edges()[0]; e.Samples < 8 || e.Samples > 10 || e.Age > 33*time.Second {
			t.Errorf("after two minutes: %+v, want about nine samples", e)
		}
		fromA.SetPeers([]Peer{{Name: "c", Addresses: []string{c}}})
		wait(time.Second)
		if edges := fromA.Edges(); len(edges) != 1 || edges[0].To != "c" || edges[0].Samples < 8 {
			t.Errorf("after b was removed: %+v, want c with its samples", edges)
		}
	})
}

func TestCutAndHealAreDetected(t *testing.T) {
	onStage(t, func(s *stage) {
		b := s.responder(hostB, ResponderConfig{})
		start := time.Now()
		var mu sync.Mutex
		var changes []string
		p := s.prober(hostA, Config{Seed: 1, Changed: func(e topology.Edge) {
			mu.Lock()
			defer mu.Unlock()
			changes = append(changes, fmt.Sprintf("%s %v", e.State, e.P50))
			t.Logf("%v: %s", time.Since(start), summary(e))
		}})
		p.SetPeers([]Peer{{Name: "b", Addresses: []string{b}}})
		wait(5 * time.Second)
		s.net.Cut(hostA, hostB)
		wait(45 * time.Second)
		if e := p.Edges()[0]; e.State != topology.Unreachable || e.P50 != 40*msec {
			t.Errorf("45 s after the cut: %s", summary(e))
		}
		s.net.Heal(hostA, hostB)
		wait(15 * time.Second)
		if e := p.Edges()[0]; e.State != topology.OK || e.Samples < 2 {
			t.Errorf("15 s after the cut was healed: %s", summary(e))
		}
		mu.Lock()
		defer mu.Unlock()
		if got := strings.Join(changes, ", "); got != "ok 40ms, unreachable 40ms, ok 40ms" {
			t.Errorf("changes: %s", got)
		}
	})
}

func TestDeadServerIsReplacedByTheNextAddress(t *testing.T) {
	onStage(t, func(s *stage) {
		b, c := s.responder(hostB, ResponderConfig{}), s.responder(hostC, ResponderConfig{Region: "b"})
		p := s.prober(hostA, Config{Seed: 1})
		p.SetPeers([]Peer{{Name: "b", Addresses: []string{b, c}}})
		wait(5 * time.Second)
		s.net.Cut(hostA, hostB)
		wait(2 * time.Minute)
		if e := p.Edges()[0]; e.State != topology.OK || e.Age > 33*time.Second || e.Loss == 0 {
			t.Errorf("with one server of two cut off: %s, want ok with some loss", summary(e))
		}
	})
}

func TestTCPTakesOverWhereUDPIsSilent(t *testing.T) {
	onStage(t, func(s *stage) {
		l, err := s.net.Net(hostB).Listen(s.ctx, hostB+":7613")
		if err != nil {
			t.Fatal(err)
		}
		s.run("listener", func(ctx context.Context) error {
			for {
				c, err := l.Accept()
				if err != nil {
					return nil
				}
				c.Close()
			}
		})
		defer l.Close()
		p := s.prober(hostA, Config{Seed: 1})
		p.SetPeers([]Peer{{Name: "b", Addresses: []string{hostB + ":7613"}}})
		wait(3 * time.Second)
		expect(t, p, "b ok connect p50 40ms p99 40ms jitter 0s loss 0.00 of 1")
		wait(3 * time.Minute)
		if e := p.Edges()[0]; e.State != topology.OK || e.Method != Connect || e.P50 != 40*msec || e.Loss != 0 {
			t.Errorf("after three minutes: %s", summary(e))
		}
	})
}

func TestBothEndsNeedACommonKey(t *testing.T) {
	k, x := []byte("key of the federation"), []byte("another key")
	keys := func(all ...[]byte) [][]byte { return all }
	for _, tc := range []struct {
		name           string
		prober, server [][]byte
		method         string // "" = no response is accepted
	}{
		{"same key", keys(k), keys(k), UDP},
		{"no key", nil, nil, UDP},
		{"the responder has the new key already", keys(x), keys(k, x), UDP},
		{"the prober has the new key already", keys(k, x), keys(x, k), UDP},
		{"another key", keys(k), keys(x), ""},
		{"no key at the server", keys(k), nil, ""},
		// A prober without keys accepts a connect, with its own method.
		{"no key for a server with one", nil, keys(k), Connect},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onStage(t, func(s *stage) {
				b := s.responder(hostB, ResponderConfig{Keys: tc.server})
				p := s.prober(hostA, Config{Keys: tc.prober})
				p.SetPeers([]Peer{{Name: "b", Addresses: []string{b}}})
				wait(4 * time.Second)
				if e := p.Edges()[0]; e.Method != tc.method && tc.method != "" || (e.State == topology.OK) != (tc.method != "") {
					t.Errorf("%s, want %s", summary(e), tc.method)
				}
			})
		})
	}
}

// TestTCPIsProven: if UDP is blocked, a TCP connect counts. With keys it counts only if
// the other end has one of the keys and belongs to the region. A prober that sends no
// request, as earlier versions do, still finds the port open.
func TestTCPIsProven(t *testing.T) {
	k, x := []byte("key of the federation"), []byte("another key")
	keys := func(all ...[]byte) [][]byte { return all }
	for _, tc := range []struct {
		name           string
		region         string
		prober, server [][]byte
		method         string // "" = no response is accepted
	}{
		{"same key", "b", keys(k), keys(k), TCP},
		{"a key is replaced", "b", keys(x), keys(k, x), TCP},
		{"no keys", "b", nil, nil, TCP},
		{"another key", "b", keys(k), keys(x), ""},
		{"another region", "c", keys(k), keys(k), ""},
		{"another region, no keys", "c", nil, nil, Connect},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onStage(t, func(s *stage) {
				b := s.responder(hostB, ResponderConfig{Region: tc.region, Keys: tc.server})
				host := s.net.Net(hostA)
				blocked := network.Net{Dial: host.Dial, Listen: host.Listen, ListenPacket: func(ctx context.Context, addr string) (net.PacketConn, error) {
					c, err := host.ListenPacket(ctx, addr)
					return mute{c}, err
				}}
				p := s.prober(hostA, Config{Net: blocked, Keys: tc.prober})
				p.SetPeers([]Peer{{Name: "b", Addresses: []string{b}}})
				wait(5 * time.Minute)
				e := p.Edges()[0]
				if tc.method == "" && e.State == topology.Unreachable {
					return
				}
				if e.State != topology.OK || e.Method != tc.method || e.P50 != 40*msec || e.Loss != 0 {
					t.Errorf("%s, want %q", summary(e), tc.method)
				}
			})
		})
	}
}

// mute is a connection that drops every packet.
type mute struct{ net.PacketConn }

func (m mute) WriteTo(b []byte, _ net.Addr) (int, error) { return len(b), nil }

// answer returns the simplest response to a request.
func (p packet) answer() packet {
	p.kind, p.arrivals = kindAnswer, arrivals{span: 1, bits: 1}
	return p
}

// fakePeer answers each request with the packets that reply returns.
func (s *stage) fakePeer(host string, reply func(n int, p packet) [][]byte) string {
	s.t.Helper()
	c, err := s.net.Net(host).ListenPacket(s.ctx, host+":7613")
	if err != nil {
		s.t.Fatal(err)
	}
	s.run("fake peer", func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() { c.Close() })
		defer stop()
		buf := make([]byte, 100)
		for n := 0; ; n++ {
			size, from, err := c.ReadFrom(buf)
			if err != nil {
				return nil
			}
			p, _, err := decode(buf[:size], nil, "b")
			if err != nil {
				return err
			}
			for _, b := range reply(n, p) {
				if _, err := c.WriteTo(b, from); err != nil {
					return err
				}
			}
		}
	})
	return host + ":7613"
}

// lateReply is the reply of a responder that was late itself, and says so.
func lateReply(p packet) [][]byte {
	p = p.answer()
	p.responderDelay = 60 * msec
	time.Sleep(p.responderDelay)
	return [][]byte{p.encode(nil, "b")}
}

func TestBusyResponderDoesNotInflateTheRoundTrip(t *testing.T) {
	onStage(t, func(s *stage) {
		b := s.fakePeer(hostB, func(n int, p packet) [][]byte {
			if n%2 == 1 {
				return lateReply(p)
			}
			return [][]byte{p.answer().encode(nil, "b")}
		})
		p := s.prober(hostA, Config{Seed: 1})
		p.SetPeers([]Peer{{Name: "b", Addresses: []string{b}}})
		wait(10 * time.Second)
		expect(t, p, "b ok udp p50 40ms p99 40ms jitter 0s loss 0.00 of 5") // the first probes were repeated
	})
}

// TestProbesOfBusyResponderAreBounded: the samples of a responder that is always late are set aside. The
// first probes are repeated only quickRepeats times.
func TestProbesOfBusyResponderAreBounded(t *testing.T) {
	onStage(t, func(s *stage) {
		var requests atomic.Int64
		b := s.fakePeer(hostB, func(_ int, p packet) [][]byte {
			requests.Add(1)
			return lateReply(p)
		})
		p := s.prober(hostA, Config{Seed: 1})
		p.SetPeers([]Peer{{Name: "b", Addresses: []string{b}}})
		wait(25 * time.Second)
		if n := requests.Load(); n != quickProbes+quickRepeats {
			t.Errorf("%d probes in 25 s, want %d", n, quickProbes+quickRepeats)
		}
		if wait(60 * time.Second); requests.Load() > quickProbes+quickRepeats+3 {
			t.Errorf("%d probes in 85 s: the interval is not that of steady state", requests.Load())
		}
	})
}

func TestBusyProberSetsItsSamplesAside(t *testing.T) {
	onStage(t, func(s *stage) {
		p, err := New(Config{Region: "a", Net: s.net.Net(hostA)})
		if err != nil {
			t.Fatal(err)
		}
		p.SetPeers([]Peer{{Name: "b", Addresses: []string{hostB + ":7613"}}})
		sample := func(rtt, late time.Duration) {
			o := p.begin("b", hostB+":7613", UDP)
			wait(rtt)
			now := time.Now()
			p.mu.Lock()
			p.wakeAt = now.Add(-late)
			p.mu.Unlock()
			p.noteDelay(now)
			p.finish(o, Sample{RTT: now.Sub(o.sent)}, now)
		}
		sample(40*msec, 0)
		sample(45*msec, msec)
		sample(140*msec, 80*msec)
		if e := p.Edges()[0]; e.Samples != 2 || e.P99 != 45*msec || e.SetAside != 1 {
			t.Errorf("%s, %d set aside, want the two good samples and one", summary(e), e.SetAside)
		}
		p.mu.Lock()
		p.wakeAt = time.Now().Add(-30 * msec)
		p.mu.Unlock()
		if late := p.lateness(time.Now()); late != 30*msec {
			t.Errorf("30 ms after the time to wake the lateness is %v", late)
		}
	})
}

func TestForgedResponsesAreIgnored(t *testing.T) {
	onStage(t, func(s *stage) {
		b := s.fakePeer(hostB, func(_ int, p packet) [][]byte {
			session, sequence, prober := p.answer(), p.answer(), p.answer()
			session.session++
			sequence.sequence += 1000
			prober.from++
			return [][]byte{p.encode(nil, "b"), session.encode(nil, "b"), sequence.encode(nil, "b"), prober.encode(nil, "b"),
				p.answer().encode(nil, "c"), p.answer().encode([]byte("a key"), "b"), []byte("noise"), nil}
		})
		p := s.prober(hostA, Config{Seed: 1})
		p.SetPeers([]Peer{{Name: "b", Addresses: []string{b}}})
		wait(20 * time.Second)
		if e := p.Edges()[0]; e.State != topology.Unreachable || e.Samples != 0 {
			t.Errorf("%s, want unreachable", summary(e))
		}
	})
}

func TestRepeatedResponseCountsOnce(t *testing.T) {
	onStage(t, func(s *stage) {
		b := s.fakePeer(hostB, func(_ int, p packet) [][]byte {
			b := p.answer().encode(nil, "b")
			return [][]byte{b, b}
		})
		p := s.prober(hostA, Config{Seed: 1})
		p.SetPeers([]Peer{{Name: "b", Addresses: []string{b}}})
		wait(4 * time.Second)
		expect(t, p, "b ok udp p50 40ms p99 40ms jitter 0s loss 0.00 of 5")
	})
}

func TestProbesUpdateTheCoordinate(t *testing.T) {
	onStage(t, func(s *stage) {
		b := s.responder(hostB, ResponderConfig{})
		p := s.prober(hostA, Config{Region: "a"})
		before := p.Coordinate()
		other := topology.NewTracker("b").Coordinate()
		other.Error = 0.3
		p.SetPeers([]Peer{{Name: "b", Addresses: []string{b}, Coordinate: &other}})
		wait(30 * time.Minute)
		now := p.Coordinate()
		v := topology.NewView([]topology.Region{{Name: "a", Coordinate: &now}, {Name: "b", Coordinate: &other}}, nil)
		e := v.Edge("a", "b")
		if e.Source != topology.Predicted || (e.P50-40*msec).Abs() > 10*msec || before.Error <= now.Error {
			t.Errorf("after half an hour the prediction is %+v, want about 40ms", e)
		}
	})
}

func TestNamesAreResolved(t *testing.T) {
	onStage(t, func(s *stage) {
		b := s.responder(hostB, ResponderConfig{})
		p := s.prober(hostA, Config{Resolve: func(_ context.Context, addr string) (net.Addr, error) {
			if addr != "b.example:7613" {
				return nil, fmt.Errorf("no such host %s", addr)
			}
			return resolve(s.ctx, b)
		}})
		p.SetPeers([]Peer{{Name: "b", Addresses: []string{"b.example:7613"}}, {Name: "c", Addresses: []string{"typo.example:7613"}}})
		wait(10 * time.Second)
		edges := p.Edges()
		if edges[0].State != topology.OK || edges[1].State != topology.Unreachable {
			t.Errorf("edges %s and %s, want ok and unreachable", summary(edges[0]), summary(edges[1]))
		}
	})
}

func TestOnlyLargeChangesAreNoticeable(t *testing.T) {
	for _, tc := range []struct {
		was, is time.Duration
		want    bool
	}{
		{70 * msec, 70 * msec, false},
		{70 * msec, 76 * msec, false}, // under a tenth
		{70 * msec, 78 * msec, true},
		{70 * msec, 62 * msec, true},
		{2 * msec, 2900 * time.Microsecond, false}, // under 1 ms
		{2 * msec, 3100 * time.Microsecond, true},
		{0, 2 * msec, true},
	} {
		was, is := topology.Edge{State: topology.OK, P50: tc.was}, topology.Edge{State: topology.OK, P50: tc.is}
		if got := noticeable(was, is); got != tc.want {
			t.Errorf("%v to %v: %v", tc.was, tc.is, got)
		}
		is.State = topology.Stale
		if !noticeable(was, is) {
			t.Errorf("%v to %v and stale: not noticeable", tc.was, tc.is)
		}
	}
}

func TestNewRefusesMissingConfiguration(t *testing.T) {
	for name, cfg := range map[string]Config{"no region": {Net: network.Host()}, "no network": {Region: "a"}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestRunFailsWithoutItsSocket(t *testing.T) {
	p, err := New(Config{Region: "a", Net: network.Host(), Bind: "192.0.2.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "192.0.2.1:1") {
		t.Errorf("Run on an address of another host: %v", err)
	}
}
