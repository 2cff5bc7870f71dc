package step

import (
	"fmt"
	"slices"
	"time"
)

// Bounds of the calls.
const (
	// MaxAttempts bounds the attempts of one call, and MaxAsks how often hosts are asked for.
	MaxAttempts, MaxAsks = 8, 3
	// maxRounds bounds the reservations of one place.
	maxRounds = 10
	// firstPause and maxPause bound the time between two attempts, which doubles each time.
	firstPause, maxPause = 2 * time.Second, 2 * time.Minute
	// maxAfter bounds the pause that a receiver can ask for.
	maxAfter = 10 * time.Minute
)

// turn is one call of Step.
type turn struct {
	c   Config
	s   State
	in  Input
	out []Effect
}

// Step returns the next state and the effects. It does not change its arguments. The same input gives no
// change and no Tell when nothing has changed.
func Step(c Config, s State, in Input) (State, []Effect) {
	s.Places = slices.Clone(s.Places)
	t := &turn{c: c, s: s, in: in}
	t.order()
	t.look()
	// Each phase may lead to the next one. The number of phases bounds the loop.
	for range 8 {
		was := t.s.Phase
		switch was {
		case Reserving:
			t.reserving()
		case Asking:
			t.asking()
		case Joining:
			t.joining()
		case Notifying:
			t.notifying()
		case Ready:
			t.ready()
		case Releasing:
			t.releasing()
		}
		if t.s.Phase == was {
			break
		}
	}
	return t.s, t.out
}

func (t *turn) tell(kind, format string, args ...any) {
	t.out = append(t.out, Tell{kind, fmt.Sprintf(format, args...)})
}

// order carries out what a caller wants.
func (t *turn) order() {
	switch {
	case t.s.Phase >= Releasing:
	case t.in.Order == Release && t.s.Phase >= Notifying:
		t.end(Released, "released by a caller")
	case t.in.Order == Cancel:
		t.end(Cancelled, "cancelled by a caller")
	}
}

// end begins the end of the spare.
func (t *turn) end(outcome Phase, message string) {
	t.s.Phase, t.s.Outcome, t.s.Message, t.s.Due, t.s.Failures = Releasing, outcome, message, time.Time{}, 0
	t.tell("spare."+outcome.String(), "%s", message)
}

// look notes what is known of the reservations.
func (t *turn) look() {
	if t.s.Phase >= Releasing {
		return
	}
	for i := range t.s.Places {
		p, r := &t.s.Places[i], t.in.Reservations[i]
		switch {
		case p.Round == 0:
		case r.Known == Done:
			p.Hold, p.Host = Held, r.Host
		case r.Known == Refused && p.Hold == Waiting:
			t.end(Failed, "a reservation was refused: "+r.Why)
			return
		case r.Known == Over && (p.Hold == Waiting || p.Hold == Held):
			t.over(p, r)
		}
	}
}

// over notes that the reservation of a place has ended.
func (t *turn) over(p *Place, r Reservation) {
	if t.s.Phase >= Notifying {
		p.Hold, t.s.Message = Lost, fmt.Sprintf("%s is lost: %s", p.Host.Name, r.Why)
		t.tell("spare.lost", "%s", t.s.Message)
		return
	}
	p.Hold, p.Host = Wanted, Host{}
	t.s.Message = r.Why
}

// count returns how many places are in a state.
func (t *turn) count(h Hold) (n int) {
	for _, p := range t.s.Places {
		if p.Hold == h {
			n++
		}
	}
	return n
}

// reserve makes the reservations of the places that have none.
func (t *turn) reserve(wait time.Duration) {
	for i := range t.s.Places {
		p := &t.s.Places[i]
		if p.Hold == Wanted {
			if p.Round == maxRounds {
				t.end(Failed, fmt.Sprintf("%d reservations of one host have ended, the latest: %s", maxRounds, t.s.Message))
				return
			}
			p.Round++
			p.Hold = Waiting
			t.out = append(t.out, Reserve{i, p.Round, wait})
			continue
		}
		if p.Hold == Waiting && t.in.Reservations[i].Known == Absent {
			t.out = append(t.out, Reserve{i, p.Round, wait})
		}
	}
}

// progress ends a phase in which hosts are awaited: all are held, or the deadline has passed.
func (t *turn) progress() (over bool) {
	held := t.count(Held)
	if held == len(t.s.Places) {
		t.s.Phase, t.s.Due, t.s.Failures, t.s.Prepared, t.s.Message = Notifying, t.in.Now, 0, t.in.Now, ""
		t.tell("spare.prepared", "%s", hosts(held))
		return true
	}
	if !t.in.Now.Before(t.c.Deadline) {
		t.end(Failed, fmt.Sprintf("the deadline has passed: %d of %s ready", held, hosts(len(t.s.Places))))
		return true
	}
	return false
}

func hosts(n int) string {
	if n == 1 {
		return "1 host"
	}
	return fmt.Sprintf("%d hosts", n)
}

func (t *turn) left() time.Duration { return max(0, t.c.Deadline.Sub(t.in.Now)) }

// reserving reserves hosts that exist. With a provisioner, a reservation does not wait for room.
func (t *turn) reserving() {
	if t.progress() {
		return
	}
	if !t.c.Provisioner {
		t.reserve(t.left())
		return
	}
	first := slices.ContainsFunc(t.s.Places, func(p Place) bool { return p.Round == 0 })
	if first || t.count(Waiting) > 0 {
		for i := range t.s.Places {
			p := &t.s.Places[i]
			if p.Round == 0 {
				p.Round, p.Hold = 1, Waiting
			}
			if p.Hold == Waiting && t.in.Reservations[i].Known == Absent {
				t.out = append(t.out, Reserve{i, p.Round, 0})
			}
		}
		return
	}
	t.ask()
}

// ask begins to ask the provisioner for the hosts that are missing.
func (t *turn) ask() {
	if t.s.Asks == MaxAsks {
		t.end(Failed, fmt.Sprintf("the provisioner was asked %d times: %d of %s ready", t.s.Asks, t.count(Held), hosts(len(t.s.Places))))
		return
	}
	t.s.Phase, t.s.Due, t.s.Failures, t.s.Message = Asking, t.in.Now, 0, ""
	t.s.Asks++
	t.tell("spare.provisioning", "%s of %d missing", hosts(len(t.s.Places)-t.count(Held)), len(t.s.Places))
}

// asking makes the call to the provisioner.
func (t *turn) asking() {
	if t.progress() {
		return
	}
	key := fmt.Sprintf("ask-%d", t.s.Asks)
	switch t.call(key) {
	case succeeded:
		t.s.Phase, t.s.Until, t.s.Due, t.s.Failures, t.s.Message = Joining, t.in.Now.Add(t.c.JoinTimeout), time.Time{}, 0, ""
	case due:
		t.out = append(t.out, Ask{key, len(t.s.Places) - t.count(Held)})
	}
}

// joining waits for the hosts of the provisioner. Reservations wait for room until the deadline.
func (t *turn) joining() {
	switch {
	case t.progress():
	case !t.in.Now.Before(t.s.Until):
		t.ask()
	default:
		t.reserve(t.left())
	}
}

// notifying calls the upgrade controller.
func (t *turn) notifying() {
	verdict := succeeded
	if t.c.Callback {
		verdict = t.call("notify")
	}
	switch verdict {
	case succeeded:
		t.s.Phase, t.s.Until, t.s.Due, t.s.Failures = Ready, t.in.Now.Add(t.c.Hold), time.Time{}, 0
		if t.c.Callback {
			if t.count(Lost) == 0 {
				t.s.Message = ""
			}
			t.tell("spare.notified", "the upgrade controller has accepted")
		}
	case due:
		t.out = append(t.out, Notify{"notify"})
	}
}

func (t *turn) ready() {
	if !t.in.Now.Before(t.s.Until) {
		t.end(Expired, "nobody released it in time")
	}
}

// releasing frees all reservations.
func (t *turn) releasing() {
	open := false
	for i := range t.s.Places {
		p := &t.s.Places[i]
		switch known := t.in.Reservations[i].Known; {
		case p.Hold == GivenBack:
		case p.Round == 0 || known == Absent || known == Over || known == Refused:
			p.Hold = GivenBack
		default:
			open = true
			t.out = append(t.out, Free{i, p.Round})
		}
	}
	if !open {
		t.s.Phase = t.s.Outcome
	}
}

type callVerdict int

const (
	waits callVerdict = iota
	due
	succeeded
)

// call notes the result of the call at hand, and says what follows. The spare fails after the last attempt.
func (t *turn) call(key string) callVerdict {
	r := t.in.Result
	if r == nil || r.Key != key {
		if t.in.Now.Before(t.s.Due) {
			return waits
		}
		return due
	}
	t.in.Result = nil
	if r.Err == "" {
		return succeeded
	}
	t.s.Failures++
	what := map[bool]string{true: "the callback", false: "the provisioner"}[key == "notify"]
	t.s.Message = fmt.Sprintf("%s failed: %s", what, r.Err)
	if r.Final || t.s.Failures == MaxAttempts {
		t.end(Failed, t.s.Message)
		return waits
	}
	pause := min(firstPause<<(t.s.Failures-1), maxPause)
	t.s.Due = t.in.Now.Add(max(pause, min(r.After, maxAfter)))
	return waits
}
