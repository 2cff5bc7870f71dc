package state

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/compact"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// liveJobs stores jobs that run in one region, or each sixth of them in three. It returns the summaries of the regions:
// the first byte of each is the number of its region.
func liveJobs(t testing.TB, c store.Store, jobs, regions int) (sums [][]byte) {
	var ops []store.Op
	put := func(key string, m proto.Message) {
		value, err := Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, store.Put(key, value))
	}
	commit := func() {
		if _, err := c.Txn(t.Context(), nil, ops); err != nil {
			t.Fatal(err)
		}
		ops = nil
	}
	for i := range regions {
		put(regionKey(liveRegion(i, regions)), &nusav1.Region{ClusterId: liveRegion(i, regions), Definition: &nusav1.RegionDefinition{Name: liveRegion(i, regions)}})
	}
	commit()
	for i := range jobs {
		name, n := fmt.Sprintf("bench-abcdefgh-j%07d", i), 1
		if i%6 == 0 {
			n = 3
		}
		spec := testJob(name, int32(n))
		spec.Namespace = "default"
		if i%3 == 1 {
			spec.Regions = &nusav1.RegionsSpec{Near: []*nusav1.Near{{
				Selector: &nusav1.RegionSelector{Name: liveRegion(i, regions)}, MaxRtt: durationpb.New(60 * time.Millisecond), Required: i%2 == 0,
			}}}
		}
		rec, err := NewRecord(&nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1, Submitted: timestamppb.New(time.Unix(int64(i), 0))}})
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, store.Put(JobKey{"default", name}.recordKey(), rec.stored()))
		for at := range n {
			put(fmt.Sprintf("%sdefault/%s/web/%d", slotPrefix, name, at), &nusav1.Slot{
				Namespace: "default", Job: name, Group: "web", From: int32(at), To: int32(at + 1), Region: liveRegion(i+at, regions),
				State: nusav1.SlotState_SLOT_STATE_ACCEPTED, Desired: nusav1.SlotDesired_SLOT_DESIRED_RUN, JobVersion: 1, RunBegins: true,
				PlacedBecause: "divide best: score 24.0, first of the regions that fit; 8,123 fit", Unbound: true,
			})
			sum, err := proto.Marshal(&nusav1.JobSummary{
				Namespace: "default", Job: name, Incarnation: 1, Index: uint64(i + 1), Version: 1, Run: 1,
				Groups: map[string]*nusav1.InstanceCounts{"web": {Running: 1}},
			})
			if err != nil {
				t.Fatal(err)
			}
			sums = append(sums, append([]byte{byte((i + at) % regions)}, sum...))
		}
		commit()
	}
	return sums
}

func liveRegion(i, regions int) string { return fmt.Sprintf("region-%02d", i%regions) }

// TestMemoryOfALiveJob limits the memory of a job that runs in one region, or for each sixth job in
// three.
func TestMemoryOfALiveJob(t *testing.T) {
	const jobs, regions, most = 10_000, 50, 1_600
	mem := store.NewMemory()
	c := mem.Client()
	sums := liveJobs(t, c, jobs, regions)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	if err := st.Load(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	st.Lock()
	defer st.Unlock()
	for _, b := range sums {
		sum := new(nusav1.JobSummary)
		if err := proto.Unmarshal(b[1:], sum); err != nil {
			t.Fatal(err)
		}
		r := st.Regions[liveRegion(int(b[0]), regions)]
		NoteSummary(st, r, SummaryKey(r.Name, sum), sum)
		st.ApplySummary(r, sum, compact.Encode(sum))
	}
	clear(st.Pending)
	clear(st.Fresh)
	clear(st.Rollouts)
	TrimSets(st)
	each := (heap() - before) / jobs
	t.Logf("%d bytes a job", each)
	if each > most {
		t.Errorf("a job takes %d bytes, want at most %d", each, most)
	}
	runtime.KeepAlive(st)
	runtime.KeepAlive(mem) // its memory is in both measurements
}

// BenchmarkRestart loads the records of jobs that run, and of the checkpoints of their regions.
func BenchmarkRestart(b *testing.B) {
	const jobs, regions = 10_000, 50
	c := store.NewMemory().Client()
	parts := make([][]encodedSummary, regions)
	for _, packed := range liveJobs(b, c, jobs, regions) {
		sum := new(nusav1.JobSummary)
		if err := proto.Unmarshal(packed[1:], sum); err != nil {
			b.Fatal(err)
		}
		k := JobKey{sum.GetNamespace(), sum.GetJob()}
		sum.Namespace, sum.Job = "", ""
		encoded, err := proto.Marshal(sum)
		if err != nil {
			b.Fatal(err)
		}
		parts[packed[0]] = append(parts[packed[0]], encodedSummary{k.String(), k, encoded})
	}
	for i := range parts {
		rec := &nusav1.CheckpointRecord{UpTo: &nusav1.Position{Epoch: "e", Sequence: 1}}
		rec.ProtoReflect().SetUnknown(summaryFields(parts[i]))
		value, err := Encode(rec)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := c.Txn(b.Context(), nil, []store.Op{store.Put(CheckpointKey(liveRegion(i, regions), 0), value)}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
		if err := st.Load(b.Context(), c); err != nil {
			b.Fatal(err)
		}
		if len(st.Jobs) != jobs || len(st.Pending) > 0 {
			b.Fatalf("%d jobs, %d pending", len(st.Jobs), len(st.Pending))
		}
	}
}

// BenchmarkOrder makes the order about a slot: what is done under the lock, and all of it.
func BenchmarkOrder(b *testing.B) {
	const jobs, regions = 1_000, 10
	c := store.NewMemory().Client()
	liveJobs(b, c, jobs, regions)
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	if err := st.Load(b.Context(), c); err != nil {
		b.Fatal(err)
	}
	r := st.Regions[liveRegion(0, regions)]
	keys := r.Orders.Keys()
	var encoded, scratch []byte
	for _, kind := range []string{"locked", "message", "encoded"} {
		b.Run(kind, func(b *testing.B) {
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				key := keys[n%len(keys)]
				held, _ := r.Orders.Get(key)
				var o OrderCopy
				CopyOrder(&o, st, r.Name, key, held, math.MaxUint64)
				ok := o.Size() > 0
				switch kind {
				case "message":
					message, err := proto.Marshal(o.Message())
					ok = ok && err == nil && len(message) > 0
				case "encoded":
					encoded, scratch, ok = o.Append(encoded[:0], scratch)
				}
				if !ok {
					b.Fatal(key)
				}
			}
		})
	}
}
