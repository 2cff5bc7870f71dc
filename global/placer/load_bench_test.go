package placer

import (
	"crypto/sha256"
	"fmt"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// loaded is a placer with regions that take every offer.
type loaded struct {
	*Placer
	names   []string
	cursors []*link.Cursor[state.Order]
	specs   []*state.Spec
	encoded [][]byte // of specs, without the name
}

// newLoaded returns a placer with regions that never become full. Half of the jobs ask for one
// instance in any region, and half for one in each of three regions.
func newLoaded(b *testing.B, regions int) *loaded {
	p := &loaded{Placer: newPlacer(b)}
	p.Commit.Decide = func(t *state.Tx) func() { return Decide(p.Placer, t) }
	p.Commit.DecideMost = func() int { return DecideMost(p.Placer) }
	for i := range regions {
		name := fmt.Sprintf("region-%04d", i)
		p.names = append(p.names, name)
		if _, err := p.Commit.Do(b.Context(), func(t *state.Tx) error {
			return t.PutRegion(name, &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name}, ClusterId: name, FeatureLevel: 1})
		}); err != nil {
			b.Fatal(err)
		}
	}
	p.st.Lock()
	defer p.st.Unlock()
	for _, name := range p.names {
		r := p.st.Regions[name]
		r.Session = &state.Session{Wake: func() {}, WakeLater: func() {}}
		free := &nusav1.Resources{CpuMilli: 64_000, MemoryBytes: 1 << 38} // of each node
		r.SetReport(&nusav1.RegionReport{NodesReady: 1 << 20, SlotsRevision: p.st.Revision, Free: free, Capacity: free, Drivers: []string{"process"},
			Shape: &nusav1.RegionShape{Bins: []*nusav1.ShapeBin{{Nodes: 1 << 20, Free: free, Pool: "default"}}}}, 0, false)
		p.cursors = append(p.cursors, r.Orders.Cursor(r.Orders.Position()))
	}
	for i := range 16 {
		spec := specOf("", int32(1+i%2*2), int64(100+i/2))
		if i%2 == 1 {
			spec.Regions = &nusav1.RegionsSpec{Spread: &nusav1.RegionSpread{Min: 3, Max: 3}, Divide: nusav1.Divide_DIVIDE_EVEN}
		}
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
		if err != nil {
			b.Fatal(err)
		}
		p.specs, p.encoded = append(p.specs, state.NewSpec(spec)), append(p.encoded, raw)
	}
	return p
}

// submit stores n jobs that wait for a transaction together.
func (p *loaded) submit(b *testing.B, first, n int) {
	waits := make([]func() error, n)
	p.st.Lock()
	for i := range n {
		k := keyOfName(fmt.Sprintf("j%07d", first+i))
		kind := (first + i) % len(p.specs)
		encoded := append([]byte{1<<3 | 2, byte(len(k.Name))}, k.Name...)
		encoded = append(encoded, p.encoded[kind]...)
		hash := sha256.Sum256(encoded)
		s := state.Submission{Spec: p.specs[kind], Encoded: encoded, Hash: hash[:]}
		wait := p.Commit.Submit(func(t *state.Tx) error {
			_, err := t.SubmitJob(k, s)
			return err
		})
		waits[i] = func() error {
			_, err := wait(b.Context())
			return err
		}
	}
	p.st.Unlock()
	for _, wait := range waits {
		if err := wait(); err != nil {
			b.Fatal(err)
		}
	}
}

// answer sends each region its orders. The regions accept them.
func (p *loaded) answer(b *testing.B) (slots int) {
	done := make(chan error, len(p.names))
	began := 0
	p.st.Lock()
	for i, name := range p.names {
		var offered []*nusav1.Slot
		p.cursors[i].NextWithin(1024, 1<<18, func(of link.Item[state.Order]) int {
			o := state.SlotOrder(p.st, name, of.Key, of.Value, 0)
			if s := o.GetSlot(); s.GetState() == nusav1.SlotState_SLOT_STATE_OFFERED {
				offered = append(offered, s)
			}
			return 1
		})
		if len(offered) == 0 {
			continue
		}
		began, slots = began+1, slots+len(offered)
		if !p.Commit.TryBegin(func(t *state.Tx) error { return accept(t, name, offered) }, func(err error) { done <- err }) {
			b.Fatal("the queue is full")
		}
	}
	p.st.Unlock()
	for range began {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	return slots
}

func accept(t *state.Tx, from string, offered []*nusav1.Slot) error {
	for _, s := range offered {
		k := state.JobKey{Namespace: s.GetNamespace(), Name: s.GetJob()}
		t.Scratch = t.AppendSlots(t.Scratch[:0], k, s.GetGroup())
		out := region.ApplyAnswer(t.Scratch, from, region.Answer{
			Namespace: k.Namespace, Job: k.Name, Group: s.GetGroup(), From: int(s.GetFrom()), To: int(s.GetTo()), Generation: s.GetGeneration(), State: region.Accepted,
		})
		if err := t.ChangeSlots(out.Changes); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkLoad submits 64 jobs at a time. The jobs are stored, offered, sent to their regions and
// accepted, without a network and with a store in memory. An operation is one job.
func BenchmarkLoad(b *testing.B) {
	const together = 64
	for _, regions := range []int{5, 50, 1000} {
		b.Run(fmt.Sprintf("regions=%d", regions), func(b *testing.B) {
			p := newLoaded(b, regions)
			b.ReportAllocs()
			b.ResetTimer()
			before, slots := processCPU(b), 0
			for first := 0; first < b.N; first += together {
				n := min(together, b.N-first)
				p.submit(b, first, n)
				slots += p.answer(b)
			}
			b.ReportMetric(float64(processCPU(b)-before)/float64(b.N)/1000, "cpu-µs/op")
			if slots < b.N {
				b.Errorf("%d slots are accepted, of %d jobs", slots, b.N)
			}
		})
	}
}

// processCPU returns the CPU time of this process.
func processCPU(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
