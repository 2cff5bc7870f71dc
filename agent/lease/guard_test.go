package lease

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestGuard sends events to a guard with a deadline at 10 s and 3 s to stop. "fork" calls
// MayFork and Forked at the same time. "fork/12s" is a fork that takes until 12 s.
func TestGuard(t *testing.T) {
	type step struct {
		event string
		at    time.Duration
		d     Deadline // of the event renew; At is also the grace of the event stop
		want  string
		wake  time.Duration
	}
	renew := func(at, deadline time.Duration, number uint64, wake time.Duration) step {
		return step{"renew", at, Deadline{deadline, number}, "nothing", wake}
	}
	fork := step{"fork", 0, Deadline{}, "nothing", 10 * s}
	for name, c := range map[string]struct {
		steps []step
		cause Cause
	}{
		"nothing happens":                    {[]step{fork, {"tick", 9 * s, Deadline{}, "nothing", 10 * s}, {"exit", 9 * s, Deadline{}, "nothing", 0}, {"tick", 99 * s, Deadline{}, "nothing", 0}}, ByItself},
		"the lease ends":                     {[]step{fork, {"tick", 10 * s, Deadline{}, "term", 13 * s}, {"tick", 12 * s, Deadline{}, "nothing", 13 * s}, {"tick", 13 * s, Deadline{}, "kill", 0}}, Expired},
		"woken late, after suspend":          {[]step{fork, {"tick", 12 * s, Deadline{}, "term", 13 * s}, {"tick", 13 * s, Deadline{}, "kill", 0}}, Expired},
		"woken after the stop time":          {[]step{fork, {"tick", 14 * s, Deadline{}, "kill", 0}}, Expired},
		"renewed":                            {[]step{fork, renew(9*s, 20*s, 2, 20*s), {"tick", 19 * s, Deadline{}, "nothing", 20 * s}, {"tick", 20 * s, Deadline{}, "term", 23 * s}}, Expired},
		"an older renewal after a newer one": {[]step{fork, renew(8*s, 30*s, 3, 30*s), renew(8*s, 20*s, 2, 30*s), renew(8*s, 40*s, 3, 30*s)}, ByItself},
		"shortened":                          {[]step{fork, renew(2*s, 5*s, 2, 5*s), {"tick", 5 * s, Deadline{}, "term", 8 * s}}, Expired},
		"without a number, later":            {[]step{fork, renew(2*s, 20*s, 0, 20*s), renew(2*s, 15*s, 0, 20*s), renew(2*s, 12*s, 2, 12*s)}, ByItself},
		"no longer bound":                    {[]step{fork, renew(2*s, 0, 2, 0), {"tick", 99 * s, Deadline{}, "nothing", 0}}, ByItself},
		"renewed while it ends":              {[]step{fork, {"tick", 10 * s, Deadline{}, "term", 13 * s}, renew(11*s, 30*s, 2, 13*s), {"tick", 13 * s, Deadline{}, "kill", 0}}, Expired},
		"stopped":                            {[]step{fork, {"stop", 2 * s, Deadline{At: s}, "term", 3 * s}, {"stop", 2500 * time.Millisecond, Deadline{At: s}, "nothing", 3 * s}, {"tick", 3 * s, Deadline{}, "kill", 0}}, Stopped},
		"stopped at once":                    {[]step{fork, {"stop", 2 * s, Deadline{At: s}, "term", 3 * s}, {"stop", 2 * s, Deadline{}, "kill", 0}}, Stopped},
		"a stop outlasts the lease":          {[]step{fork, {"stop", 9 * s, Deadline{At: 60 * s}, "term", 13 * s}, {"tick", 12 * s, Deadline{}, "nothing", 13 * s}, {"tick", 13 * s, Deadline{}, "kill", 0}}, Stopped},
		"forked at its deadline":             {[]step{{"fork", 10 * s, Deadline{}, "late", 0}}, Late},
		"a fork that takes too long":         {[]step{{"fork/12s", 9 * s, Deadline{}, "kill", 0}, {"tick", 13 * s, Deadline{}, "nothing", 0}}, Late},
		"renewed before the fork":            {[]step{renew(9*s, 30*s, 2, 30*s), {"fork", 12 * s, Deadline{}, "nothing", 30 * s}}, ByItself},
		"late once is late for ever":         {[]step{{"fork", 11 * s, Deadline{}, "late", 0}, renew(11*s, 30*s, 2, 0), {"fork", 11 * s, Deadline{}, "late", 0}}, Late},
	} {
		g := NewGuard(Deadline{10 * s, 1}, 3*s)
		for i, st := range c.steps {
			if got := play(&g, st.event, st.at, st.d); got != st.want || g.Wake() != st.wake {
				t.Errorf("%s: step %d %s: %s, wake at %s, want %s and %s", name, i+1, st.event, got, g.Wake(), st.want, st.wake)
			}
		}
		if g.Cause() != c.cause {
			t.Errorf("%s: %s, want %s", name, g.Cause(), c.cause)
		}
	}
}

func play(g *Guard, event string, at time.Duration, d Deadline) string {
	e := Nothing
	switch event {
	case "fork", "fork/12s":
		if !g.MayFork(at) {
			return "late"
		}
		if event != "fork" {
			at = 12 * s
		}
		e = g.Forked(at)
	case "tick":
		e = g.Tick(at)
	case "renew":
		g.Renew(d)
	case "stop":
		e = g.Stop(at, d.At)
	case "exit":
		g.Exited()
	}
	return e.String()
}

// TestGuardedCommandEnds sends random events. The owner wakes when the guard asks for it,
// or later after a pause of the host. Nothing is forked after its deadline. Nothing lives
// longer than the stop time after its deadline. An older renewal changes nothing.
func TestGuardedCommandEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seconds := func(what string, from, to int) time.Duration {
			return time.Duration(rapid.IntRange(from, to).Draw(t, what)) * s
		}
		grace := seconds("grace", 0, 5)
		latest := Deadline{seconds("deadline", 0, 20), 1}
		g := NewGuard(latest, grace)
		var now time.Duration
		forked, alive, asked := false, true, false
		var wasAsked Deadline
		check := func(e Effect) {
			switch e {
			case Kill:
				alive = false
			case Term:
				if asked {
					t.Fatal("asked to end twice")
				}
				asked, wasAsked = true, latest
			}
		}
		for range 40 {
			switch kind := rapid.SampledFrom([]string{"fork", "renew", "renew", "stop", "time", "time", "pause"}).Draw(t, "event"); {
			case kind == "fork" && !forked && alive:
				over := latest.At != 0 && now >= latest.At
				if may := g.MayFork(now); may == over && g.Cause() != Stopped {
					t.Fatalf("at %s, deadline %s: may fork: %t", now, latest.At, may)
				} else if may {
					forked = true
					now += seconds("forking", 0, 3)
					check(g.Forked(now))
				} else {
					alive = false
				}
			case kind == "renew":
				d := Deadline{now + seconds("for", -3, 15), uint64(rapid.IntRange(1, 60).Draw(t, "number"))}
				if d.At < 0 {
					d.At = 0
				}
				if d.Number > latest.Number {
					latest = d
				}
				g.Renew(d)
			case kind == "stop" && forked && alive:
				check(g.Stop(now, seconds("stop", 0, 60)))
			case kind == "time":
				now += seconds("pass", 0, 2)
			case kind == "pause":
				now += seconds("pause", 0, 30)
			}
			if !forked || !alive {
				continue
			}
			for at := g.Wake(); alive && at != 0 && at <= now; at = g.Wake() {
				e := g.Tick(now)
				if e == Nothing {
					t.Fatalf("at %s it woke for %s and nothing was due", now, at)
				}
				check(e)
			}
			bound := latest
			if asked && g.Cause() == Expired {
				bound = wasAsked // a later renewal does not change the bound
			}
			if alive && bound.At != 0 && now >= bound.At+grace {
				t.Fatalf("alive at %s, deadline %s, stop time %s: %s", now, bound.At, grace, fmt.Sprintf("%+v", g))
			}
			if alive && !asked && latest.At != 0 && now >= latest.At {
				t.Fatalf("not asked to end at %s, deadline %s", now, latest.At)
			}
		}
	})
}
