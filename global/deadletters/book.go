package deadletters

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/deadletters/plan"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/notify"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The kinds of the keys: see state.OtherKey. The records of specKind and sourceKind are DeadLetterSource: one
// has the spec, which is written once, and the other one the instances.
const (
	letterKind = "deadletters"
	logKind    = "deadletter-logs"
	specKind   = "deadletter-specs"
	sourceKind = "deadletter-sources"
)

// DefaultRetention and DefaultAlarm are the defaults of the flags of a server.
const (
	DefaultRetention = 30 * 24 * time.Hour
	DefaultAlarm     = 100
)

// mostLetters and mostBytes bound the stored dead letters. The oldest are forgotten first.
const mostLetters, mostBytes = 10_000, 64 << 20

// Config configures a Book.
type Config struct {
	Term *api.Term
	// Retention is how long a dead letter is stored.
	Retention time.Duration
	// Alarm is the number of open dead letters above which there is an alarm. 0: there is none.
	Alarm int
	// WakePlacer is called when the result of a job need not wait any more.
	WakePlacer func()
}

// Book has the dead letters of one leadership term. The state's lock guards its fields.
type Book struct {
	cfg  Config
	st   *state.State
	byID map[string]*entry
	// order has the entries by the times at which they were stored, and then by their ids.
	order       []*entry
	bytes, open int
	sources     map[sourceKey]*source
	byJob       map[state.JobKey][]sourceKey
	// seen says about which failures the region of a job was asked. wanted are those to ask, by region.
	seen   map[part]mark
	wanted map[string]map[state.JobKey]*ask
	asking map[string]bool
	// later are jobs with new failures that may still be tried again.
	later state.JobSet
	// pending are instances that are not stored yet, by job. pendingCount is their number.
	pending      map[state.JobKey][]*nusav1.DeadLetter
	pendingSpecs map[sourceKey][]byte
	pendingCount int
	// pendingSince is when the oldest of them came. Zero: there is none.
	pendingSince time.Time
	retries      map[string]retry
	wake         notify.Signal
	// logs are dead letters whose logs are to be read.
	logs chan string
	// ready is closed when the stored records are read.
	ready chan struct{}
}

// entry is a dead letter. Its record is never changed in place.
type entry struct {
	rec   *nusav1.DeadLetter
	bytes int
}

// sourceKey is a version of a run of a job.
type sourceKey struct {
	job          state.JobKey
	run, version int64
}

func (s sourceKey) String() string {
	return fmt.Sprintf("%s/%d-%d", s.job, s.run, s.version)
}

// compare orders the sources of a job, the latest last.
func (s sourceKey) compare(o sourceKey) int {
	return cmp.Or(cmp.Compare(s.run, o.run), cmp.Compare(s.version, o.version))
}

// parseSource is the inverse of String.
func parseSource(name string) (s sourceKey, ok bool) {
	parts := strings.Split(name, "/")
	if len(parts) != 3 {
		return s, false
	}
	run, version, _ := strings.Cut(parts[2], "-")
	s.job = state.JobKey{Namespace: parts[0], Name: parts[1]}
	var err, e error
	s.run, err = strconv.ParseInt(run, 10, 64)
	s.version, e = strconv.ParseInt(version, 10, 64)
	return s, err == nil && e == nil
}

// source is what the dead letters of a version have in common.
type source struct {
	collected []plan.Span
	hasSpec   bool
	labels    map[string]string // of the job, if there is a spec
	letters   int
	// full: an instance left no dead letter because of mostRanges.
	full bool
}

func sourceOf(l *nusav1.DeadLetter) sourceKey {
	return sourceKey{jobOf(l), l.GetRun(), l.GetJobVersion()}
}

func jobOf(l *nusav1.DeadLetter) state.JobKey {
	return state.JobKey{Namespace: l.GetNamespace(), Name: l.GetJob()}
}

func letterKey(id string) string { return state.OtherKey(letterKind, id) }
func logKey(id string) string    { return state.OtherKey(logKind, id) }
func specKey(s sourceKey) string { return state.OtherKey(specKind, s.String()) }
func spansKey(s sourceKey) string {
	return state.OtherKey(sourceKind, s.String())
}

// New returns the book of a term. It must be made before the term serves, and Run must be called.
func New(cfg Config) *Book {
	b := &Book{
		cfg: cfg, st: cfg.Term.State, byID: map[string]*entry{}, sources: map[sourceKey]*source{}, byJob: map[state.JobKey][]sourceKey{},
		seen: map[part]mark{}, wanted: map[string]map[state.JobKey]*ask{}, asking: map[string]bool{}, pending: map[state.JobKey][]*nusav1.DeadLetter{},
		pendingSpecs: map[sourceKey][]byte{}, retries: map[string]retry{}, logs: make(chan string, mostLogs), ready: make(chan struct{}),
	}
	b.st.Lock()
	defer b.st.Unlock()
	if b.st.Others == nil {
		b.st.Others = map[string]func(string, proto.Message){}
	}
	b.st.Others[letterKind], b.st.Others[sourceKind], b.st.Others[specKind] = b.applyLetter, b.applySource, b.applySpec
	b.st.Letters.Awaited, b.st.Letters.Add = b.awaited, b.add
	return b
}

// applyLetter notes a stored record. The lock is held.
func (b *Book) applyLetter(id string, m proto.Message) {
	rec, _ := m.(*nusav1.DeadLetterRecord)
	old := b.byID[id]
	if old != nil {
		b.bytes -= old.bytes
		b.countOpen(old.rec, -1)
	}
	if rec == nil {
		if old != nil {
			delete(b.byID, id)
			b.order = slices.DeleteFunc(b.order, func(e *entry) bool { return e == old })
			b.sourceAt(sourceOf(old.rec)).letters--
		}
		return
	}
	l := rec.GetDeadLetter()
	e := old
	if e == nil {
		e = &entry{rec: l}
		b.byID[id] = e
		at, _ := slices.BinarySearchFunc(b.order, e, compare)
		b.order = slices.Insert(b.order, at, e)
		b.sourceAt(sourceOf(l)).letters++
	}
	e.rec, e.bytes = l, proto.Size(rec)+2*len(letterKey(id))+mostLog
	b.bytes += e.bytes
	b.countOpen(l, 1)
	if old == nil {
		b.stored(l)
	}
}

// compare compares entries by the times at which they were stored, and then by their ids.
func compare(x, y *entry) int {
	return cmp.Or(x.rec.GetCreated().AsTime().Compare(y.rec.GetCreated().AsTime()), cmp.Compare(x.rec.GetId(), y.rec.GetId()))
}

func (b *Book) countOpen(l *nusav1.DeadLetter, n int) {
	if l.GetState() == nusav1.DeadLetterState_DEAD_LETTER_STATE_OPEN {
		b.open += n
	}
}

// sourceAt returns a source, and makes it if there is none. The lock is held.
func (b *Book) sourceAt(k sourceKey) *source {
	s := b.sources[k]
	if s == nil {
		s = &source{}
		b.sources[k] = s
		b.byJob[k.job] = append(b.byJob[k.job], k)
	}
	return s
}

// applySource notes which instances have left a dead letter. The lock is held.
func (b *Book) applySource(name string, m proto.Message) {
	k, ok := parseSource(name)
	if !ok {
		return
	}
	rec, _ := m.(*nusav1.DeadLetterSource)
	if rec == nil {
		delete(b.sources, k)
		delete(b.pendingSpecs, k)
		b.byJob[k.job] = slices.DeleteFunc(b.byJob[k.job], func(s sourceKey) bool { return s == k })
		if len(b.byJob[k.job]) == 0 {
			delete(b.byJob, k.job)
		}
		return
	}
	s := b.sourceAt(k)
	s.collected = nil
	for _, span := range rec.GetCollected() {
		s.collected = append(s.collected, plan.Span{Group: span.GetGroup(), From: span.GetFrom(), To: span.GetTo()})
	}
}

// applySpec notes that a spec is stored. The lock is held.
func (b *Book) applySpec(name string, m proto.Message) {
	rec, _ := m.(*nusav1.DeadLetterSource)
	if k, ok := parseSource(name); ok && rec != nil {
		s := b.sourceAt(k)
		s.hasSpec, s.labels = true, rec.GetLabels()
		delete(b.pendingSpecs, k)
	}
}

// load reads the stored records. Records that were stored in this term are newer than what it reads.
func (b *Book) load(ctx context.Context) error {
	var letters []*nusav1.DeadLetterRecord
	var spans, specs []string
	found, labels := map[string]*nusav1.DeadLetterSource{}, map[string]map[string]string{}
	for kind, read := range map[string]func(name string, kv store.KV) error{
		letterKind: func(_ string, kv store.KV) error {
			rec := &nusav1.DeadLetterRecord{}
			letters = append(letters, rec)
			return state.Decode(kv, rec)
		},
		sourceKind: func(name string, kv store.KV) error {
			rec := &nusav1.DeadLetterSource{}
			found[name], spans = rec, append(spans, name)
			return state.Decode(kv, rec)
		},
		specKind: func(name string, kv store.KV) error {
			rec := &nusav1.DeadLetterSource{}
			if err := state.Decode(kv, rec); err != nil {
				return err
			}
			if rec.GetLabels() == nil { // of an earlier version, or of a job without labels
				rec.Labels = labelsIn(rec.GetSpec())
			}
			labels[name], specs = rec.GetLabels(), append(specs, name)
			return nil
		},
	} {
		prefix := state.OtherKey(kind, "")
		_, err := b.cfg.Term.Store.List(ctx, prefix, func(kv store.KV) error { return read(strings.TrimPrefix(kv.Key, prefix), kv) })
		if err != nil {
			return fmt.Errorf("read the dead letters: %w", err)
		}
	}
	b.st.Lock()
	defer b.st.Unlock()
	for _, name := range spans {
		b.applySource(name, found[name])
	}
	for _, name := range specs {
		b.applySpec(name, &nusav1.DeadLetterSource{Labels: labels[name]})
	}
	for _, rec := range letters {
		b.applyLetter(rec.GetDeadLetter().GetId(), rec)
	}
	return nil
}

// Open returns the number of open dead letters. The lock is held.
func (b *Book) Open() int { return b.open }

// present returns a dead letter as a transaction leaves it, or nil.
func (b *Book) present(t *state.Tx, id string) *nusav1.DeadLetter {
	if m, changed := state.OtherOf(t, letterKey(id)); changed {
		rec, _ := m.(*nusav1.DeadLetterRecord)
		return rec.GetDeadLetter()
	}
	if e := b.byID[id]; e != nil {
		return e.rec
	}
	return nil
}
