package placer

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// pendingRollout is a decision about a rollout that is not applied yet.
type pendingRollout struct {
	key      state.JobKey
	record   *state.Record
	revision int64
	healthy  *state.Record
	decision place.RolloutDecision
	why      string
}

// evaluateRollouts decides about the rollouts of jobs whose slots or summaries have changed.
func (p *Placer) evaluateRollouts(ctx context.Context) error {
	decided := p.decideRollouts()
	for i, r := range decided {
		if err := p.applyRollout(ctx, r); err != nil {
			p.st.Lock()
			for _, left := range decided[i:] {
				p.st.Rollouts[left.key] = struct{}{} // retried at the next wake
			}
			p.st.Unlock()
			return fmt.Errorf("rollout of %s: %w", r.key, err)
		}
	}
	return nil
}

func (p *Placer) decideRollouts() (decided []pendingRollout) {
	p.st.Lock()
	defer p.st.Unlock()
	for k := range p.st.Rollouts {
		delete(p.st.Rollouts, k)
		j := p.st.Jobs[k]
		if j == nil || j.Record == nil || !j.Revertible() {
			continue
		}
		if decision, why := j.Rollout(p.st.Sight()).Decide(); decision != place.RolloutWait {
			decided = append(decided, pendingRollout{k, j.Record, j.Revision, j.Healthy, decision, why})
		}
	}
	return decided
}

// errChanged says that the job has changed since its rollout was evaluated.
var errChanged = errors.New("the job was changed meanwhile")

// applyRollout applies a decision, unless the job has changed since.
func (p *Placer) applyRollout(ctx context.Context, r pendingRollout) error {
	next := &nusav1.JobRecord{}
	_, err := p.Commit.Do(ctx, func(t *state.Tx) error {
		if rec, rev := t.Job(r.key); rec == nil || rev != r.revision {
			return errChanged
		}
		switch run := r.record.Run(r.revision); r.decision {
		case place.RolloutSetHealthy:
			return t.PutHealthy(r.key, r.record, run)
		case place.RolloutForgetHealthy:
			return t.DeleteHealthy(r.key)
		default:
			next = &nusav1.JobRecord{Job: &nusav1.Job{
				Spec: r.healthy.Spec(), Version: r.record.Version() + 1, Run: run, Submitted: timestamppb.Now(),
				Reverted: &nusav1.Reverted{Version: r.record.Version(), To: r.healthy.Version(), Why: r.why},
			}}
			next.Since = state.Since(r.record, next.GetJob().GetSpec(), next.GetJob().GetVersion())
			if err := t.PutJob(r.key, next); err != nil {
				return err
			}
			t.Event("job.reverted", r.key.String(), "version %d has the spec of version %d, which was healthy; %s",
				next.GetJob().GetVersion(), r.healthy.Version(), r.why)
			return t.Audit(audit.Entry{Verb: "revert", Kind: "job", Namespace: r.key.Namespace, Name: r.key.Name, Reason: r.why})
		}
	})
	switch {
	case errors.Is(err, errChanged):
		return nil
	case err == nil && r.decision == place.RolloutRevert:
		p.Log.Warn("job reverted", "job", r.key.String(), "version", next.GetJob().GetVersion(), "to", r.healthy.Version(), "why", r.why)
	}
	return err
}
