package placer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

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
	// rollout is the record of the rollout to store. Then there is no decision. before is the record
	// that it replaces.
	rollout, before *nusav1.RolloutRecord
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
		if j == nil || j.Record == nil {
			delete(p.rolling.jobs, k)
			continue
		}
		if next, why := p.rolling.evaluate(k, j); next != nil {
			decided = append(decided, pendingRollout{key: k, record: j.Record, revision: j.Revision, rollout: next, before: j.StoredRollout, why: why})
			continue
		}
		if !j.Revertible() {
			continue
		}
		if decision, why := j.Rollout(p.st.Sight()).Decide(); decision != place.RolloutWait {
			decided = append(decided, pendingRollout{key: k, record: j.Record, revision: j.Revision, healthy: j.Healthy, decision: decision, why: why})
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
		if r.rollout != nil {
			return putProgress(t, r)
		}
		switch run := r.record.Run(r.revision); r.decision {
		case place.RolloutSetHealthy:
			return t.PutHealthy(r.key, r.record, run)
		case place.RolloutForgetHealthy:
			return t.DeleteHealthy(r.key)
		default:
			var err error
			next, err = t.Replace(r.key, r.record, r.revision, r.healthy,
				&nusav1.Reverted{Version: r.record.Version(), To: r.healthy.Version(), Why: r.why})
			if err != nil {
				return err
			}
			t.Event("job.reverted", r.key.String(), "version %d failed: taken back to version %d, as version %d; %s",
				r.record.Version(), r.healthy.Version(), next.GetJob().GetVersion(), r.why)
			return t.Audit(audit.Entry{Verb: "revert", Kind: "job", Namespace: r.key.Namespace, Name: r.key.Name, Reason: r.why})
		}
	})
	switch {
	case errors.Is(err, errChanged):
		return nil
	case err == nil && r.rollout.GetFailed() != "":
		p.Log.Warn("rollout failed", "job", r.key.String(), "version", r.rollout.GetVersion(), "why", r.why)
	case err == nil && r.decision == place.RolloutRevert:
		p.Log.Warn("job reverted", "job", r.key.String(), "version", next.GetJob().GetVersion(), "to", r.healthy.Version(), "why", r.why)
	}
	return err
}

// storeEnds stores the regions in which rollouts have ended, as a plan found them. It leaves out a job that
// has changed since.
func (p *Placer) storeEnds(ctx context.Context, ends []place.RegionEnd, jobs map[state.JobKey]seen) error {
	for len(ends) > 0 {
		k := state.JobKey{Namespace: ends[0].Namespace, Name: ends[0].Job}
		n := slices.IndexFunc(ends, func(e place.RegionEnd) bool { return e.Namespace != k.Namespace || e.Job != k.Name })
		if n < 0 {
			n = len(ends)
		}
		_, err := p.Commit.Do(ctx, func(t *state.Tx) error {
			was := t.Rollout(k)
			rec, rev := t.Job(k)
			if rec == nil || rev != jobs[k].revision || was == nil || was.GetDone() || was.GetRun() != rec.Run(rev) || was.GetVersion() != rec.RolledOut() {
				return nil
			}
			next := proto.CloneOf(was)
			for _, e := range ends[:n] {
				if next.GetRegions()[e.Region] == nil {
					endIn(next, e.Region, e.Failed)
					addEndEvent(t, k, was.GetVersion(), e.Region, e.Failed)
				}
			}
			if len(next.GetRegions()) == len(was.GetRegions()) {
				return nil
			}
			return t.PutRollout(k, next)
		})
		if err != nil {
			return fmt.Errorf("store the ends of the rollout of %s: %w", k, err)
		}
		ends = ends[n:]
	}
	return nil
}
