package lease

import (
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// Deadline is the time at which a run must be asked to end.
type Deadline struct {
	// At is on CLOCK_BOOTTIME. 0: no lease binds the run.
	At time.Duration `json:"at,omitempty"`
	// Number of the renewal. The greatest number counts, in whatever order renewals arrive. 0:
	// from an agent that does not number them.
	Number uint64 `json:"number,omitempty"`
}

// Newer returns the one of two deadlines that counts. A deadline without a number counts only
// if it is later.
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

// passed reports whether the deadline is over.
func (d Deadline) passed(now time.Duration) bool { return d.At != 0 && now >= d.At }

// Effect is what the owner of a command must do now.
type Effect int

// The effects.
const (
	Nothing Effect = iota
	// Term asks the command to end.
	Term
	// Kill the command.
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
	// Stopped by a request.
	Stopped
	// Expired: its deadline passed.
	Expired
	// Late: its deadline passed before the command was started.
	Late
)

// String returns the cause in lower case.
func (c Cause) String() string { return [...]string{"by itself", "stopped", "expired", "late"}[c] }

// Guard decides when one command may be forked, when it is asked to end and when it is killed.
// It is a step function: each event may have an effect, and Wake says when the next Tick is due.
// All times are on CLOCK_BOOTTIME. The zero value has no deadline. Not safe for concurrent use.
type Guard struct {
	lease Deadline
	grace time.Duration
	phase phase
	// killAt is valid in the phase ending.
	killAt time.Duration
	cause  Cause
}

// phase of the command.
type phase int

const (
	running phase = iota // or not forked yet
	ending               // asked to end
	over                 // killed, exited, or never forked
)

// NewGuard returns the guard of a command that is not forked yet. The kill follows grace after
// the deadline.
func NewGuard(d Deadline, grace time.Duration) Guard {
	return Guard{lease: d, grace: max(0, grace)}
}

// MayFork reports whether the command may be forked now. If not, it never may.
func (g *Guard) MayFork(now time.Duration) bool {
	if g.lease.passed(now) && g.phase != over && !plant.Is(plant.LateStart) {
		g.phase, g.cause = over, Late
	}
	return g.phase != over
}

// Forked takes the fork of the command. The effect is Kill if the host was suspended between
// MayFork and the fork.
func (g *Guard) Forked(now time.Duration) Effect {
	if !g.lease.passed(now) || plant.Is(plant.LateStart) {
		return Nothing
	}
	g.phase, g.cause = over, Late
	return Kill
}

// Renew takes a deadline if it is newer than the present one. It may move either way. A
// command that was asked to end ends.
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

// Tick takes the time. A command is killed at the latest grace after its deadline, also if it was
// stopped before.
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

// Exited takes the end of the command.
func (g *Guard) Exited() { g.phase = over }

// Wake returns when the next Tick is due. 0: never.
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
