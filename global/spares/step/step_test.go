package step_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/spares/step"
	"github.com/nusa-scheduler/nusa/internal/golden"
)

var begin = time.Unix(1_000_000, 0)

// script is a spare whose inputs a test chooses.
type script struct {
	out strings.Builder
	c   step.Config
	s   step.State
	at  time.Duration
	res []step.Reservation
}

func newScript(title string, places int, c step.Config) *script {
	c.Deadline, c.JoinTimeout, c.Hold = begin.Add(10*time.Minute), 4*time.Minute, time.Hour
	x := &script{c: c, s: step.State{Phase: step.Reserving, Places: make([]step.Place, places)}, res: make([]step.Reservation, places)}
	fmt.Fprintf(&x.out, "== %s\n", title)
	return x
}

// step makes one step after some time, and writes what follows. Without a result or an order, a second
// step with the same input must change nothing and tell nothing.
func (x *script) step(t *testing.T, after time.Duration, what string, in step.Input) {
	x.at += after
	in.Now, in.Reservations = begin.Add(x.at), slices.Clone(x.res)
	before := x.s
	var effects []step.Effect
	x.s, effects = step.Step(x.c, x.s, in)
	fmt.Fprintf(&x.out, "%-6s %s\n       %s\n", x.at, what, show(x.s))
	for _, e := range effects {
		fmt.Fprintf(&x.out, "       > %s\n", e)
	}
	in.Result, in.Order = nil, step.None
	for i, p := range x.s.Places {
		if p.Round != before.Places[i].Round { // nothing is known of a new reservation
			x.res[i], in.Reservations[i] = step.Reservation{}, step.Reservation{}
		}
	}
	if again, more := step.Step(x.c, x.s, in); !reflect.DeepEqual(again, x.s) {
		t.Errorf("%s: a second step changes %s to %s", what, show(x.s), show(again))
	} else if tells(more) > 0 {
		t.Errorf("%s: a second step tells %v", what, more)
	}
}

func tells(effects []step.Effect) (n int) {
	for _, e := range effects {
		if _, is := e.(step.Tell); is {
			n++
		}
	}
	return n
}

func show(s step.State) string {
	var places []string
	for _, p := range s.Places {
		places = append(places, strings.TrimSpace(fmt.Sprintf("%s/%d %s", p.Hold, p.Round, p.Host.Name)))
	}
	text := fmt.Sprintf("%s [%s]", s.Phase, strings.Join(places, ", "))
	if s.Failures > 0 {
		text += fmt.Sprintf(" failures %d due %s", s.Failures, s.Due.Sub(begin))
	}
	if s.Message != "" {
		text += " " + fmt.Sprintf("%q", s.Message)
	}
	return text
}

func (x *script) known(i int, k step.Known, text string) {
	x.res[i] = step.Reservation{Known: k, Why: text}
	if k == step.Done {
		x.res[i] = step.Reservation{Known: k, Host: step.Host{Name: text}}
	}
}

func done(key string) step.Input { return step.Input{Result: &step.Result{Key: key}} }

func failed(key, err string, final bool) step.Input {
	return step.Input{Result: &step.Result{Key: key, Err: err, Final: final}}
}

// TestScripts writes what follows in the life of some spares.
func TestScripts(t *testing.T) {
	var out strings.Builder
	for _, run := range []func(*testing.T) *script{provisioned, enough, noProvisioner, provisionerDown, hostsThatDoNotJoin, lateOrders, lostHost, refused} {
		out.WriteString(run(t).out.String())
	}
	golden.File(t, "testdata/scripts.txt", out.String())
}

func provisioned(t *testing.T) *script {
	x := newScript("one host exists, two are provisioned, and the upgrade is over", 3, step.Config{Provisioner: true, Callback: true})
	x.step(t, 0, "begin", step.Input{})
	x.known(0, step.Open, "")
	x.known(1, step.Open, "")
	x.step(t, time.Second, "two reservations exist", step.Input{})
	x.known(0, step.Done, "bm-1")
	x.known(1, step.Over, "No available nodes")
	x.known(2, step.Over, "No available nodes")
	x.step(t, time.Second, "there is room for one", step.Input{})
	x.step(t, time.Second, "the provisioner fails once", failed("ask-1", "status 503", false))
	x.step(t, time.Second, "too early", step.Input{})
	x.step(t, time.Second, "the attempt is due", step.Input{})
	x.step(t, time.Second, "a late result of another call", failed("ask-0", "status 500", true))
	x.step(t, time.Second, "the provisioner accepts", done("ask-1"))
	x.known(1, step.Open, "")
	x.known(2, step.Open, "")
	x.step(t, time.Minute, "they wait for room", step.Input{})
	x.known(2, step.Done, "new-1")
	x.step(t, time.Second, "a host has joined", step.Input{})
	x.known(1, step.Done, "new-2")
	x.step(t, time.Second, "the other one has joined", step.Input{})
	x.step(t, time.Second, "the controller does not answer", failed("notify", "no response within 15s", false))
	x.step(t, 2*time.Second, "the attempt is due", step.Input{})
	x.step(t, time.Second, "the controller accepts", done("notify"))
	x.step(t, time.Minute, "the deadline does not matter any more", step.Input{})
	x.step(t, time.Second, "released", step.Input{Order: step.Release})
	for i := range x.res {
		x.known(i, step.Over, "released")
	}
	x.step(t, time.Second, "all reservations have ended", step.Input{})
	return x
}

func enough(t *testing.T) *script {
	x := newScript("enough hosts exist, and nobody releases them", 1, step.Config{Provisioner: true})
	x.step(t, 0, "begin", step.Input{})
	x.known(0, step.Done, "bm-1")
	x.step(t, time.Second, "the host is reserved", step.Input{})
	x.known(0, step.Done, "bm-2")
	x.step(t, 30*time.Minute, "it has moved", step.Input{})
	x.step(t, time.Hour, "the hold is over", step.Input{})
	x.known(0, step.Over, "released")
	x.step(t, time.Second, "the reservation has ended", step.Input{})
	return x
}

func noProvisioner(t *testing.T) *script {
	x := newScript("without a provisioner there is never enough room", 2, step.Config{})
	x.step(t, 0, "begin", step.Input{})
	x.known(0, step.Done, "bm-1")
	x.known(1, step.Open, "")
	x.step(t, 9*time.Minute, "one is reserved", step.Input{})
	x.step(t, time.Minute, "the deadline", step.Input{})
	x.known(0, step.Over, "released")
	x.known(1, step.Over, "released")
	x.step(t, time.Second, "all reservations have ended", step.Input{})
	return x
}

func provisionerDown(t *testing.T) *script {
	x := newScript("the provisioner is down until the last attempt", 1, step.Config{Provisioner: true})
	x.step(t, 0, "begin", step.Input{})
	x.known(0, step.Over, "No available nodes")
	x.step(t, time.Second, "there is no room", step.Input{})
	for range step.MaxAttempts {
		x.step(t, 0, "an attempt fails", failed("ask-1", "connection refused", false))
		if wait := x.s.Due.Sub(begin.Add(x.at)); wait > 0 {
			x.at += wait
		}
	}
	return x
}

func hostsThatDoNotJoin(t *testing.T) *script {
	x := newScript("the hosts do not join in time", 1, step.Config{Provisioner: true})
	x.step(t, 0, "begin", step.Input{})
	x.known(0, step.Over, "No available nodes")
	x.step(t, time.Second, "there is no room", step.Input{})
	x.step(t, time.Second, "accepted", done("ask-1"))
	x.known(0, step.Open, "")
	x.step(t, 4*time.Minute, "none has joined: ask again", step.Input{})
	x.step(t, time.Second, "accepted again", done("ask-2"))
	x.step(t, 10*time.Minute, "the deadline", step.Input{})
	return x
}

func lateOrders(t *testing.T) *script {
	x := newScript("a release is too early, a cancel is not", 1, step.Config{Provisioner: true})
	x.step(t, 0, "begin, and release", step.Input{Order: step.Release})
	x.known(0, step.Open, "")
	x.step(t, time.Second, "cancelled", step.Input{Order: step.Cancel})
	x.known(0, step.Over, "released")
	x.step(t, time.Second, "the reservation has ended", step.Input{})
	x.step(t, time.Second, "cancelled again", step.Input{Order: step.Cancel})
	return x
}

func lostHost(t *testing.T) *script {
	x := newScript("a held host is lost: before the notification it is replaced, later it is reported", 1, step.Config{Callback: true})
	x.step(t, 0, "begin", step.Input{})
	x.known(0, step.Open, "")
	x.step(t, time.Second, "it waits", step.Input{})
	x.known(0, step.Over, "the job was stopped")
	x.step(t, time.Second, "a caller released it", step.Input{})
	x.known(0, step.Done, "bm-1")
	x.step(t, time.Second, "the host is reserved", step.Input{})
	x.known(0, step.Over, "the job was stopped")
	x.step(t, time.Second, "a caller released it", step.Input{})
	x.step(t, time.Second, "the controller wants no such requests", failed("notify", "status 410 Gone", true))
	return x
}

func refused(t *testing.T) *script {
	x := newScript("the namespace allows no reservation", 2, step.Config{})
	x.step(t, 0, "begin", step.Input{})
	x.known(0, step.Refused, "the namespace allows no driver reserve")
	x.step(t, time.Second, "it is refused", step.Input{})
	return x
}

// TestAnySequence: whatever happens, the phases advance, the calls are bounded, and a spare ends.
func TestAnySequence(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 7))
		c := step.Config{
			Provisioner: r.IntN(2) == 0, Callback: r.IntN(2) == 0, Deadline: begin.Add(time.Duration(1+r.IntN(600)) * time.Second),
			JoinTimeout: time.Duration(1+r.IntN(200)) * time.Second, Hold: time.Duration(1+r.IntN(1000)) * time.Second,
		}
		s := step.State{Phase: step.Reserving, Places: make([]step.Place, 1+r.IntN(4))}
		now := begin
		for i := 0; !s.Phase.Ended(); i++ {
			if i == 5000 {
				t.Fatalf("seed %d: it does not end: %s", seed, show(s))
			}
			now = now.Add(time.Duration(r.IntN(5000)) * time.Millisecond)
			in := step.Input{Now: now, Order: step.Order(max(0, r.IntN(300)-297)), Reservations: make([]step.Reservation, len(s.Places))}
			for j := range in.Reservations {
				in.Reservations[j] = step.Reservation{Known: step.Known(r.IntN(4)), Host: step.Host{Name: "n"}, Why: "why"}
			}
			if r.IntN(2) == 0 {
				key := map[bool]string{true: "notify", false: fmt.Sprintf("ask-%d", s.Asks)}[s.Phase == step.Notifying]
				in.Result = &step.Result{Key: key, Final: r.IntN(40) == 0, After: time.Duration(r.IntN(5)) * time.Second}
				if r.IntN(3) > 0 {
					in.Result.Err = "no"
				}
			}
			next, effects := step.Step(c, s, in)
			if next.Phase < s.Phase && !(s.Phase == step.Joining && next.Phase == step.Asking) {
				t.Fatalf("seed %d: from %s to %s", seed, s.Phase, next.Phase)
			}
			if next.Asks > step.MaxAsks || next.Failures > step.MaxAttempts || !c.Provisioner && next.Asks > 0 {
				t.Fatalf("seed %d: %+v", seed, next)
			}
			checkEffects(t, seed, c, next, effects)
			s = next
		}
		for _, p := range s.Places {
			if p.Hold != step.GivenBack {
				t.Fatalf("seed %d: %s", seed, show(s))
			}
		}
	}
}

// checkEffects: nothing is reserved or called once the spare ends, and a request is made only in its phase.
func checkEffects(t *testing.T, seed uint64, c step.Config, s step.State, effects []step.Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case step.Ask:
			if s.Phase != step.Asking || e.Count < 1 || e.Count > len(s.Places) {
				t.Fatalf("seed %d: %s in %s", seed, e, show(s))
			}
		case step.Notify:
			if s.Phase != step.Notifying || !c.Callback {
				t.Fatalf("seed %d: %s in %s", seed, e, show(s))
			}
		case step.Free:
			if s.Phase != step.Releasing {
				t.Fatalf("seed %d: %s in %s", seed, e, show(s))
			}
		case step.Reserve:
			if s.Places[e.Place].Round != e.Round || e.Wait < 0 {
				t.Fatalf("seed %d: %s in %s", seed, e, show(s))
			}
		}
	}
}
