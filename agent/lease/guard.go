package lease

import (
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// Deadline is the time on CLOCK_BOOTTIME at which a run must be asked to end.
type Deadline struct {
	// At is the time. 0 means that no lease binds the run.
	At time.Duration `json:"at,omitempty"`
	// Number is the number of the renewal. The renewal with the greatest number counts,
	// whatever the order of arrival. It is 0 from an agent that does not number its
	// renewals.
	Number uint64 `json:"number,omitempty"`
}

// Newer returns one of two deadlines: the one that counts. That is the deadline with the
// greater number. If b has no number, b counts only if it is later than a.
func Newer(a, b Deadline) Deadline {
	switch {
	case plant.Is(plant.OlderRenewal):
		return b
	case b.Number == 0 && b.At > a.At:
		return Deadline{At: b.At, Number: a.Number}
	case b.Number > a.Number:
		return b
	}
	return a
}

// passed reports whether the deadline has passed.
func (d Deadline) passed(now time.Duration) bool { return d.At != 0 && now >= d.At }

// Effect is what the caller must do to the command now.
type Effect int

// The effects.
const (
	Nothing Effect = iota
	// Term: ask the command to end.
	Term
	// Kill: kill the command.
	Kill
)

// String returns the effect in lower case.
func (e Effect) String() string { return [...]string{"nothing", "term", "kill"}[e] }

// Cause says why a command was ended.
type Cause int

// The causes.
const (
	// ByItself: nothing asked the command to end.
	ByItself Cause = iota
	// Stopped: the command was stopped by a request.
	Stopped
	// Expired: the command's deadline passed.
	Expired
	// Late: the command's deadline passed before the command was started.
	Late
)

// String returns the cause in lower case.
func (c Cause) String() string { return [...]string{"by itself", "stopped", "expired", "late"}[c] }

// Guard decides when one command may be forked, when it is asked to end and when it is
// killed. It is a step function: each event returns an effect, and Wake returns the time of
// the next Tick. All times are on CLOCK_BOOTTIME. The zero value has no deadline. A Guard
// is not safe for concurrent use.
type Guard struct {
	lease Deadline
	grace time.Duration
	phase phase
	// killAt is valid in the phase ending.
	killAt time.Duration
	cause  Cause
}

// phase is the phase of the command.
type phase int

const (
	running phase = iota // or not forked yet
	ending               // asked to end
	over                 // killed, exited, or never forked
)

// NewGuard returns the guard of a command that is not forked yet. grace is the time from
// the deadline to the kill.
func NewGuard(d Deadline, grace time.Duration) Guard {
	return Guard{lease: d, grace: max(0, grace)}
}

// MayFork reports whether the command may be forked now. After it has returned false, the
// command may never be forked.
func (g *Guard) MayFork(now time.Duration) bool {
	if g.lease.passed(now) && g.phase != over && !plant.Is(plant.LateStart) {
		g.phase, g.cause = over, Late
	}
	return g.phase != over
}

// Forked records the fork of the command. The effect is Kill if the deadline has passed
// since MayFork, because the host was suspended.
func (g *Guard) Forked(now time.Duration) Effect {
	if !g.lease.passed(now) || plant.Is(plant.LateStart) {
		return Nothing
	}
	g.phase, g.cause = over, Late
	return Kill
}

// Renew sets the deadline if the new one is newer than the present one. The deadline may
// then be earlier or later than before. Renew does not save a command that was already
// asked to end.
func (g *Guard) Renew(d Deadline) { g.lease = Newer(g.lease, d) }

// Stop asks the command to end within grace. A second request changes nothing, unless its
// grace is 0.
func (g *Guard) Stop(now, grace time.Duration) Effect {
	switch {
	case g.phase == over:
		return Nothing
	case grace <= 0:
		return g.kill(Stopped)
	case g.phase == ending:
		return Nothing
	}
	g.phase, g.cause, g.killAt = ending, Stopped, now+grace
	return Term
}

// Tick records that the time is now. A command is killed at the latest when grace has
// passed after its deadline, also if it was stopped before.
func (g *Guard) Tick(now time.Duration) Effect {
	switch {
	case g.phase == over:
		return Nothing
	case g.lease.At != 0 && now >= g.lease.At+g.grace, g.phase == ending && now >= g.killAt:
		return g.kill(Expired)
	case g.phase == running && g.lease.passed(now):
		g.phase, g.cause, g.killAt = ending, Expired, g.lease.At+g.grace
		return Term
	}
	return Nothing
}

// kill ends the command at once. The first cause of the end counts.
func (g *Guard) kill(c Cause) Effect {
	if g.cause == ByItself {
		g.cause = c
	}
	g.phase = over
	return Kill
}

// Exited records the end of the command.
func (g *Guard) Exited() { g.phase = over }

// Wake returns when the next Tick is due, or 0 if no Tick is needed.
func (g *Guard) Wake() time.Duration {
	switch {
	case g.phase == over:
		return 0
	case g.phase == running:
		return g.lease.At
	case g.lease.At != 0:
		return min(g.killAt, g.lease.At+g.grace)
	}
	return g.killAt
}

// Cause returns why the command was ended.
func (g *Guard) Cause() Cause { return g.cause }
