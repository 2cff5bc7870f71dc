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
	// checkpointBytes is about the most bytes of a request.
	checkpointBytes = 512 * 1024
	// checkpointsAtOnce bounds the records of one request.
	checkpointsAtOnce = 100
	// partBytes is the size from which on a record gets no more summaries. Summaries of a record can
	// grow later. Above mostPartBytes the record gives some to another one.
	partBytes, mostPartBytes = 16 * 1024, 32 * 1024
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
// removed. of is the region: another one may have the name when the record is written.
type checkpointWrite struct {
	region string
	of     *Region
	number int
	rec    *nusav1.CheckpointRecord
	size   int
}

// noPart is the number of a summary that no record has.
const noPart int32 = -1

// checkpointed says what the stored checkpoint of a region has. A checkpoint writes only the records
// with a changed summary, so its cost does not grow with the summaries that stay the same. New
// summaries go into few records.
type checkpointed struct {
	// parts are the records. Record 0 has the report. It also has the summaries as long as it is the
	// only record. After that it has none, because the report changes more often.
	parts []checkpointPart
	// open is the record that gets the next new summaries.
	open int
	// unplaced: a summary has no record yet.
	unplaced bool
	// report is the hash of the stored report; 0: not known.
	report uint64
	// failed: a write of this checkpoint failed.
	failed bool
}

// checkpointPart is a record of a checkpoint. changed: a summary of it has changed since it was
// written.
type checkpointPart struct{ stored, changed bool }

// note notes that a summary of a record has changed.
func (c *checkpointed) note(part int32) {
	if part == noPart {
		c.unplaced = true
	} else {
		c.parts[part].changed = true
	}
}

// reach makes the checkpoint have a record with a number.
func (c *checkpointed) reach(number int) *checkpointPart {
	for len(c.parts) <= number {
		c.parts = append(c.parts, checkpointPart{})
	}
	return &c.parts[number]
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
	group = c.wanted(group)
	if len(group) == 0 {
		return nil
	}
	_, err := c.Commit.Do(ctx, func(t *Tx) error {
		for _, w := range group {
			rec, _ := t.Region(w.region)
			var err error
			switch {
			case rec == nil || c.State.Regions[w.region] != w.of: // the region was removed meanwhile
			case w.rec == nil:
				err = t.deleteUnchecked(CheckpointKey(w.region, w.number))
			default:
				err = t.putUnchecked(CheckpointKey(w.region, w.number), w.rec)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err == nil:
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
		fallthrough
	case errors.Is(err, ErrConflict):
		c.again(group)
		return nil
	}
	return fmt.Errorf("checkpoint of region %s and others: %w", group[0].region, err)
}

// wanted returns the writes of regions without a failed write. A later record of such a region may say
// that the failed one has been written, so the next checkpoint stores both.
func (c Checkpoints) wanted(group []checkpointWrite) []checkpointWrite {
	c.State.Lock()
	failed := func(w checkpointWrite) bool {
		r := c.State.Regions[w.region]
		return r != nil && r.stored.failed
	}
	var left []checkpointWrite
	if slices.ContainsFunc(group, failed) {
		left = slices.DeleteFunc(slices.Clone(group), func(w checkpointWrite) bool { return !failed(w) })
		group = slices.DeleteFunc(slices.Clone(group), failed)
	}
	c.State.Unlock()
	c.again(left)
	return group
}

// again notes that records were not written, so the next checkpoint stores them.
func (c Checkpoints) again(group []checkpointWrite) {
	c.State.Lock()
	defer c.State.Unlock()
	for _, w := range group {
		if r := c.State.Regions[w.region]; r != nil {
			r.stored.reach(w.number).changed = true
			r.stored.failed, r.stored.report, r.CheckpointDue = true, 0, true
		}
	}
}

// collect returns the records that bring a region's checkpoint up to date, in the order in which they
// must be written; none when nothing has changed.
func (c Checkpoints) collect(name string) (out []checkpointWrite) {
	now := c.due(name)
	for _, part := range now.parts {
		w := checkpointWrite{region: name, of: now.of, number: part.number}
		if part.number == 0 || len(part.summaries) > 0 {
			w.rec = &nusav1.CheckpointRecord{}
			w.rec.ProtoReflect().SetUnknown(summaryFields(part.summaries))
		}
		if part.number == 0 {
			w.rec.UpTo, w.rec.Report = now.position, now.report
		}
		w.size = proto.Size(w.rec)
		out = append(out, w)
	}
	return out
}

// latest is what the checkpoint of the region `of` stores now.
type latest struct {
	of       *Region
	position *nusav1.Position
	report   *nusav1.RegionReport
	// parts are the records to write. A record comes before one that has given it summaries, and
	// record 0 is the last one: see CheckpointRecord.
	parts []numbered
}

// numbered are the summaries of the record with a number; without any, the record must be removed.
type numbered struct {
	number    int
	summaries []encodedSummary
}

// due returns what the checkpoint of a region must store; no parts when nothing has changed. From now on
// only later changes are due. A region may have many summaries, so due copies no more than where they
// are.
func (c Checkpoints) due(name string) (now latest) {
	c.State.Lock()
	defer c.State.Unlock()
	r := c.State.Regions[name]
	if r == nil || !r.CheckpointDue && !r.ReportDue {
		return now
	}
	hash := hashOfReport(r.Report)
	changed := r.CheckpointDue || hash != r.stored.report
	r.CheckpointDue, r.ReportDue = false, false
	if !changed {
		return now
	}
	r.stored.report, r.stored.failed = hash, false
	now = latest{of: r, position: &nusav1.Position{Epoch: r.SummariesAt.Epoch, Sequence: r.SummariesAt.Sequence}, report: r.Report}
	held, fresh := changedSummaries(c.State, r)
	now.parts = r.stored.divide(held, fresh)
	for _, part := range now.parts {
		for _, s := range part.summaries {
			r.SummaryKeys[s.key] = int32(part.number)
		}
	}
	return now
}

// encodedSummary is a summary as the state keeps it.
type encodedSummary struct {
	key     string // SummaryKey
	job     JobKey
	encoded []byte // without the names of the job
}

// size returns about how many bytes the summary takes in a record.
func (s *encodedSummary) size() int { return len(s.key) + len(s.encoded) + 16 }

func sizeOfAll(summaries []encodedSummary) (n int) {
	for i := range summaries {
		n += summaries[i].size()
	}
	return n
}

// changedSummaries returns the summaries of the records that must be written, by number, and the summaries
// that have no record yet. The lock is held.
func changedSummaries(st *State, r *Region) (held [][]encodedSummary, fresh []encodedSummary) {
	s := &r.stored
	s.reach(0).changed = true
	if s.unplaced {
		s.parts[s.open].changed = true // the first of them may go there
	}
	held = make([][]encodedSummary, len(s.parts))
	if !s.unplaced && len(s.parts) > 1 && !slices.ContainsFunc(s.parts[1:], func(p checkpointPart) bool { return p.changed }) {
		return held, nil // only the report has changed
	}
	s.unplaced = false
	for key, part := range r.SummaryKeys {
		if part != noPart && !s.parts[part].changed {
			continue
		}
		namespace, name, _ := strings.Cut(key, "/")
		k := JobKey{namespace, name}
		j := st.Jobs[k]
		if j == nil {
			continue
		}
		switch encoded := j.Summaries.Encoded(r.Name); {
		case encoded == nil:
		case part == noPart:
			fresh = append(fresh, encodedSummary{key, k, encoded})
		default:
			held[part] = append(held[part], encodedSummary{key, k, encoded})
		}
	}
	slices.SortFunc(fresh, func(a, b encodedSummary) int { return strings.Compare(a.key, b.key) })
	return held, fresh
}

// divide gives fresh summaries a record and returns the records to write. held has the summaries of the
// changed records. From now on no record is changed.
func (c *checkpointed) divide(held [][]encodedSummary, fresh []encodedSummary) (out []numbered) {
	var givers []numbered
	if len(c.parts) == 1 && sizeOfAll(held[0])+sizeOfAll(fresh) > partBytes {
		fresh, held[0] = append(held[0], fresh...), nil
		c.reach(1)
	}
	held = append(held, make([][]encodedSummary, len(c.parts)-len(held))...)
	for n := 1; n < len(c.parts); n++ {
		size, left := sizeOfAll(held[n]), len(held[n])
		for ; size > mostPartBytes && left > 1; left-- {
			size -= held[n][left-1].size()
		}
		if left < len(held[n]) {
			fresh = append(fresh, held[n][left:]...)
			givers = append(givers, numbered{n, held[n][:left]})
			c.parts[n].changed = false
		}
	}
	for at, size := -1, partBytes; len(fresh) > 0; fresh = fresh[1:] {
		for size >= partBytes {
			at = c.next(at, held)
			if at == len(held) {
				held = append(held, nil)
			}
			size, c.open = sizeOfAll(held[at]), at
		}
		held[at] = append(held[at], fresh[0])
		size += fresh[0].size()
	}
	for n := 1; n < len(c.parts); n++ {
		if c.parts[n].changed && (c.parts[n].stored || len(held[n]) > 0) {
			out = append(out, numbered{n, held[n]})
		}
	}
	for n := range c.parts {
		c.parts[n].changed = false
	}
	return append(append(out, givers...), numbered{0, held[0]})
}

// next returns the number of a record after the given one that may get summaries, or -1 before the first
// one: the records that are written anyway, then one that is not used, then a new one.
func (c *checkpointed) next(after int, held [][]encodedSummary) int {
	if len(c.parts) == 1 && after < 0 {
		return 0
	}
	for n := max(1, after+1); n < len(c.parts); n++ {
		if c.parts[n].changed || !c.parts[n].stored && len(held[n]) == 0 {
			c.parts[n].changed = true
			return n
		}
	}
	c.parts = append(c.parts, checkpointPart{changed: true})
	return len(c.parts) - 1
}

// summaryFields returns the field with the summaries of a record. It is encoded, because to decode
// summaries takes much time and memory.
func summaryFields(summaries []encodedSummary) (b []byte) {
	b = make([]byte, 0, sizeOfAll(summaries))
	for _, s := range summaries {
		b = compact.AppendField(b, checkpointSummaries, s.job.Namespace, s.job.Name, s.encoded)
	}
	return b
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
	number    int
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

// positionOf returns the position of the summaries in loaded records; nil: it is not known. parts is false if an
// earlier version of Nusa has written a record, or if record 0 is missing.
func positionOf(records []*loadedCheckpoint) (at *nusav1.Position, parts bool) {
	same := int(records[0].GetChunks()) == len(records)
	for _, c := range records {
		same = same && c.GetPosition() != nil && proto.Equal(c.GetPosition(), records[0].GetPosition())
		if c.number == 0 {
			at = c.GetUpTo()
		}
	}
	if same {
		return records[0].GetPosition(), false
	}
	if at == nil || slices.ContainsFunc(records, func(c *loadedCheckpoint) bool { return c.GetPosition() != nil }) {
		return nil, false
	}
	return at, true
}

// restoreCheckpoint makes a loaded checkpoint the region's latest summaries and report. The lock is
// held.
func restoreCheckpoint(st *State, r *Region) error {
	if len(r.checkpoint) == 0 {
		return nil
	}
	at, parts := positionOf(r.checkpoint)
	n := 0
	for _, c := range r.checkpoint {
		n += len(c.summaries)
		r.stored.open = max(r.stored.open, c.number)
	}
	r.SummaryKeys = make(map[string]int32, n)
	for _, c := range r.checkpoint {
		// Record 0 has summaries beside others if a server ended while they moved. The next checkpoint
		// moves them, because it may write record 0 without its summaries.
		part := noPart
		if parts && (c.number > 0 || len(r.stored.parts) == 1) {
			part = int32(c.number)
		}
		r.stored.unplaced = r.stored.unplaced || part == noPart && len(c.summaries) > 0
		for _, summary := range c.summaries {
			if err := restoreSummary(st, r, part, summary); err != nil {
				return fmt.Errorf("checkpoint of region %s: %w: %w", r.Name, ErrFormat, err)
			}
		}
	}
	if !parts { // the next checkpoint replaces all records
		for i := range r.stored.parts {
			r.stored.parts[i].changed = true
		}
	}
	if at != nil {
		r.SummariesAt = link.Position{Epoch: at.GetEpoch(), Sequence: at.GetSequence()}
	}
	r.checkpoint = nil
	return nil
}

// restoreSummary applies an encoded summary of a record of a checkpoint. It decodes only what needs more than
// to be kept. The lock is held.
func restoreSummary(st *State, r *Region, part int32, encoded []byte) error {
	if namespace, name, rest, ok := compact.CutNames(encoded); ok {
		j := st.Jobs[JobKey{string(namespace), string(name)}]
		if j != nil && j.Record != nil && j.Record.Type() != place.Batch && j.Summaries.Encoded(r.Name) == nil {
			restorePart(r, j.path, part)
			j.Summaries.PutEncoded(r.Name, bytes.Clone(rest))
			st.summaryChanged(j)
			return nil
		}
	}
	sum := &nusav1.JobSummary{}
	if err := proto.Unmarshal(encoded, sum); err != nil {
		return err
	}
	restorePart(r, sharedKey(st, SummaryKey(r.Name, sum), sum), part)
	st.ApplySummary(r, sum, compact.Encode(sum))
	return nil
}

// restorePart notes which record has a summary. If two have it, a server ended while the summary moved from one
// to the other, so both are due. The lock is held.
func restorePart(r *Region, key string, part int32) {
	was, known := r.SummaryKeys[key]
	if !known {
		r.SummaryKeys[key] = part
	} else if was != part {
		r.stored.note(was)
		r.stored.note(part)
		r.CheckpointDue = true
	}
}
