package state

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// checkpointBytes bounds the size of one record of a checkpoint, and about the size of a
	// request.
	checkpointBytes = 512 * 1024
	// checkpointsAtOnce bounds the records of one request.
	checkpointsAtOnce = 100
	// besideReport is the greatest size of the summaries that share a record with the report. The
	// report changes more often, and must not write many summaries each time.
	besideReport = 16 * 1024
)

// Checkpoints stores the latest summaries and report of each region at each Interval. So a new
// active server knows what runs before every region has connected.
type Checkpoints struct {
	State    *State
	Commit   *Committer
	Interval time.Duration
	Log      *slog.Logger
}

// checkpointWrite is one record of a region's checkpoint. rec is nil for a record that must be
// removed.
type checkpointWrite struct {
	region, key string
	rec         *nusav1.CheckpointRecord
	size        int
}

// checkpointed says what the stored checkpoint of a region has.
type checkpointed struct {
	chunks int // records
	// alone: chunk 0 has the report and no summaries.
	alone bool
	// report is the hash of the stored report; 0: not known.
	report uint64
}

// Run stores checkpoints until ctx ends or a write fails.
func (c Checkpoints) Run(ctx context.Context) error {
	for range wait.Ticks(ctx, c.Interval) {
		if err := c.storeAll(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// storeAll stores what has changed. Records of many regions share a request, because each
// transaction costs more than its records.
func (c Checkpoints) storeAll(ctx context.Context) error {
	c.State.Lock()
	names := c.State.RegionNames()
	c.State.Unlock()
	var group []checkpointWrite
	size := 0
	for _, name := range names {
		for _, w := range c.collect(name) {
			if len(group) == checkpointsAtOnce || size+w.size > checkpointBytes && len(group) > 0 {
				if err := c.store(ctx, group); err != nil {
					return err
				}
				group, size = nil, 0
			}
			group, size = append(group, w), size+w.size
		}
	}
	return c.store(ctx, group)
}

// store writes records. If these do not fit into one transaction, it writes each alone.
func (c Checkpoints) store(ctx context.Context, group []checkpointWrite) error {
	if len(group) == 0 {
		return nil
	}
	_, err := c.Commit.Do(ctx, func(t *Tx) error {
		for _, w := range group {
			rec, _ := t.Region(w.region)
			var err error
			switch {
			case rec == nil: // the region was removed meanwhile
			case w.rec == nil:
				err = t.deleteUnchecked(w.key)
			default:
				err = t.putUnchecked(w.key, w.rec)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err == nil, errors.Is(err, ErrConflict):
		return nil
	case errors.Is(err, store.ErrTooLarge) && len(group) > 1:
		for i := range group {
			if err := c.store(ctx, group[i:i+1]); err != nil {
				return err
			}
		}
		return nil
	case errors.Is(err, store.ErrTooLarge):
		c.Log.Warn("cannot checkpoint the summaries of a region", "region", group[0].region, "error", err)
		c.State.Lock()
		defer c.State.Unlock()
		if r := c.State.Regions[group[0].region]; r != nil {
			r.stored.alone, r.stored.report = false, 0 // so that the next report stores all again
		}
		return nil
	}
	return fmt.Errorf("checkpoint of region %s and others: %w", group[0].region, err)
}

// collect returns the records that bring a region's checkpoint up to date; none when nothing has
// changed. If the former checkpoint had more records, these are removed.
func (c Checkpoints) collect(name string) (out []checkpointWrite) {
	c.State.Lock()
	defer c.State.Unlock()
	r := c.State.Regions[name]
	if r == nil || !r.CheckpointDue && !r.ReportDue {
		return nil
	}
	was, report := r.stored, hashOfReport(r.Report)
	if !r.CheckpointDue && report == was.report {
		r.ReportDue = false
		return nil
	}
	pos := &nusav1.Position{Epoch: r.SummariesAt.Epoch, Sequence: r.SummariesAt.Sequence}
	chunks := []*nusav1.CheckpointRecord{{Position: pos, Report: r.Report}}
	next := checkpointed{chunks: was.chunks, alone: true, report: report}
	if r.CheckpointDue || !was.alone {
		chunks = append(chunks, summaryChunks(c.State, r, pos)...)
		if len(chunks) == 2 && proto.Size(chunks[1]) <= besideReport {
			chunks[0].Summaries, chunks, next.alone = chunks[1].Summaries, chunks[:1], false
		}
		next.chunks = len(chunks)
	}
	r.CheckpointDue, r.ReportDue, r.stored = false, false, next
	for i, rec := range chunks {
		rec.Chunks = int32(next.chunks)
		out = append(out, checkpointWrite{name, CheckpointKey(name, i), rec, proto.Size(rec)})
	}
	for i := next.chunks; i < was.chunks; i++ {
		out = append(out, checkpointWrite{region: name, key: CheckpointKey(name, i)})
	}
	return out
}

// summaryChunks returns records with all summaries of a region. The lock is held.
func summaryChunks(st *State, r *Region, pos *nusav1.Position) (chunks []*nusav1.CheckpointRecord) {
	size := 0
	for _, key := range slices.Sorted(maps.Keys(r.SummaryKeys)) {
		sum := st.summary(key, r.Name)
		if sum == nil {
			continue
		}
		n := proto.Size(sum)
		if len(chunks) == 0 || size+n > checkpointBytes {
			chunks, size = append(chunks, &nusav1.CheckpointRecord{Position: pos}), 0
		}
		size += n
		last := chunks[len(chunks)-1]
		last.Summaries = append(last.Summaries, sum)
	}
	return chunks
}

// hashOfReport returns a number that is almost certainly different for different reports.
func hashOfReport(rep *nusav1.RegionReport) uint64 {
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(rep) // cannot fail: a region sent it
	h := fnv.New64a()
	_, _ = h.Write(b)
	return max(1, h.Sum64())
}
