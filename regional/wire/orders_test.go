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

// randomly sets the numbers, strings and flags of a struct at random, some of them to zero.
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

// TestEncodedAllocEqualsTheMessage compares appendAlloc with the generated code.
func TestEncodedAllocEqualsTheMessage(t *testing.T) {
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
			t.Fatalf("encoded\n%v\nwant\n%v", &got, want)
		}
	}
}

func testSpec(name string) *nusav1.JobSpec {
	return &nusav1.JobSpec{Name: name, Groups: map[string]*nusav1.Group{"main": {
		Count: proto.Int32(1),
		Tasks: map[string]*nusav1.Task{"main": {Driver: "process", Resources: &nusav1.Resources{CpuMilli: 10, MemoryBytes: 16 << 20}}},
	}}}
}

// TestEncodedOrdersAreThoseOfTheBatch: each order has the group and the type of its own
// job, and the accelerators of its own allocation. Two kinds of orders are left out: those of allocations that the state no longer has,
// and the order that did not fit.
func TestEncodedOrdersAreThoseOfTheBatch(t *testing.T) {
	st := state.New()
	apply := func(c state.Command) {
		t.Helper()
		if r := st.Apply(st.Index()+1, c); r.Err != nil || len(r.Skipped) > 0 {
			t.Fatalf("%v, %v", r.Err, r.Skipped)
		}
	}
	apply(state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{ID: "n", Name: "node", Pool: "default",
		Capacity: state.Resources{CPUMilli: 1e6, MemoryBytes: 1 << 40, DiskBytes: 1 << 40}, PortMin: 1, PortMax: 9,
		GPUs: []state.GPU{{ID: "GPU-1", Model: "h100"}, {ID: "GPU-2", Model: "h100"}}}}})
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
		if name == "b" { // its second instance has accelerators
			p.Allocs[1].GPUs = []state.GPUGrant{{Device: "GPU-2", ShareMilli: 1000}, {Device: "GPU-1", ShareMilli: 250}}
		}
		apply(state.Command{ApplyPlan: &state.ApplyPlan{Places: []state.PlaceGroup{p}}})
	}
	view := st.Snapshot()
	log := slog.New(slog.DiscardHandler)
	var b link.Batch[uint64]
	o := new(OrderEncoder)
	for range 2 { // the second batch uses the buffers of the first one again
		o.Reset("here", log, view)
		b = link.Batch[uint64]{Full: true, Removed: []string{"r1", "r2"}, Position: link.Position{Epoch: "e", Sequence: 7}}
		for _, id := range []string{"a0", "gone", "b1", "b2", "a1"} {
			item := link.Item[uint64]{Key: id}
			if size := o.Size(item); size < 100 && id != "gone" || id == "gone" && size != 0 {
				t.Errorf("the order for %s has %d bytes", id, size)
			}
			b.Items = append(b.Items, item)
		}
		o.Size(link.Item[uint64]{Key: "a2"}) // this order does not fit
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
			Binding: nusav1.LeaseBinding_LEASE_BINDING_NONE,
		})
	}
	want.Orders[1].Gpus = []*nusav1.GPUGrant{{Device: "GPU-2", ShareMilli: 1000}, {Device: "GPU-1", ShareMilli: 250}}
	// The next batch must not change the message that is still being sent.
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
		t.Error("the message of an empty set is empty")
	}
}

// TestBinding: the leases that bind a group are those in docs/design/failover.md.
func TestBinding(t *testing.T) {
	const keep, stop = nusav1.Running_RUNNING_KEEP, nusav1.Running_RUNNING_STOP
	none, node, region, both := nusav1.LeaseBinding_LEASE_BINDING_NONE, nusav1.LeaseBinding_LEASE_BINDING_NODE,
		nusav1.LeaseBinding_LEASE_BINDING_REGION, nusav1.LeaseBinding_LEASE_BINDING_BOTH
	for _, c := range []struct {
		name           string
		singleton      bool
		node, region   nusav1.Running
		federal, local nusav1.LeaseBinding
	}{
		{"defaults", false, 0, 0, none, none},
		{"stop at the node", false, stop, 0, node, node},
		{"stop in the region", false, keep, stop, region, none},
		{"stop at both", false, stop, stop, both, node},
		{"a singleton", true, 0, 0, both, node},
		{"a singleton that its region keeps", true, 0, keep, node, node},
	} {
		spec := testSpec("a")
		g := spec.Groups["main"]
		g.Singleton = c.singleton
		g.Disconnect = &nusav1.Disconnect{Node: &nusav1.DisconnectLevel{Running: c.node}, Region: &nusav1.DisconnectLevel{Running: c.region}}
		job.Default(spec)
		got := JobFromProto(spec, nil, false, 1).Group("main")
		if federal, local := nusav1.LeaseBinding(got.Binding(false)), nusav1.LeaseBinding(got.Binding(true)); federal != c.federal || local != c.local {
			t.Errorf("%s: %v, and %v as the region's own job", c.name, federal, local)
		}
	}
}

// TestAcceleratorsOfALostNodeExist: a job that asks for them waits for the node. Those of a node that has left do not.
func TestAcceleratorsOfALostNodeExist(t *testing.T) {
	st := state.New()
	apply := func(c state.Command) {
		t.Helper()
		if r := st.Apply(st.Index()+1, c); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	apply(state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{ID: "n", Name: "node", Pool: "default", GPUs: []state.GPU{{ID: "GPU-1", Model: "h100"}, {ID: "GPU-2", Model: "h100"}}}}})
	for status, want := range map[state.NodeStatus]int32{state.NodeReady: 2, state.NodeLost: 2, state.NodeLeft: 0} {
		apply(state.Command{SetNodeStatus: &state.SetNodeStatus{ID: "n", Status: status}})
		if got := Accelerators(st.Snapshot())["h100"]; got != want {
			t.Errorf("status %v: %d accelerators, want %d", status, got, want)
		}
	}
}
