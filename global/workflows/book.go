package workflows

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/schedules"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/alarms"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The kinds of the keys: see state.OtherKey.
const (
	specKind = "workflow-specs"
	runKind  = "workflow-runs"
	stepKind = "workflow-steps"
)

// Bounds of what a server holds.
const (
	// mostActive bounds the runs that have not ended, and mostRuns all runs that are not forgotten.
	mostActive, mostRuns = 10_000, 100_000
	// mostSteps bounds the items of steps of all runs that are not forgotten.
	mostSteps = 2_000_000
)

// Book has the runs of one leadership term. The state's lock guards its fields.
type Book struct {
	term *api.Term
	st   *state.State
	// cost bounds the cost of a plan, see flow.Decide.
	cost int
	// schedules begins runs of workflows with a schedule.
	schedules *schedules.Book
	// loaded: the stored records are read.
	loaded bool
	runs   map[state.JobKey]*run
	// byWorkflow has the runs of each workflow, by name, and live counts those that have not ended.
	byWorkflow map[state.JobKey]map[string]*run
	live       map[state.JobKey]int
	// defs has the definitions by "namespace/" and the name of their records. compiled has those that a
	// request has made before their records were stored.
	defs, compiled map[string]*definition
	// users counts the runs of each definition.
	users map[string]int
	// steps is the number of the items of steps of all runs, and active that of the outermost runs that have not ended.
	steps, active int
	// trees has the number of items of each outermost run with those of the runs inside it.
	trees map[state.JobKey]*int
	// bytes is that of their outputs.
	bytes int
	// outputs are the outputs of jobs whose ends are not stored in the records of their steps yet.
	outputs map[state.JobKey][]output
	// payloads are those of runs that callers have begun. They count for bytes.
	payloads map[state.JobKey][]byte
	// sems are the semaphores by namespace.
	sems  map[string]*semaphores
	clock alarms.Queue[*run]
	// ready is closed when the stored records are read.
	ready chan struct{}
}

// New returns the book of a term. It must be made before the term serves, and Run must be called.
func New(term *api.Term, s *schedules.Book) *Book {
	b := &Book{
		term: term, st: term.State, schedules: s, cost: term.Store.MaxOps() * planShare / 8, runs: map[state.JobKey]*run{}, byWorkflow: map[state.JobKey]map[string]*run{}, live: map[state.JobKey]int{},
		defs: map[string]*definition{}, compiled: map[string]*definition{}, users: map[string]int{}, ready: make(chan struct{}),
		outputs: map[state.JobKey][]output{}, trees: map[state.JobKey]*int{}, payloads: map[state.JobKey][]byte{}, sems: map[string]*semaphores{},
	}
	serveSchedules(b)
	b.st.Lock()
	defer b.st.Unlock()
	if b.st.Others == nil {
		b.st.Others = map[string]func(string, proto.Message){}
	}
	b.st.Others[specKind], b.st.Others[runKind], b.st.Others[stepKind] = b.applySpec, b.applyRun, b.applyStep
	b.st.Letters.RunAgain = func(k state.JobKey) (state.JobKey, bool) { return runAgain(b, k) }
	b.st.Letters.Retried = func(k state.JobKey) (again, known bool) { return retried(b, k) }
	b.st.Others[semaphoreKind] = func(name string, m proto.Message) { applySemaphore(b, name, m) }
	b.st.Others[payloadKind] = func(name string, m proto.Message) { applyPayload(b, name, m) }
	b.st.Others[state.OutputKind] = func(name string, m proto.Message) { applyOutput(b, name, m) }
	return b
}

func specKey(namespace, id string) string { return state.OtherKey(specKind, namespace+"/"+id) }

func runKey(k state.JobKey) string { return state.OtherKey(runKind, k.String()) }

// applySpec notes a stored record. The lock is held.
func (b *Book) applySpec(name string, m proto.Message) {
	rec, _ := m.(*nusav1.WorkflowSpecRecord)
	made := b.compiled[name]
	delete(b.compiled, name)
	switch {
	case rec == nil:
		delete(b.defs, name)
	case made != nil:
		b.defs[name] = made
	default:
		d, err := define(rec.GetSpec())
		if err != nil { // a later version of Nusa stored it
			b.term.Log.Warn("a workflow cannot be read", "workflow", name, "error", err)
			return
		}
		b.defs[name] = d
	}
}

// applyRun notes a stored record. The lock is held.
func (b *Book) applyRun(name string, m proto.Message) {
	namespace, id, _ := strings.Cut(name, "/")
	k := state.JobKey{Namespace: namespace, Name: id}
	rec, _ := m.(*nusav1.WorkflowRunRecord)
	r := b.runs[k]
	if rec == nil {
		if r != nil {
			b.drop(r)
		}
		return
	}
	if r == nil {
		def := b.defs[k.Namespace+"/"+rec.GetSpec()].in(rec.GetRun().GetWorkflow())
		if def == nil {
			b.term.Log.Warn("the workflow of a run is missing", "run", k.String(), "spec", rec.GetSpec())
			return
		}
		r = newRun(k, def, rec)
		b.runs[k] = r
		of := r.workflow()
		if b.byWorkflow[of] == nil {
			b.byWorkflow[of] = map[string]*run{}
		}
		b.byWorkflow[of][k.Name] = r
		b.use(k.Namespace, rec, 1)
		b.steps += r.size
		b.plant(r)
	}
	was, before := r.live(), r.rec.GetRun().GetState()
	r.setRecord(rec)
	b.countLive(r, one(r.live())-one(was && r.counted))
	wakeOuter(b, r)
	if before != rec.GetRun().GetState() {
		leaveQueues(b, r)
	}
	r.counted = true
	b.describe(r.workflow())
	if r.rec.GetRun().GetTime() != nil {
		b.schedules.Noticed(r.workflow(), r.key)
	}
	b.clock.Sooner(r, time.Now())
	b.st.Templates.StepWake.Notify()
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// drop forgets a run. The lock is held.
func (b *Book) drop(r *run) {
	leaveQueues(b, r)
	delete(b.runs, r.key)
	of := r.workflow()
	if delete(b.byWorkflow[of], r.key.Name); len(b.byWorkflow[of]) == 0 {
		delete(b.byWorkflow, of)
	}
	b.use(r.key.Namespace, r.rec, -1)
	b.steps -= r.size
	r.grow(-r.size)
	if r.rec.GetRoot() == "" {
		delete(b.trees, r.key)
	}
	b.countLive(r, -one(r.live()))
	b.bytes -= r.bytes
	b.clock.Set(r, time.Time{})
	b.describe(of)
}

// countLive counts runs of a workflow that have begun or ended. The lock is held.
func (b *Book) countLive(r *run, more int) {
	if r.rec.GetRoot() == "" {
		b.active += more
	}
	k := r.workflow()
	if b.live[k] += more; b.live[k] == 0 {
		delete(b.live, k)
	}
}

// use counts the users of the definitions of a run. The lock is held.
func (b *Book) use(namespace string, rec *nusav1.WorkflowRunRecord, more int) {
	b.users[namespace+"/"+rec.GetSpec()] += more
	for _, id := range rec.GetWorkflows() {
		b.users[namespace+"/"+id] += more
	}
}

// plant counts the items of a run for its outermost run. The lock is held.
func (b *Book) plant(r *run) {
	k := rootKey(r.key.Namespace, r.rec, r.key)
	if b.trees[k] == nil {
		b.trees[k] = new(int)
	}
	r.tree = b.trees[k]
	*r.tree += r.size
}

// describe sets what lists show of a workflow. The lock is held.
func (b *Book) describe(k state.JobKey) {
	if _, is := b.st.Templates.Lines[k]; !is || scheduled(b, k) {
		return
	}
	active := b.live[k]
	line := fmt.Sprintf("%d runs are active", active)
	switch {
	case active == 0:
		line = "no run is active"
	case active == 1:
		line = "1 run is active"
	}
	if line != b.st.Templates.Lines[k] {
		b.st.Templates.Lines[k] = line
		b.st.JobChanged(b.st.Jobs[k])
	}
}

// applyStep notes a stored record. The lock is held.
func (b *Book) applyStep(name string, m proto.Message) {
	parts := strings.SplitN(name, "/", 4)
	if len(parts) < 3 {
		return
	}
	r := b.runs[state.JobKey{Namespace: parts[0], Name: parts[1]}]
	if r == nil {
		return
	}
	i, ok := r.def.graph.Index(parts[2])
	if !ok {
		return
	}
	item := 0
	if r.def.rules[i].Items >= 0 {
		item = wholeItem
	}
	if len(parts) == 4 {
		var err error
		if item, err = strconv.Atoi(parts[3]); err != nil || item < 0 || !r.hasRoom(i, item) {
			return
		}
	}
	rec, _ := m.(*nusav1.WorkflowStepRecord)
	size, bytes := r.size, r.bytes
	r.set(i, item, rec)
	noteHolds(b, r, i, item)
	b.steps += r.size - size
	b.bytes += r.bytes - bytes
	b.clock.Sooner(r, time.Now())
	b.st.Templates.StepWake.Notify()
}

// load reads the stored records. No transaction of this term has changed one yet.
func (b *Book) load(ctx context.Context) error {
	for _, of := range []struct {
		kind  string
		fresh func() proto.Message
		apply func(string, proto.Message)
	}{
		{semaphoreKind, func() proto.Message { return &nusav1.SemaphoreRecord{} }, func(name string, m proto.Message) { applySemaphore(b, name, m) }},
		{payloadKind, func() proto.Message { return &nusav1.WorkflowPayloadRecord{} }, func(name string, m proto.Message) { applyPayload(b, name, m) }},
		{specKind, func() proto.Message { return &nusav1.WorkflowSpecRecord{} }, b.applySpec},
		{runKind, func() proto.Message { return &nusav1.WorkflowRunRecord{} }, b.applyRun},
		{stepKind, func() proto.Message { return &nusav1.WorkflowStepRecord{} }, b.applyStep},
		{state.OutputKind, func() proto.Message { return &nusav1.WorkflowOutputRecord{} }, func(name string, m proto.Message) { applyOutput(b, name, m) }},
	} {
		prefix := state.OtherKey(of.kind, "")
		_, err := b.term.Store.List(ctx, prefix, func(kv store.KV) error {
			rec := of.fresh()
			if err := state.Decode(kv, rec); err != nil {
				return err
			}
			name := strings.TrimPrefix(kv.Key, prefix)
			var made *definition
			if spec, is := rec.(*nusav1.WorkflowSpecRecord); is {
				made, _ = define(spec.GetSpec()) // it may take a second; applySpec reports an error
			}
			b.st.Lock()
			if made != nil {
				b.compiled[name] = made
			}
			of.apply(name, rec)
			b.st.Unlock()
			return nil
		})
		if err != nil {
			return fmt.Errorf("read the workflows: %w", err)
		}
	}
	b.st.Lock()
	defer b.st.Unlock()
	for _, r := range b.runs {
		r.setRecord(r.rec) // now that the steps are known, so is which of them a retry has not reset
	}
	b.loaded = true
	b.st.Letters.Wake.Notify()
	if b.schedules != nil {
		b.schedules.FlowsRead()
	}
	return nil
}

// may reports whether this server may begin and steer runs now. The lock is held.
func (b *Book) may() error {
	switch {
	case b.st.GlobalLevel < state.WorkflowLevel:
		return errors.New("some global servers have an earlier version of Nusa: upgrade them first")
	case b.st.OldCopy():
		return errors.New("the store is an old copy: see nusa server recover")
	}
	return nil
}
