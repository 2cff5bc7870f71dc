package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// Overlap says what happens if a run is due while an earlier one has not ended.
type Overlap string

// The overlap rules: see nusav1.Overlap.
const (
	Skip      Overlap = "skip"
	BufferOne Overlap = "buffer_one"
	BufferAll Overlap = "buffer_all"
	Cancel    Overlap = "cancel"
	Terminate Overlap = "terminate"
	Allow     Overlap = "allow"
)

const (
	// mostActive bounds the runs of a schedule that have not ended.
	mostActive = 100
	// mostDecided bounds the times that one step decides.
	mostDecided = 1000
	// mostAhead bounds how far the latest decided time may be in the future. It is more than the clocks of
	// servers differ.
	mostAhead = time.Hour
	// mostStops bounds the runs that one step stops: each is written whole.
	mostStops = 1
)

// Rule is a schedule.
type Rule struct {
	// Job names the job, for the jitter.
	Job string
	// Next returns the first time after a time.
	Next func(time.Time) (time.Time, bool)
	// Jitter is the longest delay of a run.
	Jitter  time.Duration
	Overlap Overlap
	// Buffer is how many times may wait with BufferAll.
	Buffer int
	// CatchUp is how late a run may begin.
	CatchUp time.Duration
	// PauseAfter is the number of failed runs in a row after which the schedule pauses; 0: never.
	PauseAfter int
}

// State is what is stored of a schedule.
type State struct {
	// Decided: every time up to this one has a run, waits, or was skipped.
	Decided     time.Time
	Paused      bool
	PauseReason string
	// Waiting are times that wait for the end of a run, the first one first.
	Waiting []time.Time
	// The backfill: the time that has begun last, the first time after the backfill, and how many are left.
	BackfillAt, BackfillTo time.Time
	BackfillLeft           int
	// Failures are failed runs in a row.
	Failures int
	// Skipped counts times without a run, and SkipReason says why the latest one has none. Missed counts
	// times that were too late.
	Skipped    int64
	SkipReason string
	Missed     int64
}

// RunState is the state of a run.
type RunState int

// The states of a run.
const (
	Active RunState = iota
	Complete
	Failed
	Stopped
)

// Run is a run as the caller knows it.
type Run struct {
	Name     string
	State    RunState
	Backfill bool
	// Stopping: the run has the order to stop.
	Stopping bool
	// Counted: a former step has seen the end of the run.
	Counted bool
}

// Start is a run to begin.
type Start struct {
	Time    time.Time
	Trigger Trigger
}

// Stop is a run to stop, with the reason.
type Stop struct{ Name, Why string }

// Skipped is a time without a run, with the reason.
type Skipped struct {
	Time time.Time
	Why  string
}

// Plan is what follows from a step. State and everything else belong into one transaction.
type Plan struct {
	State State
	// Start is nil if no run begins. A step begins at most one.
	Start *Start
	Stop  []Stop
	// Skipped are the times that get no run, and Missed is how many were too late. MissedFrom is the
	// first of these.
	Skipped    []Skipped
	Missed     int64
	MissedFrom time.Time
	// Paused: this step paused the schedule.
	Paused bool
	// Again: call Step again at once. Otherwise call it at Wake, and when a run has ended. A zero Wake
	// means that no time follows.
	Again bool
	Wake  time.Time
}

// Count counts runs that have ended, and decides nothing else.
func Count(r Rule, s State, ended []Run) Plan {
	p := Plan{State: s, Again: true}
	p.count(&r, ended)
	return p
}

// Step decides what follows for a schedule at a time. runs are those that a former step began. A second
// call with the state of the first one decides nothing again.
func Step(r Rule, s State, now time.Time, runs []Run) Plan {
	p := Plan{State: s}
	p.State.Waiting = slices.Clone(s.Waiting)
	p.count(&r, runs)
	if p.State.Paused {
		return p
	}
	if p.State.Decided.After(now.Add(mostAhead)) {
		// A server with a wrong clock has decided times that have not come. Each time has a name of its own, so
		// those for which it began runs get no second one while the history has them.
		p.State.Decided = now
		p.State.Waiting = slices.DeleteFunc(p.State.Waiting, func(t time.Time) bool { return t.After(now) })
	}
	busy := activeRuns(runs)
	if len(p.State.Waiting) > 0 && len(busy) == 0 {
		p.Start = &Start{Time: p.State.Waiting[0]}
		p.State.Waiting, p.Again = p.State.Waiting[1:], true
		return p
	}
	p.decide(&r, now, busy)
	if p.Start == nil && !p.Again {
		p.backfill(&r, busy)
	}
	return p
}

// count counts the runs that have ended since the last step.
func (p *Plan) count(r *Rule, runs []Run) {
	for _, run := range runs {
		switch {
		case run.Counted || run.State == Active || run.State == Stopped:
			continue
		case run.State == Complete:
			p.State.Failures = 0
			continue
		}
		p.State.Failures++
		if r.PauseAfter > 0 && p.State.Failures >= r.PauseAfter && !p.State.Paused {
			p.State.Paused, p.Paused = true, true
			p.State.PauseReason = fmt.Sprintf("%d runs in a row have failed, the last one is %s", p.State.Failures, run.Name)
			if p.State.Failures == 1 {
				p.State.PauseReason = "run " + run.Name + " has failed"
			}
		}
	}
}

func activeRuns(runs []Run) (out []Run) {
	for _, run := range runs {
		if run.State == Active {
			out = append(out, run)
		}
	}
	return out
}

// decide decides the times that are due, up to the first one that begins a run.
func (p *Plan) decide(r *Rule, now time.Time, busy []Run) {
	for range mostDecided {
		t, ok := r.Next(p.State.Decided)
		if !ok {
			return
		}
		if due := r.due(t); due.After(now) {
			p.Wake = due
			return
		}
		late := now.Sub(t) > r.Jitter+r.CatchUp
		if !late && (r.Overlap == Cancel || r.Overlap == Terminate) && p.stop(busy, "a later run is due") {
			return // first all but one
		}
		p.State.Decided = t
		if late {
			p.miss(t)
			continue
		}
		if p.one(r, t, busy) {
			p.Again = true
			return
		}
	}
	// So many times were too late that they are not counted one by one.
	if late := now.Add(-r.Jitter - r.CatchUp - time.Second); p.Missed == mostDecided && late.After(p.State.Decided) {
		p.State.Decided = late
	}
	p.Again = true
}

func (p *Plan) miss(t time.Time) {
	if p.Missed == 0 {
		p.MissedFrom = t
	}
	p.Missed++
	p.State.Missed++
}

func (p *Plan) skip(t time.Time, format string, args ...any) {
	why := fmt.Sprintf(format, args...)
	p.Skipped = append(p.Skipped, Skipped{t, why})
	p.State.Skipped++
	p.State.SkipReason = why
}

// one decides a time that is due. It reports whether a run begins.
func (p *Plan) one(r *Rule, t time.Time, busy []Run) (begins bool) {
	switch {
	case len(busy) >= mostActive:
		p.skip(t, "%d runs have not ended", len(busy))
		return false
	case len(busy) == 0 && len(p.State.Waiting) == 0, r.Overlap == Allow, plant.Is(plant.OverlapForgotten):
	case backfilling(busy):
		p.behindBackfill(r, t, busy[0].Name)
		return false
	case r.Overlap == BufferOne, r.Overlap == BufferAll:
		most := 1
		if r.Overlap == BufferAll {
			most = r.Buffer
		}
		if len(p.State.Waiting) >= most {
			p.skip(t, "%d times wait for the end of run %s", len(p.State.Waiting), busy[0].Name)
			return false
		}
		p.State.Waiting = append(p.State.Waiting, t)
		return false
	case r.Overlap == Cancel:
		for _, earlier := range p.State.Waiting {
			p.skip(earlier, "a later run is due")
		}
		p.State.Waiting = []time.Time{t}
		return false
	case r.Overlap == Terminate:
	default:
		p.skip(t, "run %s has not ended", busy[0].Name)
		return false
	}
	p.Start = &Start{Time: t}
	return true
}

// backfilling reports whether every active run is one of a backfill.
func backfilling(busy []Run) bool {
	return len(busy) > 0 && !slices.ContainsFunc(busy, func(run Run) bool { return !run.Backfill })
}

// behindBackfill lets a time wait for the end of a run of a backfill, which no rule stops.
func (p *Plan) behindBackfill(r *Rule, t time.Time, run string) {
	switch n := len(p.State.Waiting); {
	case n == 0, r.Overlap == BufferAll && n < r.Buffer:
	case r.Overlap == Cancel, r.Overlap == Terminate:
		for _, earlier := range p.State.Waiting {
			p.skip(earlier, "a later run is due")
		}
		p.State.Waiting = nil
	default:
		p.skip(t, "%d times wait for the end of run %s", n, run)
		return
	}
	p.State.Waiting = append(p.State.Waiting, t)
}

// stop stops the first runs that have no order to stop. It reports whether more are left, for the next step.
func (p *Plan) stop(busy []Run, why string) (more bool) {
	for _, run := range busy {
		switch {
		case run.Backfill, run.Stopping, slices.Contains(p.Stop, Stop{run.Name, why}):
		case len(p.Stop) == mostStops:
			p.Again = true
			return true
		default:
			p.Stop = append(p.Stop, Stop{run.Name, why})
		}
	}
	return false
}

// backfill begins the next run of a backfill if none is active.
func (p *Plan) backfill(r *Rule, busy []Run) {
	s := &p.State
	if s.BackfillLeft == 0 || slices.ContainsFunc(busy, func(run Run) bool { return run.Backfill || r.Overlap != Allow }) {
		return
	}
	t, ok := r.Next(s.BackfillAt)
	if !ok || !t.Before(s.BackfillTo) {
		s.BackfillLeft = 0
		return
	}
	if !plant.Is(plant.BackfillStands) {
		s.BackfillAt = t
	}
	s.BackfillLeft--
	p.Start, p.Again = &Start{Time: t, Trigger: Backfill}, true
}

// Now decides about a run that a caller asks for. Its time is a whole second. why is not empty if the overlap rule
// allows none.
func Now(r Rule, s State, now time.Time, runs []Run) (p Plan, why string) {
	p = Plan{State: s, Start: &Start{Time: now.Truncate(time.Second), Trigger: Manual}, Again: true}
	busy := activeRuns(runs)
	switch {
	case len(busy) >= mostActive:
		return p, fmt.Sprintf("%d runs have not ended", len(busy))
	case len(busy) > 0 && r.Overlap == Terminate:
		if p.stop(busy, "a later run begins") {
			return p, fmt.Sprintf("%d runs have not ended: stop them first", len(busy))
		}
	case len(busy) > 0 && r.Overlap != Allow && !plant.Is(plant.TriggerOverlaps):
		return p, fmt.Sprintf("run %s has not ended, and overlap is %s", busy[0].Name, r.Overlap)
	}
	return p, ""
}

// Fill returns the state with a backfill of n times: those from a time on and before another one. It returns false
// if a backfill has runs left.
func Fill(s State, from, to time.Time, n int) (next State, ok bool) {
	if s.BackfillLeft > 0 {
		return s, false
	}
	s.BackfillAt, s.BackfillTo, s.BackfillLeft = from.Add(-time.Second), to, n
	return s, true
}

// Between counts the times from a time on and before another one, at most `most` + 1.
func Between(r Rule, from, to time.Time, most int) int {
	n := 0
	for at := from.Add(-time.Second); n <= most; n++ {
		next, ok := r.Next(at)
		if !ok || !next.Before(to) {
			break
		}
		at = next
	}
	return n
}
