// Package health says what the results of a task's checks mean: from when on it
// is healthy, when no longer, when to look again and what is worth telling. It
// is pure: a step per result, with the clock and the luck as arguments.
package health

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Bounds.
const (
	// MaxMessage bounds what a check may say, in bytes.
	MaxMessage = 256
	// fastest is the least pause between two checks of a task that is not
	// healthy yet.
	fastest = 100 * time.Millisecond
	// patience of a first wait: the pause grows with what was waited already,
	// by one part in so many. So a task is seen healthy at most a quarter later
	// than it is, and half a minute takes 25 checks.
	patience = 4
	// tellEvery is how often results without a change of phase are told, at
	// most: each goes through the log of the region.
	tellEvery = 5 * time.Second
	// quiet is how long a new run may take to become healthy without a word
	// about the checks that failed before: most take less.
	quiet = time.Second
	// lateAfter is what may pass between due and begin without being told, in
	// any case; with long intervals half of one.
	lateAfter = time.Second
)

// Policy is a check as ordered.
type Policy struct {
	// What is checked, for messages: "http :20001/healthz".
	What string
	// Interval between two checks of a healthy task, Timeout of one, and the
	// Deadline of a run to become healthy. All positive.
	Interval, Timeout, Deadline time.Duration
	// Failures in a row that make a healthy task unhealthy, at least 1.
	Failures int
}

// Phase of a run. It only advances: an unhealthy run is replaced.
type Phase int

// The phases.
const (
	// Waiting: no check has passed yet.
	Waiting Phase = iota
	// Healthy: one has, and not so many have failed in a row since.
	Healthy
	// Unhealthy: too many failed, or none passed in time.
	Unhealthy
)

var phaseNames = [...]string{"waiting", "healthy", "unhealthy"}

// String is the phase's lower-case name.
func (p Phase) String() string { return phaseNames[p] }

// Result of one check.
type Result struct {
	// Began is when.
	Began time.Time
	OK    bool
	// Message is what it saw, made by Clean.
	Message string
	// Late is how long after it was due it began: the agent was busy.
	Late time.Duration
	// Overslept is by how much the prober missed the end of the time-out: as
	// long as that it was not running itself, and the answer may have been
	// there all the time.
	Overslept time.Duration
}

// State of a run's checks.
type State struct {
	Phase Phase
	// Since when it is in that phase.
	Since time.Time
	// Last is the latest result that counted, or was late; zero before.
	Last Result
	// Failed in a row.
	Failed int

	begun time.Time // what the deadline counts from
	told  time.Time // when something was told
	news  bool      // since then
}

// Effect is what to do after a result.
type Effect struct {
	// Next check in so long; 0 = none.
	Next time.Duration
	// Changed: the phase has.
	Changed bool
	// Tell the state to whom it concerns.
	Tell bool
}

// Begin is the state of a run that has just begun. Its first check is due at
// once.
func Begin(now time.Time) State {
	return State{Since: now, begun: now, told: now.Add(quiet - tellEvery)}
}

// Resume goes on with a run that was healthy, or not yet, before the agent was
// restarted: what it did meanwhile is not known, so nothing of it counts. first
// is when to check; luck is of 0..1 and spreads that over the interval.
func Resume(p Policy, phase Phase, since, now time.Time, luck float64) (s State, first time.Duration) {
	s = Begin(now)
	if phase != Healthy {
		return s, 0
	}
	s.Phase, s.Since = Healthy, since
	return s, time.Duration(luck * float64(p.Interval))
}

// Step takes a result. luck is of 0..1: pauses vary by it, so that tasks that
// began together are not checked together for ever.
func Step(p Policy, s State, r Result, now time.Time, luck float64) (State, Effect) {
	if s.Phase == Unhealthy {
		return s, Effect{}
	}
	was := s
	s.Last = r
	switch {
	case r.OK:
		s.Failed = 0
		s.Phase = Healthy
	case Missed(p, r):
		// It says more about the agent than about the task.
	default:
		s.Failed++
		if s.Phase == Waiting && now.Sub(s.begun) >= p.Deadline || s.Phase == Healthy && s.Failed >= p.Failures {
			s.Phase = Unhealthy
		}
	}
	e := Effect{Changed: s.Phase != was.Phase}
	if e.Changed {
		s.Since = now
	}
	s.news = s.news || r.OK != was.Last.OK || !r.OK && r.Message != was.Last.Message || Late(p, r) != Late(p, was.Last)
	if e.Changed || s.news && now.Sub(s.told) >= tellEvery {
		e.Tell, s.told, s.news = true, now, false
	}
	e.Next = s.next(p, now, luck)
	return s, e
}

// next is when to check again.
func (s State) next(p Policy, now time.Time, luck float64) time.Duration {
	wait := p.Interval
	switch s.Phase {
	case Unhealthy:
		return 0
	case Waiting:
		wait = min(max(now.Sub(s.begun)/patience, fastest), p.Interval)
	}
	wait = time.Duration(float64(wait) * (0.9 + 0.2*luck))
	if left := s.begun.Add(p.Deadline).Sub(now); s.Phase == Waiting && left < wait {
		wait = max(left, fastest) // the check that decides
	}
	return wait
}

// Missed says that a check ran out of time while the prober itself was not
// running for a good part of it.
func Missed(p Policy, r Result) bool { return !r.OK && r.Overslept > p.Timeout/4+fastest }

// Late says that a check began noteworthily late, or was missed.
func Late(p Policy, r Result) bool { return r.Late > max(lateAfter, p.Interval/2) || Missed(p, r) }

// Words are what the latest check saw, and of what: "http :20001/: status 503".
func (s State) Words(p Policy) string {
	if s.Last.Message == "" {
		return p.What
	}
	return p.What + ": " + s.Last.Message
}

// Why a run is unhealthy, as the continuation of "it …".
func Why(p Policy, before Phase, s State) string {
	words := s.Words(p)
	switch {
	case before == Waiting:
		return fmt.Sprintf("was not healthy within %s: %s", p.Deadline, words)
	case p.Failures == 1:
		return "failed its check: " + words
	}
	return fmt.Sprintf("failed its check %d times in a row: %s", s.Failed, words)
}

// Clean makes what a check saw fit for people: printable, on one line, at most
// MaxMessage bytes.
func Clean(s string) string {
	// Each rune of the result is of at least one byte of the source.
	if cut := 4 * MaxMessage; len(s) > cut {
		s = s[:cut]
	}
	var b strings.Builder
	gap := false
	for _, r := range strings.ToValidUTF8(s, "") {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) {
			gap = true
			continue
		}
		if gap && b.Len() > 0 {
			b.WriteByte(' ')
		}
		gap = false
		b.WriteRune(r)
	}
	out := b.String()
	if len(out) <= MaxMessage {
		return out
	}
	return strings.ToValidUTF8(out[:MaxMessage-len("…")], "") + "…"
}
