package probe

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world answers, or does not, and writes down what the plan does.
type world struct {
	plan *Plan
	rnd  *rand.Rand
	now  time.Time
	// answers says after how long a probe is answered; false: after 2 s lost.
	answers func(p Probe, at time.Duration) (time.Duration, bool)
	events  []event
	log     strings.Builder
	sent    []Probe
}

type event struct {
	at time.Time
	do func()
}

func newWorld(limits Limits) *world {
	return &world{plan: NewPlan(limits), rnd: rand.New(rand.NewPCG(7, 7)), now: epoch,
		answers: func(Probe, time.Duration) (time.Duration, bool) { return 80 * time.Millisecond, true }}
}

func (w *world) say(format string, args ...any) {
	fmt.Fprintf(&w.log, "%9.3fs  %s\n", w.now.Sub(epoch).Seconds(), fmt.Sprintf(format, args...))
}

func (w *world) setPeers(names ...string) {
	w.say("peers: %s", strings.Join(names, " "))
	w.plan.SetPeers(names, w.now, w.rnd.Float64)
}

// run plays until the time given.
func (w *world) run(until time.Duration) {
	for {
		due, again := w.plan.Take(w.now, w.rnd.Float64)
		for _, p := range due {
			w.sent = append(w.sent, p)
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

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name + ".txt"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; got:\n%s", path, got)
	}
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
			golden(t, "plan_"+story.name, w.log.String())
		})
	}
}

// Whatever answers and however peers come and go: the budget holds, nobody is
// starved, and steady peers are asked once an interval.
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
		end := 4*time.Minute + 4*w.plan.Interval()
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
				t.Fatalf("%s was probed %d times in %v (interval %v)", name, seen[name], end, w.plan.Interval())
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
