package rollouts

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/jobhistory"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// maxReason bounds ControlRolloutRequest.reason in bytes.
const maxReason = 256

// Pause implements nusav1.RolloutsServer.
func (s *Service) Pause(ctx context.Context, req *nusav1.ControlRolloutRequest) (*nusav1.Rollout, error) {
	return s.steer(ctx, req, "pause", func(r *nusav1.RolloutRecord) string {
		r.Paused, r.PausedBecause = true, req.GetReason()
		return "rollout.paused"
	})
}

// Resume implements nusav1.RolloutsServer.
func (s *Service) Resume(ctx context.Context, req *nusav1.ControlRolloutRequest) (*nusav1.Rollout, error) {
	return s.steer(ctx, req, "resume", func(r *nusav1.RolloutRecord) string {
		if !r.GetPaused() && r.GetFailed() == "" { // it waits after a region
			r.Unpaused = timestamppb.Now()
			return "rollout.resumed"
		}
		maps.DeleteFunc(r.GetRegions(), func(_ string, end *nusav1.RegionEnd) bool { return end.GetFailed() != "" })
		r.Paused, r.PausedBecause, r.Failed = false, "", ""
		for name, g := range r.GetGroups() {
			r.Groups[name] = &nusav1.RolloutProgress{Healthy: g.GetHealthy(), Since: timestamppb.Now()}
		}
		return "rollout.resumed"
	})
}

// Promote implements nusav1.RolloutsServer.
func (s *Service) Promote(ctx context.Context, req *nusav1.ControlRolloutRequest) (*nusav1.Rollout, error) {
	return s.steer(ctx, req, "promote", func(r *nusav1.RolloutRecord) string {
		r.Promoted, r.Groups, r.Paused, r.PausedBecause = true, nil, false, ""
		return "rollout.promoted"
	})
}

// promotable returns an error if the canaries of a rollout cannot be promoted now. The state's lock is
// held.
func promotable(t *state.Tx, k state.JobKey, r *nusav1.RolloutRecord, force bool) error {
	if !state.CanaryStage(r) {
		return status.Errorf(codes.FailedPrecondition, "no canary of version %d of job %s waits: `nusa job status %s` shows the rollout", r.GetVersion(), k, k)
	}
	j := t.State.Jobs[k]
	if j == nil || force {
		return nil
	}
	healthy := j.HealthyCanaries(r, t.State.Sight())
	for _, name := range slices.Sorted(maps.Keys(r.GetCanaries())) {
		if want := r.GetCanaries()[name].GetCount(); healthy[name] < want {
			return status.Errorf(codes.FailedPrecondition, "%d of %d canaries of %s are healthy: wait, end it with `nusa job fail %s`, or promote it with --force", healthy[name], want, name, k)
		}
	}
	if r.GetPaused() { // the time that the canaries are healthy does not count now
		return status.Errorf(codes.FailedPrecondition, "the rollout of job %s is paused: continue it with `nusa job resume %s`, or promote the canaries with --force", k, k)
	}
	if !state.CanariesSteady(j, r, t.State.Sight()) {
		return status.Errorf(codes.FailedPrecondition, "the canaries of job %s are healthy, but not yet for min_healthy: wait, or promote them with --force", k)
	}
	return nil
}

// Fail implements nusav1.RolloutsServer.
func (s *Service) Fail(ctx context.Context, req *nusav1.ControlRolloutRequest) (*nusav1.Rollout, error) {
	return s.steer(ctx, req, "fail", func(r *nusav1.RolloutRecord) string {
		r.Failed = "an operator failed it"
		if req.GetReason() != "" {
			r.Failed += ": " + req.GetReason()
		}
		r.Paused, r.PausedBecause = false, ""
		return "rollout.failed"
	})
}

// steer changes the record of the present rollout. It changes nothing if the rollout has the state
// already. change returns the type of the event.
func (s *Service) steer(ctx context.Context, req *nusav1.ControlRolloutRequest, verb string, change func(*nusav1.RolloutRecord) string) (*nusav1.Rollout, error) {
	term, k, err := s.job(req.GetJob())
	if err != nil {
		return nil, err
	}
	if req.GetJob().GetRegion() != "" {
		return nil, jobhistory.NoStages(k.Namespace + "/" + k.Name + "@" + req.GetJob().GetRegion())
	}
	if n := len(req.GetReason()); n > maxReason || !utf8.ValidString(req.GetReason()) || strings.ContainsAny(req.GetReason(), "\n\r") {
		return nil, rpcerr.Invalid(wrong("reason", fmt.Sprintf("must be one line of at most %d bytes", maxReason)))
	}
	_, err = api.ChangeJob(ctx, term, k, func(t *state.Tx) error {
		rec, rev, err := state.Stored(t, k)
		if err != nil {
			return err
		}
		if rec == nil {
			return api.JobNotFound(k)
		}
		was := t.Rollout(k)
		switch {
		case was == nil, was.GetRun() != rec.Run(rev), was.GetVersion() != rec.RolledOut(), rec.Stopped():
			return status.Errorf(codes.FailedPrecondition, "no rollout of job %s is in progress: a changed version begins one; `nusa job status %s` shows its state", k, k)
		case was.GetDone():
			return status.Errorf(codes.FailedPrecondition, "the rollout of version %d of job %s is done: `nusa job history %s` lists the versions, and `nusa job revert %s` goes back to the one before", was.GetVersion(), k, k, k)
		case was.GetFailed() != "" && verb != "resume":
			return status.Errorf(codes.FailedPrecondition, "version %d of job %s has failed: `nusa job resume %s` tries again, `nusa job revert %s` goes back", was.GetVersion(), k, k, k)
		}
		if verb == "resume" && !was.GetPaused() && was.GetFailed() == "" && !waitsAfterRegion(t, k, was) {
			return nil
		}
		if verb == "promote" {
			if err := promotable(t, k, was, req.GetForce()); err != nil {
				return err
			}
		}
		next := proto.CloneOf(was)
		kind := change(next)
		if was.GetPaused() == next.GetPaused() && was.GetFailed() == next.GetFailed() && was.GetPromoted() == next.GetPromoted() && proto.Equal(was.GetUnpaused(), next.GetUnpaused()) {
			return nil
		}
		if err := t.Audit(audit.Entry{Verb: verb, Kind: "job", Namespace: k.Namespace, Name: k.Name, Reason: fmt.Sprintf("rollout of version %d%s", was.GetVersion(), because(req.GetReason()))}); err != nil {
			return err
		}
		t.Event(kind, k.String(), "version %d%s", was.GetVersion(), because(req.GetReason()))
		return t.PutRollout(k, next)
	})
	if err != nil {
		return nil, api.StatusOf(err)
	}
	term.Log.Info("rollout changed", "job", k.String(), "verb", verb, "reason", req.GetReason())
	term.State.Lock()
	defer term.State.Unlock()
	if j := term.State.Jobs[k]; j != nil && j.Record != nil {
		if r := j.Status(term.State.Sight()).GetRollout(); r != nil {
			return r, nil
		}
	}
	return &nusav1.Rollout{}, nil // another version was submitted meanwhile
}

// waitsAfterRegion reports whether a rollout waits because of update.regions.pause_between. The state's lock
// is held.
func waitsAfterRegion(t *state.Tx, k state.JobKey, r *nusav1.RolloutRecord) bool {
	j := t.State.Jobs[k]
	if j == nil || j.Record == nil {
		return false
	}
	left, _ := j.PauseLeft(r)
	return left > 0
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}
