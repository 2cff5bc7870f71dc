package wire

import (
	"fmt"
	"log/slog"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/submits"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// The benchmarks in this file compare the code of this package (hand) with generated code
// that could replace it (generated). If the two differ by less than 5 %, the code of this
// package can be removed.

func BenchmarkReadReports(b *testing.B) {
	for _, n := range []int{1, 20} {
		m := &nusav1.AllocReports{Position: &nusav1.Position{Epoch: "0123456789abcdef", Sequence: 77}}
		for i := range n {
			m.Reports = append(m.Reports, &nusav1.AllocReport{
				Id: fmt.Sprintf("00000000-0000-0000-0000-%012d", i), State: nusav1.AllocState_ALLOC_STATE_RUNNING, Incarnation: 1, Index: 88,
				Tasks: map[string]*nusav1.TaskState{"main": {
					State: nusav1.AllocState_ALLOC_STATE_RUNNING, Started: timestamppb.Now(), Events: []*nusav1.TaskEvent{{Type: "started"}},
				}},
			})
		}
		raw, err := proto.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		compare(b, fmt.Sprint(n),
			func() error { _, err := ReadReports(raw); return err },
			func() error { _, err := generatedReports(raw); return err })
	}
}

// compare runs hand and generated as sub-benchmarks.
func compare(b *testing.B, name string, hand, generated func() error) {
	run := func(kind string, f func() error) {
		b.Run(name+"/"+kind, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("hand", hand)
	run("generated", generated)
}

// generatedReports is ReadReports with the generated code.
func generatedReports(raw []byte) (out link.Batch[state.AllocReport], err error) {
	var m nusav1.AllocReports
	if err := proto.Unmarshal(raw, &m); err != nil {
		return out, err
	}
	out = link.Batch[state.AllocReport]{Full: m.Full, Last: m.Last, Removed: m.Removed, Position: link.Position(PositionFromProto(m.Position))}
	for _, r := range m.Reports {
		restarts, down := int32(0), false
		for _, s := range r.Tasks {
			restarts += s.Restarts
			down = down || s.State != nusav1.AllocState_ALLOC_STATE_RUNNING && s.State != nusav1.AllocState_ALLOC_STATE_COMPLETE
		}
		tasks, err := Deterministic.Marshal(&nusav1.Allocation{Tasks: r.Tasks})
		if err != nil {
			return out, err
		}
		out.Items = append(out.Items, link.Item[state.AllocReport]{Key: r.Id, Value: state.AllocReport{
			ID: r.Id, State: state.AllocState(r.State), Declined: r.Declined, Reason: ReasonFromProto(r.Reason), Message: r.Message,
			Tasks: tasks, Restarts: restarts, Down: down && r.State == nusav1.AllocState_ALLOC_STATE_RUNNING,
		}})
	}
	return out, nil
}

func BenchmarkReadStats(b *testing.B) {
	m := &nusav1.NodeStats{Cpu: 0.5, MemoryUsedBytes: 1 << 35, MemoryAvailableBytes: 1 << 36, Load1: 3, Tasks: 40, Age: durationpb.New(3)}
	for i := range 32 {
		m.CpuPerCore = append(m.CpuPerCore, float64(i)/33)
	}
	for i := range 3 {
		m.Disks = append(m.Disks, &nusav1.DiskStats{Mount: fmt.Sprintf("/mnt/%d", i), UsedBytes: 1 << 40, TotalBytes: 1 << 41})
		m.Networks = append(m.Networks, &nusav1.NetworkStats{Name: "eth0", BytesIn: 1 << 40, InPerSecond: 1e6, OutPerSecond: 1e6})
	}
	raw, err := proto.Marshal(m)
	if err != nil {
		b.Fatal(err)
	}
	var hand, generated NodeStats
	compare(b, "node", func() error { return hand.Read(raw) }, func() error {
		var m nusav1.NodeStats
		if err := proto.Unmarshal(raw, &m); err != nil {
			return err
		}
		generated = NodeStats{
			Raw: append(generated.Raw[:0], raw...), Age: m.GetAge().AsDuration(), CPU: m.Cpu, Load1: m.Load1, Tasks: float64(m.Tasks),
			MemoryUsed: float64(m.MemoryUsedBytes), MemoryAvailable: float64(m.MemoryAvailableBytes), networks: len(m.Networks),
		}
		for _, d := range m.Disks {
			generated.addDisk(float64(d.UsedBytes), float64(d.TotalBytes))
		}
		for _, n := range m.Networks {
			generated.NetworkIn, generated.NetworkOut = generated.NetworkIn+n.InPerSecond, generated.NetworkOut+n.OutPerSecond
		}
		return nil
	})
}

func BenchmarkReadLeaseRequest(b *testing.B) {
	raw, err := proto.Marshal(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Lease{Lease: &nusav1.LeaseRequest{Id: 1 << 20}}})
	if err != nil {
		b.Fatal(err)
	}
	compare(b, "lease", func() error {
		m, err := ReadAgentMessage(raw)
		if err != nil {
			return err
		}
		_, _, err = ReadLeaseRequest(m.Body)
		return err
	}, func() error {
		var m nusav1.AgentMessage
		return proto.Unmarshal(raw, &m)
	})
}

func BenchmarkEncodeOrders(b *testing.B) {
	const n = 20
	st := state.New()
	apply := func(c state.Command) {
		if r := st.Apply(st.Index()+1, c); r.Err != nil || len(r.Skipped) > 0 {
			b.Fatalf("%v, %v", r.Err, r.Skipped)
		}
	}
	apply(state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{ID: "n", Name: "node", Pool: "default",
		Capacity: state.Resources{CPUMilli: 1e6, MemoryBytes: 1 << 40, DiskBytes: 1 << 40}, PortMin: 1, PortMax: 9}}})
	spec := testSpec("a")
	spec.Groups["main"].Count = proto.Int32(n)
	job.Default(spec)
	raw, err := Deterministic.Marshal(spec)
	if err != nil {
		b.Fatal(err)
	}
	apply(state.Command{SubmitLocalJob: &state.SubmitLocalJob{Job: *JobFromProto(spec, raw, true, 0)}})
	p := state.PlaceGroup{Key: state.GroupKey{Namespace: spec.GetNamespace(), Job: "a", Group: "main", Local: true}, JobVersion: 1}
	batch := link.Batch[uint64]{Position: link.Position{Epoch: "e", Sequence: 7}}
	for i := range int32(n) {
		id := fmt.Sprintf("00000000-0000-0000-0000-%012d", i)
		p.Allocs = append(p.Allocs, state.PlaceAlloc{ID: id, Index: i, NodeID: "n"})
		batch.Items = append(batch.Items, link.Item[uint64]{Key: id})
	}
	apply(state.Command{ApplyPlan: &state.ApplyPlan{Places: []state.PlaceGroup{p}}})
	view, codec, log := st.Snapshot(), NewCodec(), slog.New(slog.DiscardHandler)
	compare(b, fmt.Sprint(n), func() error {
		e := GetOrderEncoder()
		defer e.Release()
		e.Reset("here", log, view)
		for _, i := range batch.Items {
			e.Size(i)
		}
		data, err := codec.Marshal(e.Batch(batch))
		data.Free()
		return err
	}, func() error {
		m := &nusav1.AllocOrders{Position: PositionToProto(state.Position(batch.Position))}
		for _, i := range batch.Items {
			a, _ := view.Alloc(i.Key)
			group, jobType, binding, err := encodedGroup(view, a)
			if err != nil {
				return err
			}
			o := &nusav1.AllocOrder{
				Allocation: orderedAllocToProto(a, "here"), Group: group, JobType: jobType, Incarnation: a.Incarnation, Index: a.OrderIndex,
				Binding: nusav1.LeaseBinding(binding),
			}
			_ = proto.Size(o) // bounds the batch
			m.Orders = append(m.Orders, o)
		}
		data, err := codec.Marshal(&nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Orders{Orders: m}})
		data.Free()
		return err
	})
}

// BenchmarkReadSubmit reads a request whose spec is cached.
func BenchmarkReadSubmit(b *testing.B) {
	raw, err := proto.Marshal(&nusav1.SubmitRequest{Spec: testSpec("some-name"), IdempotencyKey: "0123456789abcdef"})
	if err != nil {
		b.Fatal(err)
	}
	parse := func(spec *nusav1.JobSpec) (CachedSpec, error) {
		job.Default(spec)
		raw, err := Deterministic.Marshal(spec)
		out := CachedSpec{Job: *JobFromProto(spec, raw, true, 0)}
		_, out.Job.Spec, _ = submits.CutName(raw)
		return out, err
	}
	var cache SpecCache
	compare(b, "cached", func() error {
		f, err := submits.NewRequest(raw).Fields()
		if err != nil {
			return err
		}
		name, spec, err := cache.Get(f.Spec, parse)
		if err == nil {
			spec.Named(name)
		}
		return err
	}, func() error {
		var m nusav1.SubmitRequest
		if err := proto.Unmarshal(raw, &m); err != nil {
			return err
		}
		spec, err := parse(m.Spec)
		spec.Named(m.Spec.GetName())
		return err
	})
}
