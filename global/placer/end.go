package placer

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// purge removes the jobs of the purge set that have no slots any more.
func (p *Placer) purge(ctx context.Context) error {
	for _, k := range p.purgeable() {
		_, err := p.Commit.Do(ctx, func(t *state.Tx) error {
			rec, _ := t.Job(k)
			if !rec.Purge() || len(t.Slots(k, "")) > 0 {
				return nil
			}
			t.Event("job.purged", k.String(), "forgotten")
			return t.DeleteJob(k)
		})
		if err != nil {
			return fmt.Errorf("purge %s: %w", k, err)
		}
	}
	return nil
}

func (p *Placer) purgeable() (keys []state.JobKey) {
	p.st.Lock()
	defer p.st.Unlock()
	if p.st.History.Unread() {
		return nil // a purge also removes what the history has of the job
	}
	for k := range p.st.Purge {
		switch j := p.st.Jobs[k]; {
		case j == nil || !j.Record.Purge():
			delete(p.st.Purge, k)
		case j.Slots.Len() == 0:
			keys = append(keys, k)
		}
	}
	return keys
}

// result is how a run of a job ended.
type result struct {
	key    state.JobKey
	record *nusav1.ResultRecord
}

// storeResults stores how runs ended.
func (p *Placer) storeResults(ctx context.Context) error {
	results := p.newResults()
	for i, r := range results {
		_, err := p.Commit.Do(ctx, func(t *state.Tx) error {
			if rec, rev := t.Job(r.key); rec == nil || rec.Run(rev) != r.record.GetRun() {
				return nil // the job was purged, or another run has begun
			}
			if add := t.State.Letters.Add; add != nil {
				if err := add(t, r.key); err != nil {
					return err
				}
			}
			word := state.EnumWord(r.record.GetStatus().GetState().String(), "JOB_STATE_")
			t.Event("job."+word, r.key.String(), "%s", r.record.GetStatus().GetMessage())
			return t.PutResult(r.key, r.record)
		})
		if err != nil {
			p.st.Lock()
			for _, left := range results[i:] {
				p.st.Ended[left.key] = struct{}{} // retried at the next wake
			}
			p.st.Unlock()
			return fmt.Errorf("store the result of %s: %w", r.key, err)
		}
	}
	return nil
}

// newResults returns the results that differ from the stored ones.
func (p *Placer) newResults() (out []result) {
	p.st.Lock()
	defer p.st.Unlock()
	awaited := p.st.Letters.Awaited
	var later []state.JobKey // their dead letters come first
	for k := range p.st.Ended {
		delete(p.st.Ended, k)
		j := p.st.Jobs[k]
		if j == nil || j.Record == nil || j.Record.Stopped() {
			continue
		}
		if j.PresentRollout().GetFailed() != "" { // the run has not ended: the rollout can be resumed
			continue
		}
		if !jobstatus.HasEnded(j.Status(p.st.Sight()).GetState()) {
			continue
		}
		if awaited != nil && awaited(j) {
			later = append(later, k)
			continue
		}
		status := j.Status(state.Sight{}) // a result does not say which regions are cut off or awaited now
		rec := &nusav1.ResultRecord{Version: j.Record.Version(), Run: j.Record.Run(j.Revision), Status: boundStatus(status)}
		if !proto.Equal(rec, j.Result) {
			out = append(out, result{k, rec})
		}
	}
	for _, k := range later {
		p.st.Ended[k] = struct{}{}
	}
	return out
}

// maxResult bounds the bytes of a stored result, so that it fits easily into a transaction.
const maxResult = 512 << 10

// boundStatus reduces a status to the part that is stored. It drops the slots and the unknown
// instances, because the API shows their present state. If there are too many reasons or regions,
// it keeps only the sums.
func boundStatus(s *nusav1.JobStatus) *nusav1.JobStatus {
	for _, g := range s.GetGroups() {
		g.Slots, g.Unknown = nil, nil
	}
	for _, most := range []int{state.MaxCounts, 8, 1} {
		if proto.Size(s) <= maxResult {
			return s
		}
		for _, g := range s.GetGroups() {
			g.Pending = g.Pending[:min(len(g.Pending), most)]
		}
	}
	if proto.Size(s) > maxResult {
		for _, g := range s.GetGroups() {
			g.Regions = nil
		}
	}
	return s
}
