package tasks

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/taskpage"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// filled returns a store with n records, as a region has after n short batch tasks: a tenth failed, one
// in a thousand runs. They belong to 1,000 jobs, 500 nodes and 20 teams.
func filled(b *testing.B, n int) *Store {
	b.Helper()
	s := NewStore(filepath.Join(b.TempDir(), "tasks"), Limits{Count: int64(n), Bytes: 64 << 30}, slog.New(slog.DiscardHandler))
	s.noSync = true
	if err := s.open(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.close("the benchmark ends") })
	w := newWorld(b, 1)
	began := time.Unix(1_700_000_000, 0)
	for i := 0; i < n; {
		if now := began.Add(time.Duration(i) * time.Second); s.due(now) {
			if err := s.rotate(now, 0); err != nil {
				b.Fatal(err)
			}
		}
		if err := s.update(func(t *batch) error {
			for range min(batchEvents, n-i) {
				if err := t.put(benchRecord(w, i, began.Add(time.Duration(i)*time.Second)), false); err != nil {
					return err
				}
				i++
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

func benchRecord(w *world, i int, placed time.Time) *nusav1.StoredTask {
	rec := &nusav1.TaskRecord{
		Id: w.id(), Namespace: "default", Job: fmt.Sprintf("job-%04d", w.rnd.IntN(1000)), Group: "main", Index: int32(i % 1000), JobVersion: 1,
		Region: "southeastasia", NodeId: nodeID(w.rnd.IntN(500)), Placed: timestamppb.New(placed),
		Labels: map[string]string{"team": fmt.Sprint("team-", w.rnd.IntN(20)), "env": "prod"},
	}
	rec.Node = "node-" + rec.NodeId[33:]
	change := func(after time.Duration, s nusav1.AllocState, r nusav1.Reason, text string) {
		rec.Changes = append(rec.Changes, &nusav1.TaskChange{Time: timestamppb.New(placed.Add(after)), State: s, Reason: r, Message: text})
		rec.State, rec.Reason, rec.Message = s, r, text
	}
	change(0, nusav1.AllocState_ALLOC_STATE_PENDING, 0, "")
	change(200*time.Millisecond, nusav1.AllocState_ALLOC_STATE_STARTING, 0, "")
	change(time.Second, nusav1.AllocState_ALLOC_STATE_RUNNING, 0, "")
	rec.Started = rec.Changes[2].Time
	task := &nusav1.TaskState{State: nusav1.AllocState_ALLOC_STATE_RUNNING, Started: rec.Started, Run: 1}
	switch {
	case i%1000 == 0:
	case w.rnd.IntN(10) == 0:
		change(time.Minute, nusav1.AllocState_ALLOC_STATE_FAILED, nusav1.Reason_REASON_EXITED, "task main: exit code 1")
		task.State, task.ExitCode = rec.State, 1
	default:
		change(time.Minute, nusav1.AllocState_ALLOC_STATE_COMPLETE, 0, "")
		task.State = rec.State
	}
	if len(rec.Changes) == 4 {
		rec.Ended, task.Finished = rec.Changes[3].Time, rec.Changes[3].Time
	}
	rec.Tasks = map[string]*nusav1.TaskState{"main": task}
	return &nusav1.StoredTask{Task: rec, Event: uint64(i)}
}

// BenchmarkPages reads pages of 100 records of a history of a million records (short: 20,000), from
// the newest page on. p99-ms and max-ms are the slowest pages; a page that reads its most entries
// counts, too. cpu-ms is the processor time of a page.
func BenchmarkPages(b *testing.B) {
	n := 1_000_000
	if testing.Short() {
		n = 20_000
	}
	s := filled(b, n)
	keeps, err := s.Retention("r")
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("%d records, %d B each, %d MiB, %d segments", keeps.Count, keeps.Bytes/keeps.Count, keeps.Bytes>>20, len(s.segments))
	failed, running := nusav1.AllocState_ALLOC_STATE_FAILED, nusav1.AllocState_ALLOC_STATE_RUNNING
	job := &nusav1.JobRef{Namespace: "default", Name: "job-0007"}
	index := int32(7)
	for _, c := range []struct {
		name string
		req  *nusav1.ListTasksRequest
	}{
		{"all", &nusav1.ListTasksRequest{}},
		{"job", &nusav1.ListTasksRequest{Job: job}},
		{"failed", &nusav1.ListTasksRequest{States: []nusav1.AllocState{failed}}},
		{"running", &nusav1.ListTasksRequest{States: []nusav1.AllocState{running}}},
		{"job,failed", &nusav1.ListTasksRequest{Job: job, States: []nusav1.AllocState{failed}}},
		{"node,label", &nusav1.ListTasksRequest{Node: "node-007", Labels: map[string]string{"team": "team-3"}}},
		{"label,failed,running", &nusav1.ListTasksRequest{Labels: map[string]string{"team": "team-3"}, States: []nusav1.AllocState{failed, running}}},
		{"until", &nusav1.ListTasksRequest{Until: timestamppb.New(time.Unix(1_700_000_000+int64(n)/2, 0))}},
		{"index", &nusav1.ListTasksRequest{Index: &index}},
	} {
		b.Run(c.name, func(b *testing.B) { benchPages(b, s, c.req) })
	}
	b.Run("get", func(b *testing.B) {
		page, err := s.list(newQuery(&nusav1.ListTasksRequest{}, "r", func(string) bool { return true }), nil, 1000, maxSteps)
		if err != nil {
			b.Fatal(err)
		}
		for i := 0; b.Loop(); i++ {
			if got, err := s.find(page.Items[i%len(page.Items)].Id); got == nil || err != nil {
				b.Fatal(err)
			}
		}
	})
	runtime.KeepAlive(s)
}

func benchPages(b *testing.B, s *Store, req *nusav1.ListTasksRequest) {
	var took []time.Duration
	var below *taskpage.Key
	records, began := 0, cpu()
	for b.Loop() {
		at := time.Now()
		page, err := s.list(newQuery(req, "r", func(string) bool { return true }), below, 100, maxSteps)
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(at))
		records += len(page.Items)
		below = page.Next
	}
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 }
	b.ReportMetric(ms(took[len(took)*99/100]), "p99-ms")
	b.ReportMetric(ms(took[len(took)-1]), "max-ms")
	b.ReportMetric(ms(cpu()-began)/float64(len(took)), "cpu-ms")
	b.ReportMetric(float64(records)/float64(len(took)), "records")
}

// cpu returns the processor time of this process.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkWrite writes the records of 12,000 allocations with two changes each, as a region does that
// places and starts them. cpu-us is the processor time for one allocation, with a write to the disk for
// each batch.
func BenchmarkWrite(b *testing.B) {
	const n = 12_000
	for b.Loop() {
		b.StopTimer()
		w := newWorld(b, 1)
		s, r := w.newStore(Limits{})
		s.close("sync")
		s.noSync = false
		if err := s.open(); err != nil {
			b.Fatal(err)
		}
		for range n / 100 {
			w.submit(100)
		}
		for _, id := range w.order {
			w.seq++
			w.do(state.Command{AgentReports: &state.AgentReports{
				NodeID: w.want[id].NodeId, Position: state.Position{Epoch: "e", Sequence: w.seq}, Reports: []state.AllocReport{{ID: id, State: state.Running}},
			}})
		}
		b.StartTimer()
		began := cpu()
		w.write(r)
		b.ReportMetric(float64((cpu()-began).Microseconds())/n, "cpu-us/allocation")
		b.ReportMetric(0, "ns/op")
		if gaps := s.position().GetGaps(); len(gaps) > 0 {
			b.Fatal(gaps)
		}
	}
}
