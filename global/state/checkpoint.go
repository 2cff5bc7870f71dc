package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/compact"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/link"
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
	r, was, now := c.due(name)
	if r == nil {
		return nil
	}
	chunks := []*nusav1.CheckpointRecord{{Position: now.position, Report: now.report}}
	next := checkpointed{chunks: was.chunks, alone: true, report: now.hash}
	if now.all {
		alone := summaryChunks(now.summaries)
		if len(alone) == 1 && len(alone[0]) <= besideReport {
			chunks[0].ProtoReflect().SetUnknown(alone[0])
			next.alone, alone = false, nil
		}
		for _, summaries := range alone {
			rec := &nusav1.CheckpointRecord{Position: now.position}
			rec.ProtoReflect().SetUnknown(summaries)
			chunks = append(chunks, rec)
		}
		next.chunks = len(chunks)
	}
	c.State.Lock()
	r.stored = next
	c.State.Unlock()
	for i, rec := range chunks {
		rec.Chunks = int32(next.chunks)
		out = append(out, checkpointWrite{name, CheckpointKey(name, i), rec, proto.Size(rec)})
	}
	for i := next.chunks; i < was.chunks; i++ {
		out = append(out, checkpointWrite{region: name, key: CheckpointKey(name, i)})
	}
	return out
}

// latest is what a checkpoint of a region stores now.
type latest struct {
	position *nusav1.Position
	report   *nusav1.RegionReport
	hash     uint64 // of the report
	// all: the summaries must be stored too.
	all       bool
	summaries []encodedSummary
}

// due returns a region whose checkpoint must be stored, what the stored one has, and what the region
// has now; nil when nothing has changed. From now on only later changes are due. A region may have
// many summaries, so due copies no more than where they are.
func (c Checkpoints) due(name string) (r *Region, was checkpointed, now latest) {
	c.State.Lock()
	defer c.State.Unlock()
	r = c.State.Regions[name]
	if r == nil || !r.CheckpointDue && !r.ReportDue {
		return nil, was, now
	}
	was = r.stored
	now = latest{
		position: &nusav1.Position{Epoch: r.SummariesAt.Epoch, Sequence: r.SummariesAt.Sequence},
		report:   r.Report, hash: hashOfReport(r.Report), all: r.CheckpointDue || !was.alone,
	}
	changed := r.CheckpointDue || now.hash != was.report
	r.CheckpointDue, r.ReportDue = false, false
	if !changed {
		return nil, was, now
	}
	if now.all {
		now.summaries = encodedSummaries(c.State, r)
	}
	return r, was, now
}

// encodedSummary is a summary as the state keeps it.
type encodedSummary struct {
	key     string // SummaryKey
	job     JobKey
	encoded []byte // without the names of the job
}

// encodedSummaries returns all summaries of a region in no order. The lock is held.
func encodedSummaries(st *State, r *Region) []encodedSummary {
	out := make([]encodedSummary, 0, len(r.SummaryKeys))
	for key := range r.SummaryKeys {
		namespace, name, _ := strings.Cut(key, "/")
		k := JobKey{namespace, name}
		if j := st.Jobs[k]; j != nil {
			if encoded := j.Summaries.Encoded(r.Name); encoded != nil {
				out = append(out, encodedSummary{key, k, encoded})
			}
		}
	}
	return out
}

// summaryChunks returns the field with the summaries of each record that they need. The fields are
// encoded, because to decode all summaries of a region takes much time and memory.
func summaryChunks(summaries []encodedSummary) (chunks [][]byte) {
	const field, fieldBytes = 3, 16 // CheckpointRecord.summaries; its tags and lengths have fewer bytes
	slices.SortFunc(summaries, func(a, b encodedSummary) int { return strings.Compare(a.key, b.key) })
	for _, s := range summaries {
		last := len(chunks) - 1
		if last < 0 || len(chunks[last])+len(s.key)+len(s.encoded)+fieldBytes > checkpointBytes {
			chunks, last = append(chunks, nil), last+1
		}
		chunks[last] = compact.AppendField(chunks[last], field, s.job.Namespace, s.job.Name, s.encoded)
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

// checkpointSummaries is CheckpointRecord.summaries.
const checkpointSummaries protowire.Number = 3

// loadedCheckpoint is a part of a stored checkpoint. Its summaries stay encoded, because to decode and
// encode those of all jobs would take half of the time in which a server starts.
type loadedCheckpoint struct {
	*nusav1.CheckpointRecord
	summaries [][]byte
}

// loadCheckpoint returns a stored part of a checkpoint.
func loadCheckpoint(kv store.KV) (*loadedCheckpoint, error) {
	out := &loadedCheckpoint{CheckpointRecord: &nusav1.CheckpointRecord{}}
	if len(kv.Value) == 0 || kv.Value[0] != formatProto {
		return nil, Decode(kv, out.CheckpointRecord) // which says what is wrong
	}
	others := store.KV{Key: kv.Key, Value: []byte{formatProto}}
	for rest := kv.Value[1:]; len(rest) > 0; {
		number, kind, size := protowire.ConsumeField(rest)
		if size < 0 {
			return nil, Decode(kv, out.CheckpointRecord)
		}
		if number == checkpointSummaries && kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(rest)
			summary, _ := protowire.ConsumeBytes(rest[tag:])
			out.summaries = append(out.summaries, summary)
		} else {
			others.Value = append(others.Value, rest[:size]...)
		}
		rest = rest[size:]
	}
	return out, Decode(others, out.CheckpointRecord)
}

// restoreCheckpoint makes a loaded checkpoint the region's latest summaries and report. The lock is
// held.
func restoreCheckpoint(st *State, r *Region) error {
	if len(r.checkpoint) == 0 {
		return nil
	}
	complete, n := int(r.checkpoint[0].GetChunks()) == len(r.checkpoint), 0
	for _, c := range r.checkpoint {
		n += len(c.summaries)
	}
	r.SummaryKeys = make(map[string]struct{}, n)
	for _, c := range r.checkpoint {
		for _, summary := range c.summaries {
			if err := restoreSummary(st, r, summary); err != nil {
				return fmt.Errorf("checkpoint of region %s: %w: %w", r.Name, ErrFormat, err)
			}
		}
		complete = complete && proto.Equal(c.GetPosition(), r.checkpoint[0].GetPosition())
	}
	if complete {
		p := r.checkpoint[0].GetPosition()
		r.SummariesAt = link.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}
	}
	r.checkpoint = nil
	return nil
}

// restoreSummary applies an encoded summary of a checkpoint. It decodes only what needs more than to be kept.
// The lock is held.
func restoreSummary(st *State, r *Region, encoded []byte) error {
	if namespace, name, rest, ok := compact.CutNames(encoded); ok {
		j := st.Jobs[JobKey{string(namespace), string(name)}]
		if j != nil && j.Record != nil && j.Record.Type() != place.Batch && j.Summaries.Encoded(r.Name) == nil {
			r.SummaryKeys[j.path] = struct{}{}
			j.Summaries.PutEncoded(r.Name, bytes.Clone(rest))
			st.summaryChanged(j)
			return nil
		}
	}
	sum := &nusav1.JobSummary{}
	if err := proto.Unmarshal(encoded, sum); err != nil {
		return err
	}
	NoteSummary(st, r, SummaryKey(r.Name, sum), sum)
	st.ApplySummary(r, sum, compact.Encode(sum))
	return nil
}
