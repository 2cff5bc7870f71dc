package schedules

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/schedules/plan"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

const (
	// maxMessage bounds the bytes of the message of a run.
	maxMessage = 512
	// mostRunsOfAll bounds the runs of all jobs that are not forgotten.
	mostRunsOfAll = 1_000_000
	// mostEnds bounds the records of ended runs that one step writes.
	mostEnds = 40
	// forgetEvery is how often the old runs of a job are forgotten at most.
	forgetEvery = 5 * time.Second
	// together is how many runs one transaction forgets, and togetherBytes about how many bytes it writes
	// for that.
	together, togetherBytes = 20, 256 << 10
)

// step is what follows for an entry now.
type step struct {
	plan plan.Plan
	// next is the record of the schedule to store, or nil.
	next *nusav1.ScheduleRecord
	// ended are the runs whose records must say that they have ended.
	ended []string
}

func (s *step) idle() bool {
	return s.plan.Start == nil && s.next == nil && len(s.ended) == 0 && len(s.plan.Stop) == 0
}

// stepOf returns what follows for an entry. decides: its job is stored as the entry has it, and run is
// its Job.run. The lock is held.
func (b *Book) stepOf(e *entry, decides bool, run int64, now time.Time) (s step) {
	decides = decides && e.spec.GetSchedule() != nil
	var runs, ended []plan.Run
	if decides {
		runs = b.runsOf(e, e.active)
		ended = slices.DeleteFunc(slices.Clone(runs), func(r plan.Run) bool { return r.State == plan.Active })
		runs = append(runs, again(b, e)...)
	} else {
		ended = slices.DeleteFunc(b.runsOf(e, e.over), func(r plan.Run) bool { return r.State == plan.Active })
	}
	many := len(ended) > mostEnds
	if many {
		ended = ended[:mostEnds]
	}
	for _, r := range ended {
		s.ended = append(s.ended, r.Name)
	}
	if !decides {
		return s
	}
	before := stateOf(e, run)
	if many {
		s.plan = plan.Count(e.rule, before, ended)
	} else {
		s.plan = plan.Step(e.rule, before, now, runs)
	}
	stored := e.rec
	if stored == nil {
		stored = recordOf(e, run, before)
	}
	if next := recordOf(e, run, s.plan.State); !proto.Equal(next, stored) {
		s.next = next
	}
	return s
}

// again returns the runs of a workflow that a retry runs again, although their records say that they have ended. The
// lock is held.
func again(b *Book, e *entry) (out []plan.Run) {
	for _, name := range slices.Sorted(maps.Keys(e.live)) {
		if _, active := e.active[name]; active {
			continue
		}
		to, _, stopping := b.jobState(state.JobKey{Namespace: e.key.Namespace, Name: name})
		if planState(to) == plan.Active {
			out = append(out, plan.Run{Name: name, Stopping: stopping})
		}
	}
	return out
}

// findEnds looks at all active runs once in recheck, although nothing was noticed. The lock is held.
func (b *Book) findEnds(e *entry, now time.Time) {
	if now.Sub(e.checked) < recheck {
		return
	}
	e.checked = now
	for name := range e.active {
		if b.hasEnded(e, name) {
			e.over[name] = struct{}{}
		}
	}
}

// may returns why this server must not begin runs now, if so. The lock is held.
func (b *Book) may() error {
	switch {
	case b.st.GlobalLevel < state.TemplateLevel:
		return status.Error(codes.FailedPrecondition, "some global servers have an earlier version of Nusa: upgrade them first")
	case b.st.OldCopy():
		return status.Error(codes.FailedPrecondition, "the store is an old copy: see nusa server recover")
	}
	return nil
}

// mayBegin reports whether this server may begin runs of an entry. The lock is held.
func (b *Book) mayBegin(e *entry) bool {
	return e.record != nil && !e.record.Stopped() && b.may() == nil
}

// advance makes steps until nothing is left to decide now.
func (b *Book) advance(ctx context.Context, e *entry) error {
	e.one.Lock()
	defer e.one.Unlock()
	for range stepsInTurn {
		b.remember(e)
		b.st.Lock()
		b.refresh(e)
		if b.byJob[e.key] != e || waits(b, e) { // it is forgotten, or nothing can be decided yet
			b.st.Unlock()
			return nil
		}
		now, run := time.Now(), int64(0)
		b.findEnds(e, now)
		if j := b.st.Jobs[e.key]; j != nil {
			run = j.Record.Run(j.Revision)
		}
		s := b.stepOf(e, b.mayBegin(e), run, now)
		old, tidyAt := b.tooOld(e, now)
		if s.idle() && len(old) == 0 {
			b.rest(e, run, s.plan.Wake, tidyAt, now)
			forget := e.rec != nil && len(e.runs) == 0 && b.gone(e)
			b.st.Unlock()
			if forget {
				return b.dropSchedule(ctx, e)
			}
			return nil
		}
		b.st.Unlock()
		if s.idle() {
			if err := b.forgetRuns(ctx, e, old); err != nil {
				return err
			}
			continue
		}
		prepared, wrong := prepare(b, e)
		if err := b.commit(ctx, func(t *state.Tx) error { return b.take(t, e, prepared, wrong) }); err != nil {
			return err
		}
	}
	b.st.Lock()
	defer b.st.Unlock()
	b.clock.Set(e, time.Now())
	return nil
}

// remember finds the next time of a schedule before the lock is held for it.
func (b *Book) remember(e *entry) {
	b.st.Lock()
	b.refresh(e)
	var run int64
	if j := b.st.Jobs[e.key]; j != nil {
		run = j.Record.Run(j.Revision)
	}
	next, at := e.rule.Next, stateOf(e, run).Decided
	b.st.Unlock()
	if next != nil {
		_, _ = next(at)
	}
}

// take makes one step in a transaction. If the transaction changes the job, runs only end: the change
// wakes the loop. prepared is what the run of a workflow needs, and wrong why it cannot begin.
func (b *Book) take(t *state.Tx, e *entry, prepared any, wrong error) error {
	rec, rev := t.Job(e.key)
	same := rec != nil && rec == e.record && rev != 0
	var run int64
	if same {
		run = rec.Run(rev)
	}
	s := b.stepOf(e, same && b.mayBegin(e), run, time.Now())
	for _, name := range s.ended {
		if err := b.noteEnd(t, e, name); err != nil {
			return err
		}
	}
	if s.plan.Start != nil {
		if err := b.start(t, e, &s.plan, prepared, wrong); err != nil {
			return err
		}
		s.next = recordOf(e, run, s.plan.State)
	}
	for _, x := range s.plan.Stop {
		if err := stop(b, t, state.JobKey{Namespace: e.key.Namespace, Name: x.Name}, x.Why); err != nil {
			return err
		}
	}
	tell(t, e.key.String(), &s.plan)
	if s.next == nil {
		return nil
	}
	return state.PutOther(t, scheduleKey(e.key), s.next)
}

// tell adds the events of a plan.
func tell(t *state.Tx, subject string, p *plan.Plan) {
	if n := len(p.Skipped); n > 0 {
		last := p.Skipped[n-1]
		t.Event("schedule.skipped", subject, "%d times, the last one %s: %s", n, last.Time.UTC().Format(time.RFC3339), last.Why)
	}
	if p.Missed > 0 {
		t.Event("schedule.missed", subject, "%d times from %s on: they were due more than catch_up ago", p.Missed, p.MissedFrom.UTC().Format(time.RFC3339))
	}
	if p.Paused {
		t.Event("schedule.paused", subject, "%s", p.State.PauseReason)
	}
}

// start begins the run of a plan, unless its job exists already, or there is no room for its record.
func (b *Book) start(t *state.Tx, e *entry, p *plan.Plan, prepared any, wrong error) error {
	trigger := map[plan.Trigger]nusav1.JobRunTrigger{
		plan.BySchedule: nusav1.JobRunTrigger_JOB_RUN_TRIGGER_SCHEDULE, plan.Manual: nusav1.JobRunTrigger_JOB_RUN_TRIGGER_MANUAL,
		plan.Backfill: nusav1.JobRunTrigger_JOB_RUN_TRIGGER_BACKFILL,
	}[p.Start.Trigger]
	name := b.nameOf(t, e, p.Start)
	k := state.JobKey{Namespace: e.key.Namespace, Name: name}
	if _, _, err := state.Stored(t, k); errors.Is(err, state.ErrRecall) {
		return NeedsRecall{k}
	} else if err != nil {
		return err
	}
	why := ""
	switch {
	case wrong != nil:
		why = "the run cannot begin: " + status.Convert(wrong).Message()
	case e.ofWorkflow() && prepared == nil:
		return errUnprepared // it has just become a workflow: the next step prepares it
	default:
		var err error
		if why, err = beginNext(b, t, e, next{name, p.Start.Time, trigger, prepared}); err != nil {
			return err
		}
	}
	if why != "" {
		p.State.Skipped++
		p.State.SkipReason = why
		t.Event("schedule.skipped", e.key.String(), "%s", why)
	}
	return nil
}

func (b *Book) nameOf(t *state.Tx, e *entry, s *plan.Start) string {
	return plan.Name(e.key.Name, s.Time, s.Trigger, func(name string) bool { return exists(b, t, e, name) })
}

// noteEnd stores that a run has ended.
func (b *Book) noteEnd(t *state.Tx, e *entry, name string) error {
	to, message, _ := b.jobState(state.JobKey{Namespace: e.key.Namespace, Name: name})
	next := proto.CloneOf(e.runs[name])
	next.Run.State, next.Run.Message, next.Run.Ended = to, clip(message), timestamppb.Now()
	return state.PutOther(t, runKey(e.key, name), next)
}

func clip(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), maxMessage)], "")
}

// rest notes when the loop must decide about an entry again, and what lists show. The lock is held.
func (b *Book) rest(e *entry, run int64, wake, tidyAt, now time.Time) {
	b.clock.Set(e, wake)
	if !wake.IsZero() {
		b.clock.Sooner(e, now.Add(mostSleep))
	}
	if !tidyAt.IsZero() {
		b.clock.Sooner(e, tidyAt)
	}
	switch {
	case len(e.active) > 0:
		b.clock.Sooner(e, e.checked.Add(recheck))
	case e.empty() && b.gone(e):
		b.drop(e)
		return
	case e.record == nil:
		b.clock.Sooner(e, now.Add(recheckIdle))
	case !e.record.Stopped() && !b.mayBegin(e):
		b.clock.Sooner(e, now.Add(notYet))
	}
	if e.record == nil {
		return
	}
	if next := b.line(e, run); next != b.st.Templates.Lines[e.key] {
		b.st.Templates.Lines[e.key] = next
		b.st.JobChanged(b.st.Jobs[e.key])
	}
}

// commit commits a change, and reads the history for it if need be.
func (b *Book) commit(ctx context.Context, change func(*state.Tx) error) error {
	return b.recalling(ctx, func() error { _, err := b.term.Commit.Do(ctx, change); return err })
}

// recalling calls commit, and reads the history for it if need be.
func (b *Book) recalling(ctx context.Context, commit func() error) (err error) {
	return Recalling(ctx, b.term, commit)
}

// change commits a change of a schedule that a caller asks for, with an entry of the audit trail. It
// stores no change of an error.
func (b *Book) change(ctx context.Context, e *entry, verb, reason string, change func(*state.Tx, *plan.State) error) error {
	e.one.Lock()
	defer e.one.Unlock()
	err := b.commit(ctx, func(t *state.Tx) error {
		rec, rev := t.Job(e.key)
		if rec == nil || rec != e.record || rev == 0 {
			return state.ErrRecall // it changes with this transaction: the caller tries again
		}
		if err := b.may(); err != nil {
			return err
		}
		run := rec.Run(rev)
		s := stateOf(e, run)
		if err := change(t, &s); err != nil {
			return err
		}
		if err := t.Audit(audit.Entry{Verb: verb, Kind: "job", Namespace: e.key.Namespace, Name: e.key.Name, Reason: reason}); err != nil {
			return err
		}
		return state.PutOther(t, scheduleKey(e.key), recordOf(e, run, s))
	})
	b.st.Lock()
	defer b.st.Unlock()
	b.clock.Sooner(e, time.Now())
	b.st.Templates.Wake.Notify()
	return err
}

// errRunsOfAll is the reason why no run begins while all jobs have mostRunsOfAll.
var errRunsOfAll = errors.New("there are 1,000,000 runs of all jobs, the most there may be: lower history.count of jobs with many")

// gone reports whether the job of an entry does not exist, or begins no runs. The lock is held.
func (b *Book) gone(e *entry) bool {
	if e.record != nil || b.st.History.Unread() {
		return false
	}
	j := b.st.Jobs[e.key]
	return j != nil && j.Record != nil || !state.Exists(b.st, e.key.String())
}

// tooOld returns the runs that the history of an entry has no room for, or when to ask again. Zero: only
// after a change. The lock is held.
func (b *Book) tooOld(e *entry, now time.Time) (names []string, again time.Time) {
	earliest, gone := e.tidied.Add(forgetEvery), b.gone(e) && len(e.runs) > len(e.active)
	switch {
	case !e.untidy && !gone && (e.tidyAt.IsZero() || now.Before(e.tidyAt)):
		return nil, e.tidyAt
	case now.Before(earliest):
		return nil, earliest
	case b.st.History.Unread():
		return nil, now.Add(forgetEvery)
	}
	e.tidyAt = time.Time{}
	limits := e.spec.GetSchedule().GetHistory()
	if limits == nil {
		limits = e.spec.GetParameterized().GetHistory()
	}
	if limits != nil || gone {
		names, e.tidyAt = beyond(e.runs, limits, gone, now)
	}
	if len(names) == 0 {
		e.untidy, e.tidied = false, now
	}
	return names, e.tidyAt
}

// beyond returns the ended runs beyond the limits, and when the next one is too old. all: none may stay.
func beyond(runs map[string]*nusav1.RunRecord, limits *nusav1.RunHistory, all bool, now time.Time) (names []string, next time.Time) {
	var ended []*nusav1.JobRun
	for _, rec := range runs {
		if rec.GetRun().GetEnded() != nil {
			ended = append(ended, rec.GetRun())
		}
	}
	slices.SortFunc(ended, func(x, y *nusav1.JobRun) int { return y.GetEnded().AsTime().Compare(x.GetEnded().AsTime()) })
	for i, r := range ended {
		at := r.GetEnded().AsTime().Add(limits.GetAge().AsDuration())
		if all || i >= int(limits.GetCount()) || !now.Before(at) {
			names = append(names, r.GetName())
			continue
		}
		next = at // the last one is the oldest
	}
	return names, next
}

// forgetRuns forgets the first of some runs.
func (b *Book) forgetRuns(ctx context.Context, e *entry, names []string) error {
	err := b.commit(ctx, func(t *state.Tx) error {
		bytes := 0
		for _, name := range names[:min(len(names), together)] {
			n, err := forgetRun(t, e.key, name)
			if err != nil {
				return err
			}
			if bytes += n; bytes > togetherBytes {
				return nil
			}
		}
		return nil
	})
	return err
}

// dropSchedule forgets a schedule whose job does not exist.
func (b *Book) dropSchedule(ctx context.Context, e *entry) error {
	err := b.commit(ctx, func(t *state.Tx) error {
		if rec, _ := t.Job(e.key); rec.Template() {
			return nil // it has just been submitted again
		}
		return state.DeleteOther(t, scheduleKey(e.key))
	})
	b.st.Lock()
	defer b.st.Unlock()
	b.clock.Set(e, time.Now().Add(notYet))
	return err
}
