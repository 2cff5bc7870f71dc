package raftlog

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

var benchConfig, _ = structpb.NewStruct(map[string]any{"command": "/bin/true"})

func benchSpec(name string) *nusav1.JobSpec {
	return &nusav1.JobSpec{Name: name, Groups: map[string]*nusav1.Group{"main": {
		Count: proto.Int32(1),
		Tasks: map[string]*nusav1.Task{"main": {Driver: "process", Config: benchConfig, Resources: &nusav1.Resources{CpuMilli: 10, MemoryBytes: 16 << 20}}},
	}}}
}

func BenchmarkPipeline(b *testing.B) {
	for _, nodes := range []int{100, 5000} {
		for _, batch := range []int{1, 64, 512} {
			b.Run(fmt.Sprintf("nodes=%d/batch=%d", nodes, batch), func(b *testing.B) {
				f := NewFSM()
				index := uint64(0)
				apply := func(entry []byte) []state.Result {
					index++
					r, ok := f.Apply(&raft.Log{Index: index, Data: entry}).(Applied)
					if !ok {
						b.Fatal("apply")
					}
					return r.Results
				}
				for i := range nodes {
					apply(encoded(b, state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{
						ID: fmt.Sprintf("node-%05d", i), Name: fmt.Sprintf("node-%05d", i), Pool: "default",
						Drivers:  []state.Driver{{Name: "process", Healthy: true}},
						Capacity: state.Resources{CPUMilli: 64_000_000, MemoryBytes: 256 << 40, DiskBytes: 1 << 40}, Status: state.NodeReady,
					}}}))
				}
				n := 0
				planner := sched.NewPlanner()
				var tv, te, ta, tp, te2, ta2 time.Duration
				b.ResetTimer()
				for b.Loop() {
					t0 := time.Now()
					var cmds []state.Command
					for range batch {
						n++
						spec := benchSpec(fmt.Sprintf("job-%07d", n))
						job.Default(spec)
						if err := job.Validate(spec); err != nil {
							b.Fatal(err)
						}
						job.Unsupported(spec)
						raw, _ := wire.Deterministic.Marshal(spec)
						cmds = append(cmds, state.Command{SubmitLocalJob: &state.SubmitLocalJob{Job: *wire.JobFromProto(spec, raw, true, 0)}})
					}
					t1 := time.Now()
					e := encoded(b, cmds...)
					t2 := time.Now()
					for _, r := range apply(e) {
						if r.Err != nil {
							b.Fatal(r.Err)
						}
					}
					t3 := time.Now()
					plan := planner.Make(sched.Input{View: f.View(), NowUnixNano: int64(time.Hour)})
					if len(plan.Places) != batch {
						b.Fatal(plan.String())
					}
					t4 := time.Now()
					cmds = cmds[:0]
					for _, c := range plan.Commands(uuid.NewString, 512) {
						cmds = append(cmds, state.Command{ApplyPlan: &c})
					}
					e = encoded(b, cmds...)
					t5 := time.Now()
					apply(e)
					t6 := time.Now()
					tv += t1.Sub(t0)
					te += t2.Sub(t1)
					ta += t3.Sub(t2)
					tp += t4.Sub(t3)
					te2 += t5.Sub(t4)
					ta2 += t6.Sub(t5)
				}
				per := func(d time.Duration, name string) { b.ReportMetric(float64(d.Nanoseconds())/float64(n)/1e3, name) }
				per(tv, "µs-validate")
				per(te, "µs-enc")
				per(ta, "µs-applysubmit")
				per(tp, "µs-plan")
				per(te2, "µs-encplan")
				per(ta2, "µs-applyplan")
			})
		}
	}
}
