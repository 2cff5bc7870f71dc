package letters

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/deadletters/plan"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The prefixes of the keys in the store. Prefix is that of a *nusav1.DeadLetter, and SourcePrefix that of the
// instances of a version that have left one.
const (
	Prefix       = "deadletters/"
	SourcePrefix = "deadletter-sources/"
)

// awaitMost is how long the end of a job waits for a region that does not return the failed instances.
const awaitMost = 10 * time.Second

// Source is a version of a run of a job.
type Source struct {
	Job          string
	Run, Version int64
}

// Key returns the key in the store.
func (s Source) Key() string { return fmt.Sprintf("%s%s/%d-%d", SourcePrefix, s.Job, s.Run, s.Version) }

// Spans is the stored record of a source.
type Spans struct {
	Source
	Collected []plan.Span
}

// SourceOf returns the source of a dead letter.
func SourceOf(l *nusav1.DeadLetter) Source { return Source{l.GetJob(), l.GetRun(), l.GetJobVersion()} }

// ID returns the id of a dead letter.
func ID(l *nusav1.DeadLetter) string {
	return fmt.Sprintf("%s/%d-%d/%s/%d", l.GetJob(), l.GetRun(), l.GetJobVersion(), l.GetGroup(), l.GetIndex())
}

// Mark identifies the failures that a region counts.
type Mark struct {
	Version, Run int64
	Failed       int
}

type part struct{ job, region string }

type ask struct {
	mark  Mark
	since time.Duration
}

// Book has what one leadership term knows of dead letters.
type Book struct {
	sources map[Source][]plan.Span
	seen    map[part]Mark
	wanted  map[part]*ask
	asking  map[string]int // by region: the number of the call
	calls   int
	pending map[string][]*nusav1.DeadLetter // by job
}

// New returns the book of a new term.
func New() *Book {
	return &Book{sources: map[Source][]plan.Span{}, seen: map[part]Mark{}, wanted: map[part]*ask{}, asking: map[string]int{}, pending: map[string][]*nusav1.DeadLetter{}}
}

// Apply notes a stored record.
func (b *Book) Apply(key string, value any) {
	switch v := value.(type) {
	case *Spans:
		b.sources[v.Source] = v.Collected
	case *nusav1.DeadLetter:
		b.drop(v.GetJob(), func(l *nusav1.DeadLetter) bool { return Prefix+ID(l) == key })
	}
}

func (b *Book) drop(job string, of func(*nusav1.DeadLetter) bool) {
	b.pending[job] = slices.DeleteFunc(slices.Clone(b.pending[job]), of)
	if len(b.pending[job]) == 0 {
		delete(b.pending, job)
	}
}

// Look notes that a region counts failed instances of a job.
func (b *Book) Look(job, region string, m Mark, now time.Duration) {
	p := part{job, region}
	switch w := b.wanted[p]; {
	case b.seen[p] == m:
	case w != nil:
		w.mark = m
	default:
		b.wanted[p] = &ask{m, now}
	}
}

// Ignore notes the failures that a region counts as if it had been asked.
func (b *Book) Ignore(job, region string, m Mark) { b.seen[part{job, region}] = m }

// Call is a call to a region.
type Call struct {
	Number int
	Region string
	Jobs   []*nusav1.CollectJob
	marks  map[string]Mark
}

// Call returns the next call to a region, or nil.
func (b *Book) Call(region string) *Call {
	if b.asking[region] != 0 {
		return nil
	}
	b.calls++
	c := &Call{Number: b.calls, Region: region, marks: map[string]Mark{}}
	for p, w := range b.wanted {
		if p.region == region {
			c.marks[p.job] = w.mark
		}
	}
	for job := range c.marks {
		of := &nusav1.CollectJob{Namespace: "default", Name: job}
		for s, spans := range b.sources {
			if s.Job == job {
				of.Collected = append(of.Collected, spansOf(s, spans)...)
			}
		}
		for _, l := range b.pending[job] {
			of.Collected = append(of.Collected, spansOf(SourceOf(l), []plan.Span{{Group: l.GetGroup(), From: l.GetIndex(), To: l.GetIndex() + 1}})...)
		}
		c.Jobs = append(c.Jobs, of)
	}
	if len(c.Jobs) == 0 {
		return nil
	}
	slices.SortFunc(c.Jobs, func(x, y *nusav1.CollectJob) int { return strings.Compare(x.GetName(), y.GetName()) })
	b.asking[region] = c.Number
	return c
}

func spansOf(s Source, spans []plan.Span) (out []*nusav1.CollectedSpan) {
	for _, p := range spans {
		out = append(out, &nusav1.CollectedSpan{Group: p.Group, JobVersion: s.Version, Run: s.Run, From: p.From, To: p.To})
	}
	return out
}

// Failed notes that a call failed, or took too long.
func (b *Book) Failed(c *Call) {
	if b.asking[c.Region] == c.Number {
		delete(b.asking, c.Region)
	}
}

// Returned notes the response to a call. It returns the jobs of new instances, sorted.
func (b *Book) Returned(c *Call, all []*nusav1.DeadLetter, more bool) (jobs []string) {
	if b.asking[c.Region] != c.Number {
		return nil
	}
	delete(b.asking, c.Region)
	named, fresh := map[string]bool{}, map[string]bool{}
	for _, l := range all {
		if _, asked := c.marks[l.GetJob()]; !asked {
			continue
		}
		named[l.GetJob()] = true
		if b.note(l) {
			fresh[l.GetJob()] = true
		}
	}
	for job, m := range c.marks {
		if more && (fresh[job] || !named[job] && len(fresh) > 0) {
			continue
		}
		p := part{job, c.Region}
		b.seen[p] = m
		if w := b.wanted[p]; w != nil && w.mark == m {
			delete(b.wanted, p)
		}
	}
	for job := range fresh {
		jobs = append(jobs, job)
	}
	slices.Sort(jobs)
	return jobs
}

// note notes an instance that must be stored. It returns false if the instance is known.
func (b *Book) note(l *nusav1.DeadLetter) bool {
	if plan.Has(b.sources[SourceOf(l)], l.GetGroup(), l.GetIndex()) {
		return false
	}
	if slices.ContainsFunc(b.pending[l.GetJob()], func(o *nusav1.DeadLetter) bool { return ID(o) == ID(l) }) {
		return false
	}
	b.pending[l.GetJob()] = append(b.pending[l.GetJob()], l)
	return true
}

// Writes returns the dead letters of a job that are not stored yet, and the records of their sources.
func (b *Book) Writes(job string) (out []*nusav1.DeadLetter, sources []*Spans) {
	spans := map[Source]*Spans{}
	for _, l := range b.pending[job] {
		s := SourceOf(l)
		if spans[s] == nil {
			spans[s] = &Spans{s, b.sources[s]}
			sources = append(sources, spans[s])
		}
		if !plan.Has(spans[s].Collected, l.GetGroup(), l.GetIndex()) {
			spans[s].Collected = plan.Add(spans[s].Collected, l.GetGroup(), l.GetIndex())
			out = append(out, l)
		}
	}
	return out, sources
}

// Awaits reports whether the end of a job must wait for dead letters.
func (b *Book) Awaits(job string, now time.Duration) bool {
	waits, _ := b.open(job, now)
	return waits
}

// TimedOut reports whether a region did not return the failed instances of a job in time.
func (b *Book) TimedOut(job string, now time.Duration) bool {
	_, late := b.open(job, now)
	return late
}

func (b *Book) open(job string, now time.Duration) (waits, late bool) {
	waits = len(b.pending[job]) > 0
	for p, w := range b.wanted {
		if p.job == job {
			waits, late = waits || now-w.since < awaitMost, late || now-w.since >= awaitMost
		}
	}
	return waits, late
}

// Forget forgets what is not stored of a job that does not exist.
func (b *Book) Forget(known func(job string) bool) {
	for p := range b.seen {
		if !known(p.job) {
			delete(b.seen, p)
		}
	}
	for p := range b.wanted {
		if !known(p.job) {
			delete(b.wanted, p)
		}
	}
}
