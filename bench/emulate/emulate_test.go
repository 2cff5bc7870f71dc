package emulate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/sets"
	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestPlaces(t *testing.T) {
	places := Places("p-", 1000)
	for i := range places {
		p := &places[i]
		if i > 0 && places[i-1].Name >= p.Name {
			t.Errorf("%s does not come before %s", places[i-1].Name, p.Name)
		}
		if err := job.ValidateRegion(&nusav1.RegionDefinition{Name: p.Name, Location: p.Location}); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		q := &places[(i+1)%len(places)]
		if d := p.RTT(q); d < inside || d > time.Second {
			t.Errorf("%s to %s: %s", p.Name, q.Name, d)
		}
	}
}

// TestRowIsSentOnceAndThenConfirmed: the first message has the whole row, the next one is empty, and later messages
// confirm the row.
func TestRowIsSentOnceAndThenConfirmed(t *testing.T) {
	f := New(Config{Regions: 60, Nodes: 1})
	for _, r := range f.regions {
		r.known.Store(true)
	}
	r, now := f.regions[3], time.Now()
	row := r.sent.changes(r, now)
	edges, err := sets.UnpackRow(r.place.Name, row.GetEdges(), 100)
	if err != nil || !row.GetFull() || len(edges) != 59 || len(row.GetCoordinate().GetVector()) != 8 {
		t.Fatalf("full %t, %d edges, coordinate %v, %v", row.GetFull(), len(edges), row.GetCoordinate(), err)
	}
	for _, e := range edges {
		if !topo.Plausible(&e) || e.From != r.place.Name || e.P50 <= 0 || e.P99 <= e.P90 {
			t.Errorf("edge %v", e)
		}
	}
	if again := r.sent.changes(r, now.Add(time.Second)); again != nil {
		t.Errorf("sent again at once: %v", again)
	}
	later := r.sent.changes(r, now.Add(confirmRow))
	if later.GetConfirmed() == nil || later.GetFull() || len(later.GetEdges()) > 0 || later.GetPosition().GetSequence() != 2 {
		t.Errorf("sent later: %v", later)
	}
	r.sent.resume(r.epoch, later.GetPosition())
	if m := r.sent.changes(r, now.Add(confirmRow)); m != nil {
		t.Errorf("sent in another session: %v", m)
	}
	r.sent.resume(r.epoch, &nusav1.Position{})
	if m := r.sent.changes(r, now.Add(confirmRow)); !m.GetFull() {
		t.Errorf("sent to another server: %v", m)
	}
}

// TestCodec: lists that an emulated region does not need stay undecoded.
func TestCodec(t *testing.T) {
	for kind, m := range map[string]*nusav1.GlobalMessage{
		"used":   {Kind: &nusav1.GlobalMessage_Lease{Lease: &nusav1.LeaseGrant{Id: 7}}},
		"unused": {Kind: &nusav1.GlobalMessage_Peers{Peers: &nusav1.PeerRegions{Regions: []*nusav1.PeerRegion{{Name: "a"}}}}},
		"empty":  {},
	} {
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		got := &nusav1.GlobalMessage{}
		if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, got); err != nil {
			t.Fatal(err)
		}
		if want := kind == "used"; (got.GetKind() != nil) != want {
			t.Errorf("%s: %v", kind, got)
		}
	}
	if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer{0x80}}, &nusav1.GlobalMessage{}); err == nil {
		t.Error("a broken message is no error")
	}
}

// TestSlots checks what a region answers and reports after each order.
func TestSlots(t *testing.T) {
	var seen []string
	note := func(what string) func(*nusav1.Slot, time.Time) {
		return func(s *nusav1.Slot, _ time.Time) { seen = append(seen, fmt.Sprintf("%s %s", what, slotKey(s))) }
	}
	f := New(Config{
		Regions: 1, Nodes: 2, Offered: note("offered"), Accepted: note("accepted"),
		Ask: func(string) (int64, int64) { return 100, 1 << 20 },
	})
	r := f.regions[0]
	r.begin(nil, &nusav1.GlobalWelcome{})
	order := func(full bool, generation int64, state nusav1.SlotState, desired nusav1.SlotDesired) string {
		t.Helper()
		seen = nil
		m := &nusav1.SlotOrders{Full: full, Last: full, Position: &nusav1.Position{Epoch: "e", Sequence: uint64(generation)}}
		if generation > 0 {
			m.Orders = []*nusav1.SlotOrder{{Revision: generation, Slot: &nusav1.Slot{
				Namespace: "default", Job: "j", Group: "g", From: 0, To: 2, Generation: generation, JobVersion: 1, Run: 5, State: state, Desired: desired,
			}}}
		} else if !full {
			m.Removed = []string{"default/j/g/0"}
		}
		if err := r.orders(m); err != nil {
			t.Fatal(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, a := range r.answers(false) {
			seen = append(seen, fmt.Sprintf("answer %d %s", a.GetGeneration(), strings.TrimPrefix(a.GetState().String(), "SLOT_STATE_")))
		}
		if s, held := r.summaries.Get("default/j"); held {
			seen = append(seen, fmt.Sprintf("running %d v%d", s.GetGroups()["g"].GetRunning(), s.GetVersion()))
		}
		return strings.Join(append(seen, fmt.Sprintf("cpu %d", r.report().GetAllocated().GetCpuMilli())), ", ")
	}
	const (
		offered, accepted = nusav1.SlotState_SLOT_STATE_OFFERED, nusav1.SlotState_SLOT_STATE_ACCEPTED
		run, stop, revoke = nusav1.SlotDesired_SLOT_DESIRED_RUN, nusav1.SlotDesired_SLOT_DESIRED_STOP, nusav1.SlotDesired_SLOT_DESIRED_REVOKE
	)
	for _, c := range []struct{ got, want string }{
		{order(true, 0, 0, 0), "cpu 0"},
		{order(false, 7, offered, run), "offered default/j/g/0, answer 7 ACCEPTED, running 2 v1, cpu 200"},
		{order(false, 7, offered, run), "running 2 v1, cpu 200"}, // the answer is repeated by time only
		{order(false, 7, accepted, run), "accepted default/j/g/0, running 2 v1, cpu 200"},
		{order(true, 7, accepted, run), "running 2 v1, cpu 200"}, // a new session
		{order(false, 9, offered, run), "offered default/j/g/0, answer 9 ACCEPTED, running 2 v1, cpu 200"},
		{order(false, 9, accepted, revoke), "accepted default/j/g/0, answer 9 REVOKED, running 0 v-1, cpu 0"},
		{order(false, 9, accepted, stop), "answer 9 STOPPED, running 0 v-1, cpu 0"},
		{order(false, 0, 0, 0), "cpu 0"},
	} {
		if c.got != c.want {
			t.Errorf("\n got %s\nwant %s", c.got, c.want)
		}
	}
	if len(r.held)+len(r.jobs)+len(r.unanswered) > 0 {
		t.Errorf("something is left: %v %v %v", r.held, r.jobs, r.unanswered)
	}
}

func TestFits(t *testing.T) {
	free := &nusav1.Resources{CpuMilli: 1000, MemoryBytes: 1 << 30, DiskBytes: 1 << 40}
	for want, asks := range map[int32][]*nusav1.ShapeSubscription{
		6: {{Resources: &nusav1.Resources{CpuMilli: 300}, Drivers: []string{"process"}}, {Resources: &nusav1.Resources{CpuMilli: 1, MemoryBytes: 500 << 20}, Pool: "default", Drivers: nil}},
		0: {{Resources: &nusav1.Resources{CpuMilli: 1001}}, {Drivers: []string{"docker"}}, {Pool: "gpu"}, {Constraints: []string{"true"}}},
	} {
		for _, a := range asks {
			nodes := int64(2)
			if a.GetResources().GetMemoryBytes() > 0 {
				nodes = 3
			}
			if got := fits(a, free, nodes); got != want {
				t.Errorf("%v fits %d times, want %d", a, got, want)
			}
		}
	}
}
