package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// checkpointBytes bounds the size of one record of a checkpoint.
const checkpointBytes = 512 * 1024

// Checkpoints stores the latest summaries and report of each region at each Interval. So a new
// active server knows what runs before every region has connected.
type Checkpoints struct {
	State    *State
	Commit   *Committer
	Interval time.Duration
	Log      *slog.Logger
}

// Run stores checkpoints until ctx ends or a write fails.
func (c Checkpoints) Run(ctx context.Context) error {
	for range wait.Ticks(ctx, c.Interval) {
		c.State.Lock()
		names := c.State.RegionNames()
		c.State.Unlock()
		for _, name := range names {
			switch err := c.store(ctx, name); {
			case err == nil, errors.Is(err, ErrConflict):
			case errors.Is(err, store.ErrTooLarge):
				c.Log.Warn("cannot checkpoint the summaries of a region", "region", name, "error", err)
			default:
				return fmt.Errorf("checkpoint of region %s: %w", name, err)
			}
		}
	}
	return ctx.Err()
}

// store writes the checkpoint of a region if it has changed, one chunk in each request. If the
// former checkpoint had more chunks, store removes these.
func (c Checkpoints) store(ctx context.Context, name string) error {
	chunks, stored := c.collect(name)
	if chunks == nil {
		return nil
	}
	for i := range max(stored, len(chunks)) {
		key := CheckpointKey(name, i)
		_, err := c.Commit.Do(ctx, func(t *Tx) error {
			rec, _ := t.Region(name)
			switch {
			case rec == nil: // the region was removed meanwhile
				return nil
			case i >= len(chunks):
				return t.deleteUnchecked(key)
			}
			chunks[i].Chunks = int32(len(chunks))
			return t.putUnchecked(key, chunks[i])
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// collect returns the records of a region's checkpoint, and how many records the stored checkpoint
// has. It returns nil when nothing has changed.
func (c Checkpoints) collect(name string) (chunks []*nusav1.CheckpointRecord, stored int) {
	c.State.Lock()
	defer c.State.Unlock()
	r := c.State.Regions[name]
	if r == nil || !r.CheckpointDue {
		return nil, 0
	}
	r.CheckpointDue = false
	pos := &nusav1.Position{Epoch: r.SummariesAt.Epoch, Sequence: r.SummariesAt.Sequence}
	chunks = []*nusav1.CheckpointRecord{{Position: pos, Report: r.Report}}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(r.SummaryKeys)) {
		sum := c.State.summary(key, name)
		if sum == nil {
			continue
		}
		size += proto.Size(sum)
		if size > checkpointBytes {
			chunks = append(chunks, &nusav1.CheckpointRecord{Position: pos})
			size = proto.Size(sum)
		}
		last := chunks[len(chunks)-1]
		last.Summaries = append(last.Summaries, sum)
	}
	stored = r.chunks
	r.chunks = len(chunks)
	return chunks, stored
}
