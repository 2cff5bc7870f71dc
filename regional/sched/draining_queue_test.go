package sched_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestQueueAsBruteForce: the places of 10,000 waiting jobs are those that counting the jobs before
// each one gives.
func TestQueueAsBruteForce(t *testing.T) {
	t.Parallel()
	const jobs = 10_000
	rng, s := rand.New(rand.NewPCG(19, 4)), state.New()
	type waiting struct {
		key      state.GroupKey
		priority int32
		count    int64
		ask      state.Resources
	}
	var all []waiting
	for i := range jobs {
		w := waiting{
			key: state.GroupKey{Namespace: "default", Job: fmt.Sprintf("j%d", rng.IntN(1<<30)), Group: "g", Local: true}, priority: rng.Int32N(20) * 5,
			count: rng.Int64N(4), ask: state.Resources{CPUMilli: rng.Int64N(1000), MemoryBytes: rng.Int64N(1 << 30), DiskBytes: rng.Int64N(9)},
		}
		job := state.Job{Key: w.key.JobKey(), Type: state.Service, Priority: w.priority, Spec: fmt.Append(nil, i), Groups: []state.Group{{Name: "g", Count: int32(w.count), Ask: state.Ask{Resources: w.ask}}}}
		r := s.Apply(uint64(i+1), state.Command{NowUnixNano: 1, SubmitLocalJob: &state.SubmitLocalJob{Job: job}})
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		all = append(all, w)
	}
	got := sched.Queue(s.Snapshot())
	if n := slices.IndexFunc(all, func(w waiting) bool { return w.count == 0 }); n < 0 || len(got) >= jobs || len(got) < jobs/2 {
		t.Fatalf("%d of %d groups wait", len(got), jobs)
	}
	for i, w := range all {
		if i%10 != 0 { // the oracle reads all jobs for each job
			continue
		}
		want := sched.QueuePlace{Position: 1}
		for j, o := range all {
			switch {
			case o.count == 0:
				continue
			case o.priority > w.priority:
				want.Higher += o.count
			case o.priority == w.priority && j < i:
				want.Earlier += o.count
			default:
				continue
			}
			want.Position++
			want.Asked = want.Asked.Add(state.Resources{CPUMilli: o.count * o.ask.CPUMilli, MemoryBytes: o.count * o.ask.MemoryBytes, DiskBytes: o.count * o.ask.DiskBytes})
		}
		place, waits := got[w.key]
		if waits != (w.count > 0) || waits && place != want {
			t.Fatalf("%v of priority %d: %+v %t, want %+v", w.key, w.priority, place, waits, want)
		}
	}
}
