package schedules

import (
	"bytes"
	"crypto/sha256"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/schedules/plan"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// ruleOf returns the rule of a job, and a hash of its schedule. Without a schedule the rule never fires.
func ruleOf(k state.JobKey, spec *nusav1.JobSpec) (plan.Rule, []byte) {
	never := plan.Rule{Job: k.String(), Next: func(time.Time) (time.Time, bool) { return time.Time{}, false }}
	s := spec.GetSchedule()
	if s == nil {
		return never, nil
	}
	when, err := job.RuleOf(s)
	if err != nil {
		return never, nil // a later version of Nusa stored it
	}
	raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(s) // cannot fail: it was decoded
	hash := sha256.Sum256(raw)
	return plan.Rule{
		Job: k.String(), Next: remembered(when.Next), Jitter: s.GetJitter().AsDuration(), Overlap: plan.Overlap(word(s.GetOverlap().String(), "OVERLAP_")),
		Buffer: int(s.GetBuffer()), CatchUp: s.GetCatchUp().AsDuration(), PauseAfter: int(s.GetPauseAfterFailures()),
	}, hash[:8]
}

// zoneOf returns the time zone of a schedule. A zone that this server does not know counts as UTC.
func zoneOf(s *nusav1.Schedule) *time.Location {
	zone, err := time.LoadLocation(s.GetTimeZone())
	if err != nil {
		return time.UTC
	}
	return zone
}

// remembered returns a function that remembers its latest results. A costly rule takes some ten milliseconds, and
// the lock is held for some of the calls.
func remembered(next func(time.Time) (time.Time, bool)) func(time.Time) (time.Time, bool) {
	type result struct {
		after, at time.Time
		ok        bool
	}
	var mu sync.Mutex
	var latest [4]result
	place := 0
	return func(after time.Time) (time.Time, bool) {
		mu.Lock()
		i := slices.IndexFunc(latest[:], func(r result) bool { return r.after.Equal(after) && !after.IsZero() })
		if i >= 0 {
			defer mu.Unlock()
			return latest[i].at, latest[i].ok
		}
		mu.Unlock()
		at, ok := next(after)
		mu.Lock()
		defer mu.Unlock()
		latest[place] = result{after, at, ok}
		place = (place + 1) % len(latest)
		return at, ok
	}
}

// word returns an enumeration's value as people write it.
func word(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

// stateOf returns the state of a schedule. A job that was stopped meanwhile, or whose schedule has
// changed, begins at its latest submit.
func stateOf(e *entry, run int64) plan.State {
	rec := e.rec
	fresh := plan.State{Decided: e.submitted}
	switch {
	case rec == nil:
		return fresh
	case rec.GetRun() != run:
		fresh.Skipped, fresh.Missed = rec.GetSkipped(), rec.GetMissed()
		return fresh
	case !bytes.Equal(rec.GetScheduleHash(), e.hash):
		fresh.Paused, fresh.PauseReason, fresh.Skipped, fresh.Missed = rec.GetPaused(), rec.GetPauseReason(), rec.GetSkipped(), rec.GetMissed()
		return fresh
	}
	s := plan.State{
		Decided: time.Unix(rec.GetDecided(), 0), Paused: rec.GetPaused(), PauseReason: rec.GetPauseReason(),
		BackfillAt: time.Unix(rec.GetBackfillAt(), 0), BackfillTo: time.Unix(rec.GetBackfillTo(), 0), BackfillLeft: int(rec.GetBackfillLeft()),
		Failures: int(rec.GetFailures()), Skipped: rec.GetSkipped(), SkipReason: rec.GetSkipReason(), Missed: rec.GetMissed(),
	}
	for _, at := range rec.GetWaiting() {
		s.Waiting = append(s.Waiting, time.Unix(at, 0))
	}
	return s
}

// recordOf is the reverse of stateOf.
func recordOf(e *entry, run int64, s plan.State) *nusav1.ScheduleRecord {
	rec := &nusav1.ScheduleRecord{
		Decided: s.Decided.Unix(), Run: run, ScheduleHash: e.hash, Paused: s.Paused, PauseReason: s.PauseReason,
		Failures: int32(s.Failures), Skipped: s.Skipped, SkipReason: s.SkipReason, Missed: s.Missed,
	}
	if s.BackfillLeft > 0 {
		rec.BackfillAt, rec.BackfillTo, rec.BackfillLeft = s.BackfillAt.Unix(), s.BackfillTo.Unix(), int32(s.BackfillLeft)
	}
	for _, at := range s.Waiting {
		rec.Waiting = append(rec.Waiting, at.Unix())
	}
	return rec
}

// runsOf returns some active runs of an entry, in the order in which they began. The lock is held.
func (b *Book) runsOf(e *entry, names map[string]struct{}) []plan.Run {
	out := make([]plan.Run, 0, len(names))
	for _, rec := range sorted(e, maps.Keys(names)) {
		r := rec.GetRun()
		to, _, stopping := b.jobState(state.JobKey{Namespace: e.key.Namespace, Name: r.GetName()})
		out = append(out, plan.Run{
			Name: r.GetName(), Backfill: r.GetTrigger() == nusav1.JobRunTrigger_JOB_RUN_TRIGGER_BACKFILL,
			State: planState(to), Stopping: stopping,
		})
	}
	return out
}

// sorted returns the records of some runs of an entry, in the order in which they began.
func sorted(e *entry, names iter.Seq[string]) (out []*nusav1.RunRecord) {
	for name := range names {
		out = append(out, e.runs[name])
	}
	slices.SortFunc(out, func(x, y *nusav1.RunRecord) int {
		if c := x.GetRun().GetBegan().AsTime().Compare(y.GetRun().GetBegan().AsTime()); c != 0 {
			return c
		}
		return strings.Compare(x.GetRun().GetName(), y.GetRun().GetName())
	})
	return out
}

func planState(s nusav1.JobRunState) plan.RunState {
	switch s {
	case nusav1.JobRunState_JOB_RUN_STATE_COMPLETE:
		return plan.Complete
	case nusav1.JobRunState_JOB_RUN_STATE_FAILED:
		return plan.Failed
	case nusav1.JobRunState_JOB_RUN_STATE_STOPPED:
		return plan.Stopped
	}
	return plan.Active
}

// Removed is the message of a run whose job was removed before it ended.
const Removed = "its job was removed"

func (b *Book) jobState(k state.JobKey) (to nusav1.JobRunState, message string, stopping bool) {
	if b.flows.State != nil && b.st.Jobs[k] == nil {
		if to, message, stopping, known := b.flows.State(k); known {
			return to, message, stopping
		}
	}
	return RunState(b.st, k)
}

// RunState returns the state of a run by its job, how it ended, and whether it has the order to stop. A
// run is active while an instance of it may run. The lock is held.
func RunState(st *state.State, k state.JobKey) (to nusav1.JobRunState, message string, stopping bool) {
	const active, stopped = nusav1.JobRunState_JOB_RUN_STATE_ACTIVE, nusav1.JobRunState_JOB_RUN_STATE_STOPPED
	j := st.Jobs[k]
	if j == nil || j.Record == nil {
		line := state.Line(st, k.String())
		switch {
		case line != nil:
			return runState(line.GetStatus().GetState(), line.GetStopped()), line.GetStatus().GetMessage(), false
		case !st.History.Certain(k.String()):
			return active, "", false
		}
		return stopped, Removed, false
	}
	if j.Record.Stopped() {
		if j.Slots.Len() > 0 {
			return active, "", true
		}
		return stopped, "stopped", false
	}
	status := j.Status(st.Sight())
	if !jobstatus.HasEnded(status.GetState()) {
		return active, "", false
	}
	for _, g := range status.GetGroups() {
		if c := g.GetCounts(); c.GetPending()+c.GetStarting()+c.GetRunning()+c.GetLost()+c.GetUnknown()+c.GetStopping() > 0 {
			return active, "", false
		}
	}
	return runState(status.GetState(), false), status.GetMessage(), false
}

func runState(s nusav1.JobState, stopped bool) nusav1.JobRunState {
	switch {
	case stopped:
		return nusav1.JobRunState_JOB_RUN_STATE_STOPPED
	case s == nusav1.JobState_JOB_STATE_COMPLETE:
		return nusav1.JobRunState_JOB_RUN_STATE_COMPLETE
	}
	return nusav1.JobRunState_JOB_RUN_STATE_FAILED
}

// line describes a job that begins runs for lists. The lock is held.
func (b *Book) line(e *entry, run int64) string {
	text := "waits for dispatches"
	if e.spec.GetSchedule() != nil {
		s := stateOf(e, run)
		text = "no time follows"
		if next, ok := e.rule.Next(s.Decided); ok {
			text = "next run " + next.In(e.zone).Format(time.RFC3339)
		}
		if s.Paused {
			text = "paused"
			if s.PauseReason != "" {
				text += ": " + s.PauseReason
			}
		}
	}
	n := len(e.active)
	if e.ofWorkflow() {
		n = b.flows.Active(e.key)
	}
	switch n {
	case 0:
		return text
	case 1:
		return text + "; 1 run is active"
	default:
		return text + "; " + strconv.Itoa(n) + " runs are active"
	}
}
