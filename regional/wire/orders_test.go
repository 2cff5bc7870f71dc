package wire

import (
	"fmt"
	"log/slog"
	"math/rand"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// randomly sets every number, text and flag of a struct, often to nothing.
func randomly(r *rand.Rand, v reflect.Value) {
	for i := range v.NumField() {
		f := v.Field(i)
		switch {
		case !f.CanSet() || r.Intn(3) == 0:
		case f.Kind() == reflect.String:
			f.SetString([]string{"x", "ünïcode", string(make([]byte, 300))}[r.Intn(3)])
		case f.Kind() == reflect.Bool:
			f.SetBool(true)
		case f.CanInt():
			n := r.Int63() >> r.Intn(60)
			f.SetInt(n * int64(1-2*r.Intn(2)))
		case f.CanUint():
			f.SetUint(r.Uint64() >> r.Intn(60))
		case f.Kind() == reflect.Struct:
			randomly(r, f)
		}
	}
}

// TestAllocOnTheWire: what is written is what protobuf makes of the message.
func TestAllocOnTheWire(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for range 5000 {
		a := &state.Alloc{Placement: &state.Placement{}, NodeRef: &state.NodeRef{}, Grants: &state.Grants{}}
		for _, part := range []any{a, a.Placement, a.NodeRef} {
			randomly(r, reflect.ValueOf(part).Elem())
		}
		a.Desired = []state.Desired{state.Run, state.Stop}[r.Intn(2)]
		a.Reason = []state.Reason{"", state.ReasonNodeLost, state.ReasonSuperseded}[r.Intn(3)]
		for i := range r.Intn(3) {
			a.Ports = append(a.Ports, state.PortGrant{Label: string(make([]byte, r.Intn(200))) + fmt.Sprint(i), Port: r.Int31()})
		}
		var got nusav1.Allocation
		if err := proto.Unmarshal(appendAlloc(nil, a, "here"), &got); err != nil {
			t.Fatal(err)
		}
		if want := orderedAllocToProto(a, "here"); !proto.Equal(&got, want) {
			t.Fatalf("written as\n%v\nwant\n%v", &got, want)
		}
	}
}

func testSpec(name string) *nusav1.JobSpec {
	return &nusav1.JobSpec{Name: name, Groups: map[string]*nusav1.Group{"main": {
		Count: proto.Int32(1),
		Tasks: map[string]*nusav1.Task{"main": {Driver: "process", Resources: &nusav1.Resources{CpuMilli: 10, MemoryBytes: 16 << 20}}},
	}}}
}

// TestOrdersOnTheWire: the message that an agent reads has the orders of the
// batch, with group and type of their own jobs, but for those of allocations that
// are no longer stored, and not the one that did not fit.
func TestOrdersOnTheWire(t *testing.T) {
	st := state.New()
	apply := func(c state.Command) {
		t.Helper()
		if r := st.Apply(st.Index()+1, c); r.Err != nil || len(r.Skipped) > 0 {
			t.Fatalf("%v, %v", r.Err, r.Skipped)
		}
	}
	apply(state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{ID: "n", Name: "node", Pool: "default",
		Capacity: state.Resources{CPUMilli: 1e6, MemoryBytes: 1 << 40, DiskBytes: 1 << 40}, PortMin: 1, PortMax: 9}}})
	groups := map[string][]byte{}
	for _, name := range []string{"a", "b"} {
		spec := testSpec(name)
		spec.Groups["main"].Count = proto.Int32(3)
		job.Default(spec)
		raw, err := Deterministic.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		if groups[name], err = EncodedGroup(raw, "main"); err != nil {
			t.Fatal(err)
		}
		apply(state.Command{SubmitLocalJob: &state.SubmitLocalJob{Job: *JobFromProto(spec, raw, true, 0)}})
		p := state.PlaceGroup{Key: state.GroupKey{Namespace: spec.GetNamespace(), Job: name, Group: "main", Local: true}, JobVersion: 1}
		for i := range int32(3) {
			p.Allocs = append(p.Allocs, state.PlaceAlloc{ID: fmt.Sprint(name, i), Index: i, NodeID: "n"})
		}
		apply(state.Command{ApplyPlan: &state.ApplyPlan{Places: []state.PlaceGroup{p}}})
	}
	view := st.Snapshot()
	log := slog.New(slog.DiscardHandler)
	var b link.Batch[uint64]
	o := new(OrderEncoder)
	for range 2 { // the second time with the memory of the first
		o.Reset("here", log, view)
		b = link.Batch[uint64]{Full: true, Removed: []string{"r1", "r2"}, Position: link.Position{Epoch: "e", Sequence: 7}}
		for _, id := range []string{"a0", "gone", "b1", "b2", "a1"} {
			item := link.Item[uint64]{Key: id}
			if size := o.Size(item); size < 100 && id != "gone" || id == "gone" && size != 0 {
				t.Errorf("the order for %s has %d bytes", id, size)
			}
			b.Items = append(b.Items, item)
		}
		o.Size(link.Item[uint64]{Key: "a2"}) // one too many
	}
	data, err := NewCodec().Marshal(o.Batch(b))
	if err != nil {
		t.Fatal(err)
	}
	want := &nusav1.AllocOrders{Full: true, Removed: b.Removed, Position: &nusav1.Position{Epoch: "e", Sequence: 7}}
	for _, id := range []string{"a0", "b1", "b2", "a1"} {
		a, _ := view.Alloc(id)
		want.Orders = append(want.Orders, &nusav1.AllocOrder{
			Allocation: orderedAllocToProto(a, "here"), Group: groups[a.Job], JobType: "service", Incarnation: a.Incarnation, Index: a.OrderIndex,
		})
	}
	// What the orderer writes next does not change what is on its way.
	o.Reset("here", log, view)
	for _, id := range []string{"b0", "a2", "b0", "a2"} {
		o.Size(link.Item[uint64]{Key: id})
	}
	o.Batch(link.Batch[uint64]{Last: true})
	var got nusav1.MasterMessage
	if err := proto.Unmarshal(data.Materialize(), &got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got.GetOrders(), want) {
		t.Errorf("the agent reads\n%v\nwant\n%v", got.GetOrders(), want)
	}
	if empty := o.Batch(link.Batch[uint64]{Last: true}); len(empty.body) == 0 {
		t.Error("an empty full set says nothing")
	}
}
