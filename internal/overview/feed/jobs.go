package feed

import (
	"context"
	"time"

	"github.com/nusa-scheduler/nusa/internal/overview"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// readAtOnce bounds the jobs that one call of a JobSource reads.
	readAtOnce = 256
	// readFor bounds the time that one update spends on changed jobs, and on a new selection.
	// The rest follows with the next update.
	readFor = 100 * time.Millisecond
)

// Job is what the index knows of a job.
type Job struct {
	Key   string
	State nusav1.JobState
	// Gone: the job does not exist any more.
	Gone bool
	Facts
}

// Facts are what filters read of a job.
type Facts struct {
	Label map[string]string
	// Regions are the regions with slots of the job.
	Regions []string
}

// Labels implements overview.Facts.
func (f Facts) Labels() map[string]string { return f.Label }

// In implements overview.Facts.
func (f Facts) In(region string) bool {
	for _, r := range f.Regions {
		if r == region {
			return true
		}
	}
	return false
}

// JobSource reads the jobs of a tier.
type JobSource interface {
	// Follow begins or ends to note which jobs change.
	Follow(on bool)
	// After reads up to most jobs whose keys follow one, in the order of the source. It returns
	// the key from which the next call continues, and "" after the last job.
	After(key string, most int) (jobs []Job, next string)
	// Changed reads up to most jobs that have changed, each once. more: others have changed.
	Changed(most int) (jobs []Job, more bool)
	// Facts reads what filters need of a job. false: it does not exist.
	Facts(key string) (Facts, bool)
	// Line reads the line of a job. nil: it does not exist.
	Line(key string) *nusav1.OverviewJob
}

// jobs keeps the index of the jobs while there are streams. The lock of the hub guards it.
type jobs struct {
	source JobSource
	clock  func() time.Duration
	// index is nil while nobody reads.
	index *overview.Index
	// next is the key from which the first reading continues. complete: it has read all jobs.
	next     string
	complete bool
	readAt   time.Duration
	lines    map[string]line
	// shown are the selections that use lines.
	selections map[*selection]struct{}
}

// line is a line that some stream shows.
type line struct {
	version uint64
	entry   *overview.Entry
}

// selection is what one stream selects.
type selection struct {
	filter overview.Filter
	part   *overview.Selection
}

func newJobs(source JobSource, clock func() time.Duration) *jobs {
	return &jobs{source: source, clock: clock, lines: map[string]line{}, selections: map[*selection]struct{}{}}
}

// add adds a selection.
func (j *jobs) add(f overview.Filter) *selection {
	if j.index == nil {
		j.index, j.next, j.complete = overview.NewIndex(), "", false
		j.source.Follow(true)
	}
	s := &selection{filter: f}
	j.selections[s] = struct{}{}
	return s
}

// drop removes a selection. nil is none.
func (j *jobs) drop(s *selection) {
	if s == nil {
		return
	}
	if s.part != nil && j.index != nil {
		j.index.Drop(s.part)
	}
	delete(j.selections, s)
}

// stop forgets everything.
func (j *jobs) stop() {
	if j.index != nil {
		j.source.Follow(false)
	}
	j.index, j.lines, j.complete, j.next, j.readAt = nil, map[string]line{}, false, "", 0
}

// update reads what has changed, for at most readFor.
func (j *jobs) update(ctx context.Context, age time.Duration) {
	began := j.clock()
	if j.complete && began-j.readAt < age {
		return
	}
	inTime := func() bool { return j.clock()-began < readFor && ctx.Err() == nil }
	for !j.complete && inTime() {
		part, next := j.source.After(j.next, readAtOnce)
		for i := range part {
			j.index.Put(part[i].Key, uint8(part[i].State), part[i].Facts)
		}
		j.next, j.complete = next, next == ""
	}
	more := true
	for more && inTime() {
		var part []Job
		part, more = j.source.Changed(readAtOnce)
		for i := range part {
			if part[i].Gone {
				j.index.Remove(part[i].Key)
				delete(j.lines, part[i].Key) // a job that is created again has versions of its own
			} else {
				j.index.Put(part[i].Key, uint8(part[i].State), part[i].Facts)
			}
		}
	}
	j.readAt = began
	j.forgetLines()
}

// forgetLines drops the lines that no stream shows, once they are many.
func (j *jobs) forgetLines() {
	if len(j.lines) < 4*maxJobs {
		return
	}
	kept := map[string]line{}
	for s := range j.selections {
		if s.part == nil {
			continue
		}
		for _, key := range s.part.First() {
			if l, ok := j.lines[key]; ok {
				kept[key] = l
			}
		}
	}
	j.lines = kept
}

// present returns the jobs and the counts of a selection. Until the jobs are read it returns
// what the reader has.
func (j *jobs) present(ctx context.Context, s *selection, age time.Duration, was overview.Section, counted *overview.Entry) (overview.Section, *overview.Entry, error) {
	j.update(ctx, age)
	if !j.complete {
		return was, counted, ctx.Err()
	}
	if s.part == nil {
		s.part = j.index.Select(s.filter)
	}
	began := j.clock()
	for !j.index.Scan(s.part, readAtOnce, j.facts) {
		if j.clock()-began > readFor || ctx.Err() != nil {
			return was, counted, ctx.Err()
		}
	}
	states, total := s.part.Counts()
	counts := overview.KeepEntry(counted, countsEntry(states, total), j.clock())
	return j.linesOf(s.part.First(), was), counts, nil
}

// facts returns the facts of a job for a filter, or nil.
func (j *jobs) facts(key string) overview.Facts {
	f, ok := j.source.Facts(key)
	if !ok {
		return nil
	}
	return f
}

// linesOf returns the lines of jobs. It returns an earlier result if nothing has changed.
func (j *jobs) linesOf(keys []string, was overview.Section) overview.Section {
	out, same := make(overview.Section, 0, len(keys)), true
	for _, key := range keys {
		l := j.line(key)
		if l == nil {
			continue
		}
		same = same && len(out) < len(was) && was[len(out)] == l
		out = append(out, l)
	}
	if same && len(out) == len(was) {
		return was
	}
	return out
}

// line returns the line of a job, or nil if the job has gone since the latest update.
func (j *jobs) line(key string) *overview.Entry {
	version, known := j.index.Version(key)
	l := j.lines[key]
	if l.entry != nil && l.version == version || !known {
		return l.entry
	}
	m := j.source.Line(key)
	if m == nil {
		return nil
	}
	l = line{version, overview.KeepEntry(l.entry, jobEntry(key, m), j.clock())}
	j.lines[key] = l
	return l.entry
}
