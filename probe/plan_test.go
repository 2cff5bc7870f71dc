package probe

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/golden"
	"pgregory.net/rapid"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world responds to probes or loses them, and records the probes of the plan.
type world struct {
	plan *Plan
	rnd  *rand.Rand
	now  time.Time
	// answers returns the time after which the response to a probe arrives. It returns
	// false if the probe is lost, which is noticed after 2 s.
	answers func(p Probe, at time.Duration) (time.Duration, bool)
	fits    func(Probe) bool
	events  []event
	log     strings.Builder
	sent    []Probe
	took    []taken
}

// taken is the time at which a probe was sent to a peer.
type taken struct {
	name string
	at   time.Time
}

type event struct {
	at time.Time
	do func()
}

func anyProbe(Probe) bool { return true }

func newWorld(limits Limits) *world {
	return &world{plan: NewPlan(limits), rnd: rand.New(rand.NewPCG(7, 7)), now: epoch, fits: anyProbe,
		answers: func(Probe, time.Duration) (time.Duration, bool) { return 80 * time.Millisecond, true }}
}

func (w *world) say(format string, args ...any) {
	fmt.Fprintf(&w.log, "%9.3fs  %s\n", w.now.Sub(epoch).Seconds(), fmt.Sprintf(format, args...))
}

func (w *world) setPeers(names ...string) {
	w.say("peers: %s", strings.Join(names, " "))
	w.plan.SetPeers(names, w.now, w.rnd.Float64)
}

// run runs the plan until the given time.
func (w *world) run(until time.Duration) {
	for {
		due, again := w.plan.PopDue(w.now, w.rnd.Float64, w.fits)
		for _, p := range due {
			w.sent = append(w.sent, p)
			w.took = append(w.took, taken{p.Peer, w.now})
			w.send(p)
		}
		next := epoch.Add(until)
		if !again.IsZero() && again.Before(next) {
			next = again
		}
		which := -1
		for i, e := range w.events {
			if !e.at.After(next) && (which < 0 || e.at.Before(w.events[which].at)) {
				which = i
			}
		}
		if which >= 0 {
			e := w.events[which]
			w.events = append(w.events[:which], w.events[which+1:]...)
			w.now = e.at
			e.do()
			continue
		}
		w.now = next
		if !w.now.Before(epoch.Add(until)) {
			return
		}
	}
}

func (w *world) send(p Probe) {
	rtt, ok := w.answers(p, w.now.Sub(epoch))
	if ok {
		w.say("%v: answered", p)
		w.events = append(w.events, event{w.now.Add(rtt), func() {
			w.plan.Answered(p.Peer, p.Method, w.now, w.rnd.Float64)
		}})
		return
	}
	w.say("%v: lost", p)
	w.events = append(w.events, event{w.now.Add(2 * time.Second), func() {
		w.plan.Lost(p.Peer, p.Method, w.now, w.rnd.Float64)
	}})
}

func TestPlanStories(t *testing.T) {
	for _, story := range []struct {
		name string
		play func(w *world)
	}{
		{"fresh", func(w *world) {
			w.setPeers("japaneast", "westeurope")
			w.run(10 * time.Second)
			w.setPeers("eastus", "japaneast", "westeurope")
			w.run(70 * time.Second)
		}},
		{"one_lost", func(w *world) {
			w.setPeers("japaneast")
			w.answers = func(_ Probe, at time.Duration) (time.Duration, bool) {
				return 80 * time.Millisecond, at < 25*time.Second || at > 35*time.Second
			}
			w.run(100 * time.Second)
		}},
		{"gone_and_back", func(w *world) {
			w.setPeers("japaneast")
			w.answers = func(_ Probe, at time.Duration) (time.Duration, bool) {
				return 80 * time.Millisecond, at < 20*time.Second || at > 100*time.Second
			}
			w.run(160 * time.Second)
		}},
		{"udp_blocked", func(w *world) {
			w.setPeers("japaneast")
			w.answers = func(p Probe, at time.Duration) (time.Duration, bool) {
				return 80 * time.Millisecond, p.Method == TCP || at > 150*time.Second
			}
			w.run(260 * time.Second)
		}},
		{"budget", func(w *world) {
			w.plan = NewPlan(Limits{Budget: 2})
			w.setPeers("a", "b", "c", "d", "e", "f")
			w.run(20 * time.Second)
		}},
	} {
		t.Run(story.name, func(t *testing.T) {
			w := newWorld(Limits{})
			story.play(w)
			golden.File(t, "testdata/plan_"+story.name+".txt", w.log.String())
		})
	}
}

// For any responses, and any changes of the peers: the budget is not exceeded, every
// peer is probed, and steady peers are probed once an interval.
func TestPlanProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{
			Budget:   rapid.Float64Range(0.5, 50).Draw(t, "budget"),
			Interval: time.Duration(rapid.IntRange(1, 60).Draw(t, "interval")) * time.Second,
		}
		w := newWorld(limits)
		loss := rapid.Float64Range(0, 1).Draw(t, "loss")
		w.answers = func(Probe, time.Duration) (time.Duration, bool) {
			return time.Duration(w.rnd.IntN(900)) * time.Millisecond, w.rnd.Float64() >= loss
		}
		var names []string
		for i := range rapid.IntRange(1, 40).Draw(t, "peers") {
			names = append(names, fmt.Sprint("p", i))
		}
		w.setPeers(names...)
		end := 4*time.Minute + 4*w.plan.Longest()
		for part := range time.Duration(8) {
			w.run(end * (part + 1) / 8)
			if rapid.Bool().Draw(t, "churn") {
				w.setPeers(names[rapid.IntRange(0, len(names)-1).Draw(t, "from"):]...)
				w.setPeers(names...)
			}
		}
		most := limits.Budget*end.Seconds() + limits.Budget/10 + 1
		if float64(len(w.sent)) > most {
			t.Fatalf("%d probes in %v, the budget allows %.0f", len(w.sent), end, most)
		}
		seen := map[string]int{}
		for _, p := range w.sent {
			seen[p.Peer]++
		}
		for _, name := range names {
			if seen[name] < 2 {
				t.Fatalf("%s was probed %d times in %v (longest %v)", name, seen[name], end, w.plan.Longest())
			}
		}
	})
}

func TestPlanIsDeterministic(t *testing.T) {
	story := func() string {
		w := newWorld(Limits{Budget: 5})
		w.setPeers("a", "b", "c")
		w.answers = func(Probe, time.Duration) (time.Duration, bool) { return time.Millisecond, w.rnd.Float64() < 0.7 }
		w.run(5 * time.Minute)
		return w.log.String()
	}
	if first, second := story(), story(); first != second {
		t.Error("two equal runs differ")
	}
}

// For any preferences, failures and changes of the peers while the budget is too small:
// the budget is not exceeded, and each peer is probed within the stated bound.
func TestEveryPeerIsProbedWithinTheBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(Limits{
			Budget:   rapid.Float64Range(0.5, 20).Draw(t, "budget"),
			Interval: time.Duration(rapid.IntRange(1, 30).Draw(t, "interval")) * time.Second,
		})
		loss := rapid.Float64Range(0, 1).Draw(t, "loss")
		w.answers = func(Probe, time.Duration) (time.Duration, bool) {
			return time.Duration(w.rnd.IntN(900)) * time.Millisecond, w.rnd.Float64() >= loss
		}
		weights := map[string]float64{}
		var names []string
		for i := range rapid.IntRange(1, 60).Draw(t, "peers") {
			names = append(names, fmt.Sprint("p", i))
			weights[names[i]] = rapid.SampledFrom([]float64{0, 0, 0, 0.1, 1, 7, -1, math.NaN(), math.Inf(1)}).Draw(t, "weight")
		}
		w.setPeers(names...)
		w.plan.Prefer(weights)
		end := 6 * w.plan.Longest()
		w.run(end)
		last := map[string]time.Time{}
		for _, p := range w.sent {
			last[p.Peer] = epoch
		}
		for _, p := range w.took {
			if gap := p.at.Sub(last[p.name]); gap > w.plan.Longest()+time.Second {
				t.Fatalf("%s waited %v, the stated longest is %v", p.name, gap, w.plan.Longest())
			}
			last[p.name] = p.at
		}
		for _, name := range names {
			if gap := w.now.Sub(last[name]); last[name].IsZero() || gap > w.plan.Longest()+time.Second {
				t.Fatalf("%s waited %v at the end", name, gap)
			}
		}
		if most := w.plan.limits.Budget*(end.Seconds()+0.1) + 1; float64(len(w.sent)) > most {
			t.Fatalf("%d probes in %v, the budget allows %.0f", len(w.sent), end, most)
		}
	})
}

// The intervals are compared with a slow search for the same result: half of the steady
// budget is divided evenly, half by weight, and no peer is probed more often than once
// an interval.
func TestSharesOfTheBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{Budget: rapid.Float64Range(1, 20).Draw(t, "budget"), Interval: 10 * time.Second}
		p := NewPlan(limits)
		weights := map[string]float64{}
		var names []string
		for i := range rapid.IntRange(1, 400).Draw(t, "peers") {
			names = append(names, fmt.Sprint("p", i))
			weights[names[i]] = rapid.SampledFrom([]float64{0, 0, 0.01, 0.5, 1}).Draw(t, "weight")
		}
		p.SetPeers(names, epoch, func() float64 { return 0 })
		p.Prefer(weights)
		n, most, steady := float64(len(names)), 0.1, limits.Budget*steadyShare
		spent := func(scale, rest float64) (sum float64) {
			for _, name := range names {
				sum += min(most, evenShare*steady/n+scale*weights[name]+rest)
			}
			return sum
		}
		search := func(f func(float64) float64) float64 {
			low, high := 0.0, 1e4
			for range 200 {
				if mid := (low + high) / 2; f(mid) < min(steady, n*most) {
					low = mid
				} else {
					high = mid
				}
			}
			return high
		}
		scale, rest := search(func(s float64) float64 { return spent(s, 0) }), 0.0
		if scale > 9999 { // all preferred peers have the maximum
			rest = search(func(r float64) float64 { return spent(scale, r) })
		}
		var sum float64
		for _, name := range names {
			want := min(most, evenShare*steady/n+scale*weights[name]+rest)
			if n*most <= steady {
				want = most
			}
			got := 1 / p.Every(name).Seconds()
			sum += got
			if math.Abs(got-want) > 1e-4*want {
				t.Fatalf("%s of weight %v is probed %v times a second, want %v", name, weights[name], got, want)
			}
		}
		if sum > steady*(1+1e-6) {
			t.Fatalf("%v probes a second are planned, steady are %v", sum, steady)
		}
	})
}

// When the clock is set back or forward, probing neither stops nor exceeds the
// budget.
func TestPlanSurvivesClockJumps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, rnd := NewPlan(Limits{Budget: 10}), rand.New(rand.NewPCG(3, 3))
		names := []string{"a", "b", "c"}
		p.SetPeers(names, epoch, rnd.Float64)
		now, tokens := epoch, 2.0 // the budget of a tenth of a second, and rounding
		waited := map[string]time.Duration{}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			step := time.Duration(rapid.IntRange(1, 2000).Draw(t, "step")) * time.Millisecond
			jump := time.Duration(0)
			if rapid.IntRange(0, 20).Draw(t, "jump") == 0 {
				jump = time.Duration(rapid.Int64Range(-int64(48*time.Hour), int64(48*time.Hour)).Draw(t, "by"))
			}
			now, tokens = now.Add(step+jump), tokens+10*step.Seconds()+2
			for _, name := range names {
				if step+jump >= 0 { // a step back in time does not count the step itself
					waited[name] += step
				}
			}
			due, again := p.PopDue(now, rnd.Float64, anyProbe)
			if again.Before(now) && len(due) == 0 || again.After(now.Add(time.Hour)) {
				t.Fatalf("at %v: ask again at %v", now, again)
			}
			for _, d := range due {
				waited[d.Peer] = 0
				p.Answered(d.Peer, d.Method, now, rnd.Float64)
			}
			tokens -= float64(len(due))
			if tokens < 0 {
				t.Fatalf("more probes than the budget allows")
			}
			for _, name := range names {
				if waited[name] > p.Longest()+2*time.Second {
					t.Fatalf("%s has waited since %v", name, waited[name])
				}
			}
		}
	})
}
