package schedules

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/schedules/plan"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/alarms"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The kinds of the keys: see state.OtherKey.
const (
	scheduleKind = "schedules"
	runKind      = "job-runs"
)

// Book has the schedules and runs of one leadership term. The state's lock guards its fields.
type Book struct {
	term  *api.Term
	st    *state.State
	byJob map[state.JobKey]*entry
	// total is the number of the runs of all entries.
	total int
	// clock says when the loop must decide about an entry.
	clock alarms.Queue[*entry]
	// flows begins the runs of workflows.
	flows Workflows
	// ready is closed when the stored records are read.
	ready chan struct{}
}

// entry is a job that begins runs, or whose runs are not forgotten. Records are never changed in place.
type entry struct {
	key state.JobKey
	// one lets one caller at a time decide about the schedule. It is locked before the state.
	one sync.Mutex
	// rec is nil before the first decision.
	rec  *nusav1.ScheduleRecord
	runs map[string]*nusav1.RunRecord // by name
	// active are the names of the runs whose records do not say that they have ended.
	active map[string]struct{}
	// over are those of them that have ended by their jobs. checked is when all active runs were looked at.
	over    map[string]struct{}
	checked time.Time
	// live are the runs of a workflow that have not ended, also those that a retry runs again.
	live map[string]struct{}

	// record is the stored job, from which the following are made. It is nil if the job begins no runs.
	record    *state.Record
	spec      *nusav1.JobSpec
	rule      plan.Rule
	zone      *time.Location // in which texts show times
	hash      []byte
	submitted time.Time

	alarms.Alarm // when the loop must decide at the latest
	// tidied is when tooOld found no run to forget, and tidyAt when it will find one by its age. untidy:
	// it may find one since a change.
	tidied, tidyAt time.Time
	untidy         bool
	// pause is the time to the next try after an error.
	pause time.Duration
}

// New returns the book of a term. It must be made before the term serves, and Run must be called.
func New(term *api.Term) *Book {
	b := &Book{term: term, st: term.State, byJob: map[state.JobKey]*entry{}, ready: make(chan struct{})}
	b.st.Lock()
	defer b.st.Unlock()
	if b.st.Others == nil {
		b.st.Others = map[string]func(string, proto.Message){}
	}
	b.st.Others[scheduleKind], b.st.Others[runKind] = b.applySchedule, b.applyRun
	return b
}

func scheduleKey(k state.JobKey) string { return state.OtherKey(scheduleKind, k.String()) }

func runKey(of state.JobKey, name string) string {
	return state.OtherKey(runKind, of.String()+"/"+name)
}

// entryOf returns the entry of a job, and makes it if there is none. The lock is held.
func (b *Book) entryOf(k state.JobKey) *entry {
	e := b.byJob[k]
	if e == nil {
		e = &entry{key: k, runs: map[string]*nusav1.RunRecord{}, active: map[string]struct{}{}, live: map[string]struct{}{}, over: map[string]struct{}{}}
		b.byJob[k] = e
	}
	return e
}

// empty reports whether an entry tells nothing but what the stored job says. The lock is held.
func (e *entry) empty() bool { return e.rec == nil && len(e.runs) == 0 && len(e.live) == 0 }

// drop forgets an entry, but no other one of the same job. The lock is held.
func (b *Book) drop(e *entry) {
	b.clock.Set(e, time.Time{})
	if b.byJob[e.key] == e {
		delete(b.byJob, e.key)
	}
}

// applySchedule notes a stored record. The lock is held.
func (b *Book) applySchedule(name string, m proto.Message) {
	namespace, job, _ := strings.Cut(name, "/")
	rec, _ := m.(*nusav1.ScheduleRecord)
	k := state.JobKey{Namespace: namespace, Name: job}
	if rec != nil || b.byJob[k] != nil {
		b.entryOf(k).rec = rec
	}
}

// applyRun notes a stored record. The lock is held.
func (b *Book) applyRun(name string, m proto.Message) {
	parts := strings.SplitN(name, "/", 3)
	if len(parts) != 3 {
		return
	}
	k := state.JobKey{Namespace: parts[0], Name: parts[1]}
	rec, _ := m.(*nusav1.RunRecord)
	if rec == nil && b.byJob[k] == nil {
		return
	}
	e := b.entryOf(k)
	before := len(e.runs)
	delete(e.active, parts[2])
	delete(e.over, parts[2])
	if rec == nil {
		delete(e.runs, parts[2])
	} else {
		e.runs[parts[2]] = rec
		if rec.GetRun().GetState() == nusav1.JobRunState_JOB_RUN_STATE_ACTIVE {
			e.active[parts[2]] = struct{}{}
		}
	}
	e.untidy = true
	b.total += len(e.runs) - before
}

// load reads the stored records. No transaction of this term has changed one yet.
func (b *Book) load(ctx context.Context) error {
	type stored struct {
		name string
		rec  proto.Message
	}
	for _, of := range []struct {
		kind  string
		fresh func() proto.Message
		apply func(string, proto.Message)
	}{
		{scheduleKind, func() proto.Message { return &nusav1.ScheduleRecord{} }, b.applySchedule},
		{runKind, func() proto.Message { return &nusav1.RunRecord{} }, b.applyRun},
	} {
		prefix := state.OtherKey(of.kind, "")
		var all []stored
		_, err := b.term.Store.List(ctx, prefix, func(kv store.KV) error {
			rec := of.fresh()
			all = append(all, stored{strings.TrimPrefix(kv.Key, prefix), rec})
			return state.Decode(kv, rec)
		})
		if err != nil {
			return fmt.Errorf("read the schedules: %w", err)
		}
		b.st.Lock()
		for _, s := range all {
			of.apply(s.name, s.rec)
		}
		b.st.Unlock()
	}
	return nil
}

// refresh makes what follows from the stored job. If the job has changed, the loop decides about it. The
// lock is held.
func (b *Book) refresh(e *entry) {
	var rec *state.Record
	if j := b.st.Jobs[e.key]; j != nil && begins(j.Record) {
		rec = j.Record
	}
	if e.record == rec {
		return
	}
	e.record, e.spec, e.untidy = rec, nil, true
	b.clock.Sooner(e, time.Now())
	if rec != nil {
		full := rec.Full()
		e.spec, e.submitted = full.GetJob().GetSpec(), full.GetJob().GetSubmitted().AsTime()
		e.rule, e.hash = ruleOf(e.key, e.spec)
		e.zone = zoneOf(e.spec.GetSchedule())
	}
}

// Serve makes the runs of workflows with a schedule begin. It must be called before Run.
func (b *Book) Serve(w Workflows) { b.flows = w }

// Noticed tells that a run of a workflow has begun or ended. The lock is held.
func (b *Book) Noticed(of, run state.JobKey) {
	now := time.Now()
	b.notice(run, now)
	if to, _, _, known := b.flows.State(run); known && to == nusav1.JobRunState_JOB_RUN_STATE_ACTIVE {
		b.entryOf(of).live[run.Name] = struct{}{}
	} else if e := b.byJob[of]; e != nil {
		delete(e.live, run.Name)
		if e.record == nil && e.empty() {
			b.drop(e) // no alarm is set for it
		}
	}
	if e := b.byJob[of]; e != nil && e.record != nil {
		b.clock.Sooner(e, now)
		b.st.Templates.Wake.Notify()
	}
}

// FlowsRead tells that the stored runs of workflows are read. The lock is held.
func (b *Book) FlowsRead() {
	now := time.Now()
	for _, e := range b.byJob {
		if e.ofWorkflow() || len(e.active) > 0 {
			e.checked = time.Time{}
			b.clock.Sooner(e, now)
		}
	}
	b.st.Templates.Wake.Notify()
}

// Awaits reports whether a run of a schedule is not noted to have ended. The lock is held.
func (b *Book) Awaits(of state.JobKey, run string) bool {
	e := b.byJob[of]
	if e == nil {
		return false
	}
	_, active := e.active[run]
	return active
}
