package global

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/sets"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestOfferAcceptRunStop(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1")
	r := s.joined("alpha")
	resp := s.submit(testJob("api", 3))
	if resp.GetVersion() != 1 || !resp.GetChanged() || resp.GetRevision() == 0 {
		t.Errorf("submit returned %v", resp)
	}
	slot := r.waitSlot("default/api/web/0", accepted)
	if slot.GetTo() != 3 || slot.GetGeneration() < resp.GetRevision() || slot.GetJobVersion() != 1 || slot.GetPlacedBecause() == "" {
		t.Errorf("slot %v", slot)
	}
	r.mu.Lock()
	var spec nusav1.JobSpec
	if err := proto.Unmarshal(r.slots["default/api/web/0"].GetSpec(), &spec); err != nil || spec.GetName() != "api" || spec.GetPriority() != 50 {
		t.Errorf("spec of the order: %v, %v", &spec, err)
	}
	r.mu.Unlock()
	s.waitJob("api", "pending at its region", func(j *nusav1.Job) bool {
		return j.GetStatus().GetState() == nusav1.JobState_JOB_STATE_PENDING && j.GetStatus().GetGroups()["web"].GetUnowned() == 0
	})
	r.summarize(true, 1, &nusav1.JobSummary{Namespace: "default", Job: "api", Incarnation: 1, Index: 5,
		Groups: map[string]*nusav1.InstanceCounts{"web": {Running: 3}}})
	j := s.waitJob("api", "running", func(j *nusav1.Job) bool { return j.GetStatus().GetState() == nusav1.JobState_JOB_STATE_RUNNING })
	if got := j.GetStatus().GetGroups()["web"].GetRegions()["alpha"].GetRunning(); got != 3 {
		t.Errorf("%d run at alpha", got)
	}
	// An older summary does not replace a newer one.
	r.summarize(false, 2, &nusav1.JobSummary{Namespace: "default", Job: "api", Incarnation: 1, Index: 4,
		Groups: map[string]*nusav1.InstanceCounts{"web": {Pending: 3}}})
	if got, err := s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "api"}}); err != nil || got.GetStatus().GetState() != nusav1.JobState_JOB_STATE_RUNNING {
		t.Errorf("after an older summary: %v %v", got.GetStatus(), err)
	}
	if _, err := s.jobs().Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "api"}}); err != nil {
		t.Fatal(err)
	}
	r.wait("removal of the slot", func() bool { return len(r.slots) == 0 })
	s.waitJob("api", "stopped", func(j *nusav1.Job) bool { return j.GetStatus().GetState() == nusav1.JobState_JOB_STATE_STOPPED })
}

func TestRejectedGoesToTheNextRegion(t *testing.T) {
	s := newFederation().start(t, "g1")
	full := func(r *fakeRegion) {
		r.script = func(s *nusav1.Slot) []*nusav1.SlotAnswer {
			a := answerTo(s, nusav1.SlotState_SLOT_STATE_REJECTED)
			a.Reason, a.Message = nusav1.Reason_REASON_NO_FITTING_NODE, "all are full"
			r.fits = 0
			return []*nusav1.SlotAnswer{a}
		}
	}
	preferred := s.joined("alpha", full)
	other := s.joined("beta")
	s.waitReport("alpha")
	s.waitReport("beta")
	s.submit(testJob("api", 2, func(j *nusav1.JobSpec) {
		j.Regions = &nusav1.RegionsSpec{Prefer: []*nusav1.Preference{{Selector: &nusav1.RegionSelector{Name: "alpha"}, Weight: 100}}}
	}))
	slot := other.waitSlot("default/api/web/0", accepted)
	if slot.GetTo() != 2 {
		t.Errorf("slot %v", slot)
	}
	preferred.wait("removal of the rejected slot", func() bool { return preferred.orders > 0 && len(preferred.slots) == 0 })
}

func TestReturnedSubRangeSplitsTheSlot(t *testing.T) {
	s := newFederation().start(t, "g1")
	first := s.joined("alpha")
	s.submit(testJob("api", 5))
	slot := first.waitSlot("default/api/web/0", accepted)
	second := s.joined("beta")
	back := answerTo(slot, nusav1.SlotState_SLOT_STATE_RETURNED)
	back.From, back.To, back.Reason = 1, 3, nusav1.Reason_REASON_INSUFFICIENT_MEMORY
	first.mu.Lock()
	first.fits = 0
	rep := first.report()
	first.mu.Unlock()
	first.send(rep)
	first.answer(back)
	moved := second.waitSlot("default/api/web/1", accepted)
	if moved.GetTo() != 3 || moved.GetGeneration() <= slot.GetGeneration() {
		t.Errorf("moved slot %v", moved)
	}
	left := first.waitSlot("default/api/web/0", func(s *nusav1.Slot) bool { return s.GetTo() == 1 })
	right := first.waitSlot("default/api/web/3", func(s *nusav1.Slot) bool { return s.GetTo() == 5 })
	// The part with the old key keeps its generation; a part with a new key is a new
	// offer.
	if left.GetGeneration() != slot.GetGeneration() || right.GetGeneration() <= slot.GetGeneration() {
		t.Errorf("slot %v was split into %v and %v", slot, left, right)
	}
	// The same answer again, now late, changes nothing.
	first.answer(back, back)
	first.summarize(true, 1) // the stream delivers it after the answers
	j, err := s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "api"}})
	if err != nil {
		t.Fatal(err)
	}
	owners := ""
	for _, s := range j.GetStatus().GetGroups()["web"].GetSlots() {
		owners += fmt.Sprintf("%d-%d %s; ", s.GetFrom(), s.GetTo(), s.GetRegion())
	}
	if want := "0-1 alpha; 1-3 beta; 3-5 alpha; "; owners != want {
		t.Errorf("owners %q, want %q", owners, want)
	}
}

func TestReconnectResumesOrders(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha")
	s.submit(testJob("one", 1))
	r.waitSlot("default/one/web/0", accepted)
	r.wait("position", func() bool { return r.position.GetSequence() > 0 })
	r.mu.Lock()
	position, orders := r.position, r.orders
	r.mu.Unlock()
	if orders == 0 {
		t.Fatal("no orders")
	}
	r.leave()
	s.waitRegion("alpha", nusav1.RegionState_REGION_STATE_DISCONNECTED)
	s.submit(testJob("two", 1)) // no region is connected: the job waits
	hello := helloOf("alpha", 1)
	hello.Orders = position
	again := s.join(hello)
	again.waitSlot("default/two/web/0", accepted)
	again.mu.Lock()
	defer again.mu.Unlock()
	if again.fullSets != 0 || again.slots["default/one/web/0"] != nil {
		t.Errorf("%d full sets and %d slots came after a resume; only the new one should", again.fullSets, len(again.slots))
	}
}

// TestElectionResumesOrders: a region that has exactly the orders of the next active server gets only later ones.
// Another region gets all orders.
func TestElectionResumesOrders(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1")
	r := s.joined("alpha")
	s.submit(testJob("one", 1))
	key := "default/one/web/0"
	r.waitSlot(key, inState(nusav1.SlotState_SLOT_STATE_ACCEPTED))
	r.wait("position", func() bool { return r.position.GetSequence() > 0 })
	r.mu.Lock()
	position, revision, level := r.position, r.slots[key].GetRevision(), r.welcome.GetFeatureLevel()
	r.mu.Unlock()
	hash := func(level uint32, revision int64) uint64 {
		return sets.HashOrders(level, maps.All(map[string]int64{key: revision}))
	}
	s.stop()
	s = f.start(t, "g2")
	waitActive(t, s)
	for i, c := range []struct {
		what string
		hash uint64
		full int
	}{
		{"no hash", 0, 1},
		{"an older order", hash(level, revision-1), 1},
		{"orders of an earlier level", hash(level-1, revision), 1},
		{"the same orders", hash(level, revision), 0},
	} {
		again := s.joined("alpha", func(r *fakeRegion) {
			r.hello.Term, r.hello.Orders = uint64(2+i), position
			r.hello.Known = &nusav1.KnownSets{Orders: c.hash}
		})
		again.wait("position of the term", func() bool { return again.position != nil && again.position.GetEpoch() != position.GetEpoch() })
		again.mu.Lock()
		if again.fullSets != c.full || len(again.slots) != c.full {
			t.Errorf("%s: %d full sets and %d slots came, want %d", c.what, again.fullSets, len(again.slots), c.full)
		}
		again.mu.Unlock()
		if c.full == 0 {
			again.askLease(1)
			again.wait("lease", func() bool { return len(again.grants) == 1 })
			s.submit(testJob("two", 1))
			again.waitSlot("default/two/web/0", accepted)
		}
		again.leave()
	}
}

func (s *testServer) waitRegion(name string, state nusav1.RegionState) *nusav1.Region {
	s.t.Helper()
	watch, err := nusav1.NewRegionsClient(s.conn).Watch(s.t.Context(), &nusav1.ListRegionsRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	for {
		r, err := watch.Recv()
		if err != nil {
			s.t.Fatalf("region %s did not become %s: %v", name, state, err)
		}
		if r.GetDefinition().GetName() == name && r.GetState() == state {
			return r
		}
	}
}

func TestSessionsAreOrdered(t *testing.T) {
	s := newFederation().start(t, "g1")
	old := s.joined("alpha")
	next := s.join(helloOf("alpha", 2))
	next.wait("welcome", func() bool { return next.welcome != nil })
	old.wait("end of the old session", func() bool { return old.err != nil })
	if old.refused.GetPermanent() {
		t.Errorf("the replaced master was refused permanently: %v", old.refused)
	}
	late := s.join(helloOf("alpha", 1))
	late.wait("refusal of the older term", func() bool { return late.refused != nil })
	if late.refused.GetPermanent() {
		t.Errorf("an older master may come back with a new term: %v", late.refused)
	}
	imposter := helloOf("alpha", 9)
	imposter.ClusterId = "another"
	wrong := s.join(imposter)
	wrong.wait("refusal of another cluster", func() bool { return wrong.refused != nil })
	if !wrong.refused.GetPermanent() || wrong.refused.GetMessage() == "" {
		t.Errorf("another cluster under a bound name: %v", wrong.refused)
	}
	next.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Lease{Lease: &nusav1.LeaseRequest{Id: 7}}})
	next.wait("lease", func() bool {
		return len(next.grants) == 1 && next.grants[0].GetId() == 7 && next.grants[0].GetDuration().AsDuration() > 0
	})
}

func TestBadHellos(t *testing.T) {
	s := newFederation().start(t, "g1")
	for name, change := range map[string]func(*nusav1.RegionHello){
		"name":     func(h *nusav1.RegionHello) { h.Definition.Name = "No/Name" },
		"cluster":  func(h *nusav1.RegionHello) { h.ClusterId = "" },
		"size":     func(h *nusav1.RegionHello) { h.Version = strings.Repeat("x", 64<<10) },
		"protocol": func(h *nusav1.RegionHello) { h.Protocol = 99 },
		"servers":  func(h *nusav1.RegionHello) { h.Servers = make([]*nusav1.RegionalServer, 65) },
	} {
		t.Run(name, func(t *testing.T) {
			h := helloOf("alpha", 1)
			change(h)
			for i := range h.Servers {
				if h.Servers[i] == nil {
					h.Servers[i] = &nusav1.RegionalServer{}
				}
			}
			r := s.join(h)
			r.wait("refusal", func() bool { return r.refused != nil })
			if !r.refused.GetPermanent() {
				t.Errorf("%v", r.refused)
			}
		})
	}
	list, err := nusav1.NewRegionsClient(s.conn).List(t.Context(), &nusav1.ListRegionsRequest{})
	if err != nil || len(list.GetRegions()) != 0 {
		t.Errorf("refused hellos left %v, %v", list, err)
	}
}

func TestPeersColumnsAndShapes(t *testing.T) {
	s := newFederation().start(t, "g1")
	a, b := s.joined("alpha"), s.joined("beta")
	a.wait("its peer", func() bool {
		return len(a.peers.GetRegions()) == 1 && a.peers.GetRegions()[0].GetName() == "beta" &&
			slices.Equal(a.peers.GetRegions()[0].GetProbeAddresses(), []string{"beta:7613"})
	})
	a.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Latency{Latency: &nusav1.LatencyRow{Full: true, Edges: []*nusav1.Edge{{
		From: "alpha", To: "beta", State: nusav1.EdgeState_EDGE_STATE_OK, Source: nusav1.RTTSource_RTT_SOURCE_MEASURED,
		P50: durationpb.New(70e6), P90: durationpb.New(71e6), P99: durationpb.New(75e6), Samples: 10, Method: "udp",
	}}}}})
	b.wait("its column", func() bool {
		return len(b.column.GetEdges()) == 1 && b.column.GetEdges()[0].GetP50().AsDuration() == 70e6
	})
	m, err := nusav1.NewTopologyClient(s.conn).Matrix(t.Context(), &nusav1.MatrixRequest{})
	if err != nil || len(m.GetEdges()) != 2 || m.GetEdges()[0].GetP99().AsDuration() != 75e6 ||
		m.GetEdges()[1].GetState() != nusav1.EdgeState_EDGE_STATE_UNKNOWN {
		t.Errorf("matrix %v, %v", m, err)
	}
	s.submit(testJob("api", 1))
	a.wait("its subscription", func() bool {
		return len(a.shapes.GetAsks()) == 1 && a.shapes.GetAsks()[0].GetResources().GetCpuMilli() == 100
	})
}

func TestBatchCompletes(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1")
	r := s.joined("alpha")
	s.submit(testJob("sum", 2, func(j *nusav1.JobSpec) { j.Type = nusav1.JobType_JOB_TYPE_BATCH }))
	slot := r.waitSlot("default/sum/web/0", accepted)
	r.summarize(true, 1, &nusav1.JobSummary{Namespace: "default", Job: "sum", Incarnation: 1, Index: 9,
		Groups: map[string]*nusav1.InstanceCounts{"web": {Complete: 2}}})
	r.answer(answerTo(slot, nusav1.SlotState_SLOT_STATE_DONE))
	r.waitSlot("default/sum/web/0", inState(nusav1.SlotState_SLOT_STATE_DONE))
	s.waitJob("sum", "complete", func(j *nusav1.Job) bool { return j.GetStatus().GetState() == nusav1.JobState_JOB_STATE_COMPLETE })
	// The result is durable: a successor has it without the region.
	other := f.mem.Client()
	defer other.Close()
	waitKey(t, other, "/nusa/v1/results/default/sum")
	r.leave()
	s.stop()
	next := f.start(t, "g2")
	j, err := next.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "sum"}})
	if err != nil || j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_COMPLETE || len(j.GetStatus().GetGroups()["web"].GetSlots()) != 1 {
		t.Errorf("after the takeover: %v, %v", j.GetStatus(), err)
	}
}

// TestUnknownFactsAreNotShown: the health of a disconnected region's servers is not shown, nor is
// the age of a report from before the leadership term.
func TestUnknownFactsAreNotShown(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1")
	r := s.joined("alpha")
	s.waitReport("alpha")
	look := func(s *testServer, ok func(*nusav1.Region) bool) *nusav1.Region {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), testWait)
		defer cancel()
		watch, err := nusav1.NewRegionsClient(s.conn).Watch(ctx, &nusav1.ListRegionsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for {
			got, err := watch.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if ok(got) {
				return got
			}
		}
	}
	is := func(want nusav1.RegionState) func(*nusav1.Region) bool {
		return func(r *nusav1.Region) bool { return r.GetState() == want && r.GetReport() != nil }
	}
	there := look(s, is(nusav1.RegionState_REGION_STATE_CONNECTED))
	if srv := there.GetServers(); len(srv) != 1 || !srv[0].GetHealthy() || !srv[0].GetLeader() || there.GetReportAge() == nil {
		t.Errorf("connected: %v", there)
	}
	other := f.mem.Client()
	defer other.Close()
	waitKey(t, other, state.CheckpointKey("alpha", 0))
	r.leave()
	gone := look(s, is(nusav1.RegionState_REGION_STATE_DISCONNECTED))
	if srv := gone.GetServers(); len(srv) != 1 || srv[0].GetHealthy() || srv[0].GetLeader() || gone.GetReportAge() == nil {
		t.Errorf("disconnected: %v", gone)
	}
	s.stop()
	next := f.start(t, "g2")
	waitActive(t, next)
	if restored := look(next, is(nusav1.RegionState_REGION_STATE_DISCONNECTED)); restored.GetReportAge() != nil {
		t.Errorf("a restored report has an age: %v", restored)
	}
}
