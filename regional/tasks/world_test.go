package tasks

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

const second = int64(time.Second)

// world is a region's log that random commands change, and what its history must be.
type world struct {
	t     testing.TB
	st    *state.State
	rnd   *rand.Rand
	now   int64
	index uint64
	seq   uint64
	jobs  int
	// want are the records by id; order has the ids in the order of their placement.
	want  map[string]*nusav1.TaskRecord
	order []string
	live  []string
}

func (w *world) View() *state.View { return w.st.Snapshot() }

func (w *world) Watch() (*state.View, <-chan struct{}) { return w.st.Snapshot(), nil }

func newWorld(t testing.TB, seed uint64) *world {
	w := &world{t: t, st: state.New(), rnd: rand.New(rand.NewPCG(seed, 7)), now: 1_000_000 * second, want: map[string]*nusav1.TaskRecord{}}
	w.do(state.Command{Bootstrap: &state.Bootstrap{ClusterID: "c", Region: "sea"}})
	w.do(state.Command{SetLimits: &state.SetLimits{FeatureLevel: state.FeatureLevel}})
	for i := range 4 {
		w.do(state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{
			ID: nodeID(i), Name: fmt.Sprint("n", i), Pool: "default", Capacity: state.Resources{CPUMilli: 1 << 40, MemoryBytes: 1 << 60, DiskBytes: 1 << 60},
		}}})
	}
	return w
}

func nodeID(i int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", i) }

func (w *world) id() string {
	r := w.rnd
	return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", r.Uint32(), r.Uint32N(1<<16), r.Uint32N(1<<12), r.Uint32N(1<<12), r.Uint64N(1<<48))
}

func (w *world) do(c state.Command) {
	w.t.Helper()
	w.index++
	c.NowUnixNano = w.now
	if r := w.st.Apply(w.index, c); r.Err != nil || len(r.Skipped) > 0 {
		w.t.Fatal(r.Err, r.Skipped)
	}
}

// submit submits a job of n instances and places them on one node.
func (w *world) submit(n int) {
	w.jobs++
	name := fmt.Sprintf("job-%d", w.jobs)
	labels := map[string]string{"team": fmt.Sprint("t", w.rnd.IntN(3)), "kind": fmt.Sprint("k", w.rnd.IntN(2))}
	spec, err := proto.Marshal(&nusav1.JobSpec{Name: name, Labels: labels})
	if err != nil {
		w.t.Fatal(err)
	}
	namespace := []string{"default", "prod"}[w.rnd.IntN(2)]
	w.do(state.Command{SubmitLocalJob: &state.SubmitLocalJob{Job: state.Job{
		Key: state.JobKey{Namespace: namespace, Job: name, Local: true}, Type: state.Batch, Spec: spec,
		Groups: []state.Group{{Name: "main", Hash: 7, Count: int32(n), Ask: state.Ask{Resources: state.Resources{CPUMilli: 10}, Pool: "default"}}},
	}}})
	g := state.PlaceGroup{Key: state.GroupKey{Namespace: namespace, Job: name, Group: "main", Local: true}, JobVersion: 1}
	node := w.rnd.IntN(4)
	for i := range n {
		id := w.id()
		g.Allocs = append(g.Allocs, state.PlaceAlloc{ID: id, Index: int32(i), NodeID: nodeID(node), Why: "test"})
		w.want[id] = &nusav1.TaskRecord{
			Id: id, Namespace: namespace, Job: name + "@sea", Own: true, Group: "main", Index: int32(i), JobVersion: 1, Region: "sea",
			NodeId: nodeID(node), Node: fmt.Sprint("n", node), Placed: timestamp(w.now), Labels: labels,
		}
		w.order, w.live = append(w.order, id), append(w.live, id)
		w.expect(id, nusav1.AllocState_ALLOC_STATE_PENDING, 0)
		w.want[id].Message, w.want[id].Changes[0].Message = "test", "test"
	}
	w.do(state.Command{ApplyPlan: &state.ApplyPlan{Places: []state.PlaceGroup{g}}})
}

// expect adds a change to what the history must be.
func (w *world) expect(id string, s nusav1.AllocState, restarts int32) {
	rec := w.want[id]
	rec.State, rec.Message, rec.Restarts = s, "", max(rec.Restarts, restarts)
	rec.Changes = append(rec.Changes, &nusav1.TaskChange{Time: timestamp(w.now), State: s, Restarts: restarts})
	if s == nusav1.AllocState_ALLOC_STATE_RUNNING && rec.Started == nil {
		rec.Started = timestamp(w.now)
	}
	if state.AllocState(s).Terminal() {
		rec.Ended = timestamp(w.now)
	}
}

// report lets the agent of a live allocation report its next state.
func (w *world) report() {
	if len(w.live) == 0 {
		return
	}
	at := w.rnd.IntN(len(w.live))
	id := w.live[at]
	rec := w.want[id]
	next := []state.AllocState{state.Starting, state.Running, state.Running, state.Complete, state.Failed}[w.rnd.IntN(5)]
	restarts := rec.Restarts
	switch have := state.AllocState(rec.State); {
	case next < have:
		return
	case next == have && next == state.Running:
		restarts++
	case next == have:
		return
	}
	w.seq++
	w.do(state.Command{AgentReports: &state.AgentReports{
		NodeID: rec.NodeId, Position: state.Position{Epoch: "e", Sequence: w.seq}, Reports: []state.AllocReport{{ID: id, State: next, Restarts: restarts}},
	}})
	w.expect(id, nusav1.AllocState(next), restarts)
	if next.Terminal() {
		w.live = slices.Delete(w.live, at, at+1)
	}
}

// step changes the log once.
func (w *world) step() {
	w.now += int64(w.rnd.IntN(3)) * second
	if w.rnd.IntN(6) == 0 {
		w.submit(1 + w.rnd.IntN(8))
		return
	}
	w.report()
}

// fast lets n events pass in the log that are not about allocations.
func (w *world) fast(n int) {
	for i := range n {
		w.do(state.Command{CordonNode: &state.CordonNode{ID: nodeID(0), Cordon: i%2 == 0}})
	}
}

func (w *world) clock() time.Time { return time.Unix(0, w.now) }

// newStore returns an open store in a new folder.
func (w *world) newStore(limits Limits) (*Store, *Recorder) {
	s := NewStore(filepath.Join(w.t.TempDir(), "tasks"), limits, slog.New(slog.DiscardHandler))
	s.noSync = true
	if err := s.open(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.close("the test ends") })
	return s, &Recorder{Log: w, Region: "sea", Store: s, Logger: s.log, now: w.clock}
}

// write lets a recorder write what the log has.
func (w *world) write(r *Recorder) {
	w.t.Helper()
	if _, err := r.write(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// check compares the records in a store with what they must be.
func (w *world) check(s *Store) {
	w.t.Helper()
	for id, want := range w.want {
		got, err := s.find(id)
		if err != nil || got == nil {
			w.t.Fatalf("%s: %v", id, err)
		}
		same(w.t, got.Task, want)
	}
	if n := count(w.t, s); n != len(w.want) {
		w.t.Fatalf("%d records are counted, want %d", n, len(w.want))
	}
}

// same compares a record with what it must be, except for what the test does not know.
func same(t testing.TB, got, want *nusav1.TaskRecord) {
	t.Helper()
	want = proto.CloneOf(want)
	want.Run, want.Epoch, want.Attempt = got.GetRun(), got.GetEpoch(), got.GetAttempt()
	for len(want.Changes) > maxChanges {
		want.Changes = slices.Delete(want.Changes, maxChanges/2, maxChanges/2+1)
		want.ChangesDropped++
	}
	if !proto.Equal(got, want) {
		t.Fatalf("%v\nwant\n%v", got, want)
	}
}

// count returns the number of records in a store.
func count(t testing.TB, s *Store) int {
	t.Helper()
	keeps, err := s.Retention("sea")
	if err != nil {
		t.Fatal(err)
	}
	return int(keeps.GetCount())
}
