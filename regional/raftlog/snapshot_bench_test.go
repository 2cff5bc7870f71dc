package raftlog

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// nowhere is a sink that counts bytes and drops them.
type nowhere struct {
	sink
	bytes int
}

func (n *nowhere) Write(b []byte) (int, error) {
	n.bytes += len(b)
	return len(b), nil
}

// BenchmarkSnapshot takes snapshots of 100,000 allocations on 1,000 nodes while jobs are
// placed one by one. snapshot-µs is how long the log waits for the snapshot. The longest
// placements with and without a snapshot show the cost of writing it.
func BenchmarkSnapshot(b *testing.B) {
	f, index := NewFSM(), uint64(0)
	planner := sched.NewPlanner()
	apply := func(cmds ...state.Command) {
		for i := range cmds {
			cmds[i].NowUnixNano = int64(time.Hour)
		}
		index++
		r, ok := f.Apply(&raft.Log{Index: index, Data: encoded(b, cmds...)}).(Applied)
		if !ok {
			b.Fatal("the entry was not applied")
		}
		for _, one := range r.Results {
			if one.Err != nil {
				b.Fatal(one.Err)
			}
		}
	}
	place := func(name string, count int32) {
		spec := benchSpec(name)
		spec.Groups["main"].Count = proto.Int32(count)
		job.Default(spec)
		raw, err := wire.Deterministic.Marshal(spec)
		if err != nil {
			b.Fatal(err)
		}
		apply(state.Command{SubmitLocalJob: &state.SubmitLocalJob{Job: *wire.JobFromProto(spec, raw, true, 0)}})
		more := true
		for more {
			plan := planner.Make(sched.Input{View: f.View(), NowUnixNano: int64(time.Hour)})
			more = plan.More
			for _, c := range plan.Commands(uuid.NewString, 512) {
				apply(state.Command{ApplyPlan: &c})
			}
		}
	}
	for i := range 1000 {
		apply(state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{
			ID: fmt.Sprintf("node-%05d", i), Name: fmt.Sprintf("node-%05d", i), Pool: "default", Status: state.NodeReady,
			Drivers:  []state.Driver{{Name: "process", Healthy: true}},
			Capacity: state.Resources{CPUMilli: 64_000_000, MemoryBytes: 256 << 40, DiskBytes: 1 << 40},
		}}})
	}
	place("large", 100_000)
	n := 0
	longest := func(until <-chan struct{}) (most time.Duration) {
		for {
			select {
			case <-until:
				return most
			default:
			}
			n++
			t := time.Now()
			place(fmt.Sprintf("job-%06d", n), 1)
			most = max(most, time.Since(t))
		}
	}
	var pause, beside, alone, writing time.Duration
	var size int
	for b.Loop() {
		t := time.Now()
		s, err := f.Snapshot()
		pause = max(pause, time.Since(t))
		if err != nil {
			b.Fatal(err)
		}
		done := make(chan struct{})
		to := &nowhere{}
		go func() {
			defer close(done)
			t := time.Now()
			if err := s.Persist(to); err != nil {
				b.Error(err)
			}
			writing = max(writing, time.Since(t))
		}()
		beside = max(beside, longest(done))
		size = to.bytes
		quiet := make(chan struct{})
		time.AfterFunc(writing, func() { close(quiet) })
		alone = max(alone, longest(quiet))
	}
	b.ReportMetric(float64(pause.Nanoseconds())/1e3, "snapshot-µs")
	b.ReportMetric(beside.Seconds()*1e3, "longest-beside-ms")
	b.ReportMetric(alone.Seconds()*1e3, "longest-alone-ms")
	b.ReportMetric(writing.Seconds()*1e3, "writing-ms")
	b.ReportMetric(float64(size)/1e6, "MB")
}
