package health

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Bounds of the checks and of their reports.
const (
	// MaxMessage bounds the message of a check, in bytes.
	MaxMessage = 256
	// minPause is the shortest pause between two checks of a task that is not
	// healthy yet.
	minPause = 100 * time.Millisecond
	// waitDivisor sets the pauses before the first healthy check. The pause is the time
	// since the run's start divided by waitDivisor. So a task is seen healthy at most a
	// quarter later than it becomes healthy. A task that takes half a minute is checked
	// about 25 times.
	waitDivisor = 4
	// reportEvery is the shortest time between two reports without a change of phase,
	// because each report goes through the region's log.
	reportEvery = 5 * time.Second
	// firstReportAfter is how long the checks of a new run may fail before a report says
	// so. Most runs become healthy earlier.
	firstReportAfter = time.Second
	// lateAfter is the delay above which a check counts as late. If half the interval is
	// longer, a check counts as late only above half the interval.
	lateAfter = time.Second
)

// Policy is the ordered policy of a check.
type Policy struct {
	// What names the checked target in messages, for example "http :20001/healthz".
	What string
	// Interval is the time between two checks of a healthy task. Timeout bounds one check.
	// Deadline is the time within which a new run must become healthy. All are positive.
	Interval, Timeout, Deadline time.Duration
	// Failures is the number of failed checks in a row that makes a healthy task unhealthy.
	// It is at least 1.
	Failures int
}

// Phase is the health of a run. It only advances, because the agent replaces an unhealthy
// run.
type Phase int

// The phases.
const (
	// Waiting: no check has passed yet.
	Waiting Phase = iota
	// Healthy: a check has passed, and too few failed in a row since then.
	Healthy
	// Unhealthy: too many checks failed in a row, or none passed before the deadline.
	Unhealthy
)

var phaseNames = [...]string{"waiting", "healthy", "unhealthy"}

// String returns the phase's lower-case name.
func (p Phase) String() string { return phaseNames[p] }

// Result is the result of one check.
type Result struct {
	// Began is the time at which the check began.
	Began time.Time
	OK    bool
	// Message describes what the check saw, in the form that Clean returns.
	Message string
	// Late is the delay between the due time and the begin of the check, because the agent
	// was busy.
	Late time.Duration
	// Overslept is the delay between the time-out and the time at which the agent noticed
	// the time-out. The agent did not run in that time, so the response may have come
	// before the time-out.
	Overslept time.Duration
}

// State is the state of a run's checks.
type State struct {
	Phase Phase
	// Since is the time of the last change of phase.
	Since time.Time
	// Last is the latest result. It is zero before the first check.
	Last Result
	// Failed is the number of failed checks in a row.
	Failed int

	begun        time.Time // the begin of the run; Deadline counts from begun
	lastReported time.Time
	unreported   bool // the results have changed since lastReported
}

// Effect is what the caller must do after a result.
type Effect struct {
	// Next is the time until the next check. 0 means no further check.
	Next time.Duration
	// Changed says that the phase has changed.
	Changed bool
	// Report says that the state must be reported.
	Report bool
}

// Begin returns the state of a run that has just begun. The first check is due at once.
func Begin(now time.Time) State {
	return State{Since: now, begun: now, lastReported: now.Add(firstReportAfter - reportEvery)}
}

// Resume returns the state of a run that began before the agent's restart, with its
// recorded phase. Earlier failures do not count, because the checks paused while no agent
// ran. first is the time until the first check. random, within 0..1, spreads the first
// checks of healthy runs over the interval.
func Resume(p Policy, phase Phase, since, now time.Time, random float64) (s State, first time.Duration) {
	s = Begin(now)
	if phase != Healthy {
		return s, 0
	}
	s.Phase, s.Since = Healthy, since
	return s, time.Duration(random * float64(p.Interval))
}

// Step returns the state after a result. random, within 0..1, varies the pauses, so that
// tasks that began together are not always checked together.
func Step(p Policy, s State, r Result, now time.Time, random float64) (State, Effect) {
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
		// The agent was too slow. The result says nothing about the task.
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
	s.unreported = s.unreported || r.OK != was.Last.OK || !r.OK && r.Message != was.Last.Message || Late(p, r) != Late(p, was.Last)
	if e.Changed || s.unreported && now.Sub(s.lastReported) >= reportEvery {
		e.Report, s.lastReported, s.unreported = true, now, false
	}
	e.Next = s.next(p, now, random)
	return s, e
}

// next returns the time until the next check.
func (s State) next(p Policy, now time.Time, random float64) time.Duration {
	wait := p.Interval
	switch s.Phase {
	case Unhealthy:
		return 0
	case Waiting:
		wait = min(max(now.Sub(s.begun)/waitDivisor, minPause), p.Interval)
	}
	wait = time.Duration(float64(wait) * (0.9 + 0.2*random))
	if left := s.begun.Add(p.Deadline).Sub(now); s.Phase == Waiting && left < wait {
		wait = max(left, minPause) // the check at the deadline decides
	}
	return wait
}

// Missed reports whether a check timed out while the agent itself did not run for a large
// part of the time.
func Missed(p Policy, r Result) bool { return !r.OK && r.Overslept > p.Timeout/4+minPause }

// Late reports whether a check began too late or was missed.
func Late(p Policy, r Result) bool { return r.Late > max(lateAfter, p.Interval/2) || Missed(p, r) }

// Describe returns the target and what the latest check saw, for example "http :20001/:
// status 503".
func (s State) Describe(p Policy) string {
	if s.Last.Message == "" {
		return p.What
	}
	return p.What + ": " + s.Last.Message
}

// UnhealthyReason says why a run is unhealthy. The text continues a sentence that begins
// with "it".
func UnhealthyReason(p Policy, before Phase, s State) string {
	seen := s.Describe(p)
	switch {
	case before == Waiting:
		return fmt.Sprintf("was not healthy within %s: %s", p.Deadline, seen)
	case p.Failures == 1:
		return "failed its check: " + seen
	}
	return fmt.Sprintf("failed its check %d times in a row: %s", s.Failed, seen)
}

// Clean returns a check's message on one line, with printable characters only and at most
// MaxMessage bytes.
func Clean(s string) string {
	// Each byte of the source adds at most three bytes to the result, so the rest of a long
	// source cannot matter.
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
