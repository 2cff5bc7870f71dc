package state

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/link"
)

// Load reads every record from the store. Only the elected server writes the
// records, so those listed in several steps still belong together.
func (st *State) Load(ctx context.Context, s store.Store) error {
	st.Lock()
	defer st.Unlock()
	st.loading = true
	defer func() { st.loading = false }()
	for _, prefix := range []string{regionPrefix, jobPrefix, slotPrefix, resultPrefix, HealthyPrefix, CheckpointPrefix, originPrefix} {
		type record struct {
			kv  store.KV
			msg proto.Message
		}
		var records []record
		revision, err := s.List(ctx, prefix, func(kv store.KV) error {
			msg := newRecord(kv.Key)
			if err := Decode(kv, msg); err != nil {
				return err
			}
			records = append(records, record{kv, msg})
			return nil
		})
		if err != nil {
			return fmt.Errorf("load the records: %w", err)
		}
		// Outboxes are numbered by revision.
		slices.SortStableFunc(records, func(a, b record) int { return int(a.kv.ModRevision - b.kv.ModRevision) })
		for _, r := range records {
			st.apply(r.kv.Key, r.msg, r.kv.ModRevision)
		}
		st.Revision = max(st.Revision, revision)
	}
	for _, r := range st.Regions {
		r.Orders.ForgetUpTo(uint64(st.Revision))
		st.restoreCheckpoint(r)
	}
	return st.Origins.rebuild()
}

// restoreCheckpoint takes a loaded checkpoint as the region's latest summaries
// and report. The lock is held.
func (st *State) restoreCheckpoint(r *Region) {
	if len(r.checkpoint) == 0 {
		return
	}
	complete := int(r.checkpoint[0].GetChunks()) == len(r.checkpoint)
	for _, c := range r.checkpoint {
		for _, sum := range c.GetSummaries() {
			r.SummaryKeys[SummaryKey(r.Name, sum)] = struct{}{}
			st.ApplySummary(r, sum)
		}
		if c.GetReport() != nil {
			r.Report, r.ReportAt, r.ReportStale = c.GetReport(), st.Clock(), true
		}
		complete = complete && proto.Equal(c.GetPosition(), r.checkpoint[0].GetPosition())
	}
	if complete {
		p := r.checkpoint[0].GetPosition()
		r.SummariesAt = link.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}
	}
	r.checkpoint = nil
}
