package schedules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/schedules/plan"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds of requests.
const (
	maxNext     = 100
	maxRuns     = 1000
	defaultRuns = 100
	maxReason   = 256
	maxBackfill = 1000
)

// Service is the Schedules service of a global server.
type Service struct {
	nusav1.UnimplementedSchedulesServer
	// Current returns the book of the present term, or nil if this server is not active.
	Current func() *Book
}

// book returns the book once its records are read.
func (s *Service) book(ctx context.Context) (*Book, error) {
	b := s.Current()
	if b == nil {
		return nil, state.RPCErrors.Err(state.ErrNotActive)
	}
	return b, state.AwaitRecords(ctx, b.term.Context.Done(), b.ready)
}

func invalid(field, format string, args ...any) error {
	return rpcerr.Invalid(&nusav1.Problem{Field: field, Message: fmt.Sprintf(format, args...)})
}

func keyOf(ref *nusav1.JobRef) state.JobKey {
	return state.JobKey{Namespace: cmp.Or(ref.GetNamespace(), job.DefaultNamespace), Name: ref.GetName()}
}

// found returns the entry of a job that begins runs. what is "schedule" or "parameterized" if the job
// must have that.
func (s *Service) found(ctx context.Context, ref *nusav1.JobRef, what string) (*Book, *entry, error) {
	b, err := s.book(ctx)
	if err != nil {
		return nil, nil, err
	}
	k := keyOf(ref)
	if k.Name == "" || strings.ContainsAny(k.Namespace+k.Name, "/@") || ref.GetRegion() != "" {
		return nil, nil, invalid("job.name", "must name a job of the federation, as NAME or NAMESPACE/NAME")
	}
	b.st.Lock()
	defer b.st.Unlock()
	j := b.st.Jobs[k]
	if j == nil || j.Record == nil {
		if line := state.Line(b.st, k.String()); line != nil {
			return nil, nil, status.Errorf(codes.FailedPrecondition, "job %s is stopped: run its file again", k)
		}
		return nil, nil, rpcerr.NotFound(rpcerr.KindJob, k.String(), fmt.Sprintf("job %s does not exist", k))
	}
	e := b.byJob[k]
	if e == nil && !begins(j.Record) {
		e = &entry{key: k} // it is not noted
	} else {
		e = b.entryOf(k)
		b.refresh(e)
	}
	has := e.spec.GetSchedule() != nil
	if what == "parameterized" {
		has = e.spec.GetParameterized() != nil
	}
	switch {
	case e.spec == nil && j.Record.Type() == place.Workflow:
		return nil, nil, status.Errorf(codes.FailedPrecondition, "workflow %s has no schedule: `nusa workflow list %s` shows its runs", k, k.Name)
	case e.spec == nil:
		return nil, nil, status.Errorf(codes.FailedPrecondition, "job %s has neither schedule nor parameterized, so it begins no runs: give its file one of them, and submit it with nusa job run", k)
	case what == "schedule" && !has:
		return nil, nil, status.Errorf(codes.FailedPrecondition, "job %s has no schedule: begin a run with nusa job dispatch %s", k, k)
	case what != "" && !has:
		return nil, nil, status.Errorf(codes.FailedPrecondition, "job %s has no parameterized: it takes no dispatch; begin a run with nusa job schedule trigger %s", k, k.Name)
	case j.Record.Stopped() && what != "":
		return nil, nil, status.Errorf(codes.FailedPrecondition, "job %s is stopped: run its file again", k)
	}
	return b, e, nil
}

// Get implements nusav1.SchedulesServer.
func (s *Service) Get(ctx context.Context, req *nusav1.GetScheduleRequest) (*nusav1.ScheduleStatus, error) {
	if n := req.GetNext(); n < 0 || n > maxNext {
		return nil, invalid("next", "must be 0..%d", maxNext)
	}
	if n := req.GetRuns(); n < 0 || n > maxRuns {
		return nil, invalid("runs", "must be 0..%d", maxRuns)
	}
	b, e, err := s.found(ctx, req.GetJob(), "")
	if err != nil {
		return nil, err
	}
	return b.status(e, int(req.GetNext()), int(cmp.Or(req.GetRuns(), defaultRuns))), nil
}

// status returns what is known of a schedule, with its next times and latest runs.
func (b *Book) status(e *entry, next, runs int) *nusav1.ScheduleStatus {
	b.st.Lock()
	out := &nusav1.ScheduleStatus{Job: e.key.String(), RunCount: int32(len(e.runs)), Active: int32(len(e.active))}
	for _, rec := range slices.Backward(sorted(e, maps.Keys(e.runs))) {
		if len(out.GetRuns()) == runs {
			break
		}
		out.Runs = append(out.Runs, rec.GetRun())
	}
	out.Workflow = e.spec.GetWorkflow() != nil
	j, rule := b.st.Jobs[e.key], e.rule
	if j == nil || j.Record == nil || e.spec.GetSchedule() == nil {
		b.st.Unlock()
		return out
	}
	s := stateOf(e, j.Record.Run(j.Revision))
	stopped, zone := j.Record.Stopped(), e.spec.GetSchedule().GetTimeZone()
	b.st.Unlock()
	out.Paused, out.PauseReason, out.TimeZone = s.Paused, s.PauseReason, zone
	out.Skipped, out.SkipReason, out.Missed, out.Failures, out.Backfill = s.Skipped, s.SkipReason, s.Missed, int32(s.Failures), int32(s.BackfillLeft)
	for _, at := range s.Waiting {
		out.Waiting = append(out.Waiting, timestamppb.New(at))
	}
	at := s.Decided
	if now := time.Now(); s.Paused && at.Before(now) {
		at = now
	}
	for range next {
		t, ok := rule.Next(at)
		if !ok || stopped {
			break
		}
		out.Next, at = append(out.Next, timestamppb.New(t)), t
	}
	return out
}

// changed commits a change of a schedule, and returns its status.
func (b *Book) changed(ctx context.Context, e *entry, verb, reason string, change func(*state.Tx, *plan.State) error) (*nusav1.ScheduleStatus, error) {
	var err error
	for range recalls {
		if err = b.change(ctx, e, verb, reason, change); !errors.Is(err, state.ErrRecall) {
			break
		}
		b.st.Lock()
		b.refresh(e)
		b.st.Unlock()
	}
	if err != nil {
		return nil, api.StatusOf(err)
	}
	return b.status(e, 1, defaultRuns), nil
}

// Pause implements nusav1.SchedulesServer.
func (s *Service) Pause(ctx context.Context, req *nusav1.PauseScheduleRequest) (*nusav1.ScheduleStatus, error) {
	if len(req.GetReason()) > maxReason {
		return nil, invalid("reason", "has %d bytes, at most %d are allowed", len(req.GetReason()), maxReason)
	}
	b, e, err := s.found(ctx, req.GetJob(), "schedule")
	if err != nil {
		return nil, err
	}
	return b.changed(ctx, e, "pause", req.GetReason(), func(t *state.Tx, s *plan.State) error {
		if !s.Paused {
			t.Event("schedule.paused", e.key.String(), "by a caller%s", prefixed(": ", req.GetReason()))
		}
		s.Paused, s.PauseReason = true, req.GetReason()
		return nil
	})
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// Resume implements nusav1.SchedulesServer.
func (s *Service) Resume(ctx context.Context, req *nusav1.ResumeScheduleRequest) (*nusav1.ScheduleStatus, error) {
	b, e, err := s.found(ctx, req.GetJob(), "schedule")
	if err != nil {
		return nil, err
	}
	return b.changed(ctx, e, "resume", "", func(t *state.Tx, s *plan.State) error {
		if !s.Paused {
			return nil
		}
		t.Event("schedule.resumed", e.key.String(), "by a caller")
		s.Paused, s.PauseReason, s.Failures = false, "", 0
		if now := time.Now(); s.Decided.Before(now) {
			s.Decided = now // the times of the pause are skipped
		}
		return nil
	})
}

// Trigger implements nusav1.SchedulesServer.
func (s *Service) Trigger(ctx context.Context, req *nusav1.TriggerScheduleRequest) (*nusav1.JobRun, error) {
	b, e, err := s.found(ctx, req.GetJob(), "schedule")
	if err != nil {
		return nil, err
	}
	var name string
	b.st.Lock()
	waits := waits(b, e)
	b.st.Unlock()
	if waits {
		return nil, status.Errorf(codes.Unavailable, "the runs of job %s are not read yet: trigger it again", e.key)
	}
	prepared, err := prepare(b, e)
	if err != nil {
		return nil, api.StatusOf(err)
	}
	_, err = b.changed(ctx, e, "trigger", "", func(t *state.Tx, s *plan.State) error {
		p, why := plan.Now(e.rule, *s, time.Now(), append(b.runsOf(e, e.active), again(b, e)...))
		if why != "" {
			return status.Errorf(codes.FailedPrecondition, "job %s begins no run now: %s", e.key, why)
		}
		if e.ofWorkflow() && prepared == nil {
			return status.Errorf(codes.Unavailable, "job %s has just changed: trigger it again", e.key)
		}
		name = b.nameOf(t, e, p.Start)
		switch why, err := beginNext(b, t, e, next{name, p.Start.Time, nusav1.JobRunTrigger_JOB_RUN_TRIGGER_MANUAL, prepared}); {
		case err != nil:
			return err
		case why != "":
			return status.Error(codes.ResourceExhausted, why)
		}
		for _, x := range p.Stop {
			if err := stop(b, t, state.JobKey{Namespace: e.key.Namespace, Name: x.Name}, x.Why); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b.run(e, name)
}

// run returns a run that was stored.
func (b *Book) run(e *entry, name string) (*nusav1.JobRun, error) {
	b.st.Lock()
	defer b.st.Unlock()
	if rec := e.runs[name]; rec != nil {
		return rec.GetRun(), nil
	}
	return nil, status.Errorf(codes.Unavailable, "run %s was stored and forgotten at once", name)
}

// Backfill implements nusav1.SchedulesServer.
func (s *Service) Backfill(ctx context.Context, req *nusav1.BackfillScheduleRequest) (*nusav1.BackfillScheduleResponse, error) {
	b, e, err := s.found(ctx, req.GetJob(), "schedule")
	if err != nil {
		return nil, err
	}
	from, to, now := req.GetFrom().AsTime(), req.GetTo().AsTime(), time.Now()
	switch {
	case !req.GetFrom().IsValid() || !req.GetTo().IsValid():
		return nil, invalid("from", "from and to must be times")
	case !from.Before(to):
		return nil, invalid("to", "%s is not after from, %s", to.Format(time.RFC3339), from.Format(time.RFC3339))
	case to.After(now):
		return nil, invalid("to", "%s is in the future: the schedule runs those times itself", to.Format(time.RFC3339))
	}
	b.st.Lock()
	rule := e.rule
	b.st.Unlock()
	n := plan.Between(rule, from, to, maxBackfill)
	switch {
	case n == 0:
		return nil, invalid("from", "the schedule has no time from %s to %s", from.Format(time.RFC3339), to.Format(time.RFC3339))
	case n > maxBackfill:
		return nil, invalid("to", "more than %d times from %s to %s: make several backfills", maxBackfill, from.Format(time.RFC3339), to.Format(time.RFC3339))
	}
	_, err = b.changed(ctx, e, "backfill", fmt.Sprintf("%d times from %s to %s", n, from.Format(time.RFC3339), to.Format(time.RFC3339)), func(_ *state.Tx, s *plan.State) error {
		next, ok := plan.Fill(*s, from, to, n)
		if !ok {
			return status.Errorf(codes.FailedPrecondition, "a backfill of job %s has %d runs left: wait for its end, or stop and run the job", e.key, s.BackfillLeft)
		}
		*s = next
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &nusav1.BackfillScheduleResponse{Runs: int32(n)}, nil
}
