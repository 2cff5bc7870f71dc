package global

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// releases is a script like agree that also confirms revokes at once.
func releases(s *nusav1.Slot) []*nusav1.SlotAnswer {
	if s.GetDesired() == toRevoke {
		return []*nusav1.SlotAnswer{answerTo(s, nusav1.SlotState_SLOT_STATE_REVOKED)}
	}
	return agree(s)
}

// runsAll reports all instances of job api that the region owns as running.
func (r *fakeRegion) runsAll(index uint64) {
	r.mu.Lock()
	n, version, run := int32(0), int64(0), int64(0)
	for _, o := range r.slots {
		if s := o.GetSlot(); s.GetDesired() == toRun {
			n, version, run = n+s.GetTo()-s.GetFrom(), s.GetJobVersion(), s.GetRun()
		}
	}
	r.mu.Unlock()
	r.summarize(index == 1, index, &nusav1.JobSummary{
		Namespace: "default", Job: "api", Incarnation: 1, Index: index, Version: version, Run: run,
		Groups: map[string]*nusav1.InstanceCounts{"web": {Running: n}},
	})
}

func (r *fakeRegion) owns() (n int32) {
	for _, o := range r.slots {
		if s := o.GetSlot(); s.GetDesired() == toRun {
			n += s.GetTo() - s.GetFrom()
		}
	}
	return n
}

// watchRegion waits until ok returns true for a region.
func (s *testServer) watchRegion(name, what string, ok func(*nusav1.Region) bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testWait)
	defer cancel()
	watch, err := nusav1.NewRegionsClient(s.conn).Watch(ctx, &nusav1.ListRegionsRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	var last *nusav1.Region
	for {
		r, err := watch.Recv()
		if err != nil {
			s.t.Fatalf("region %s: not %s: %v; last: %v", name, what, err, last)
		}
		if r.GetDefinition().GetName() == name {
			last = r
			if ok(r) {
				return
			}
		}
	}
}

// inParallel lets at most two instances of a job be down.
func inParallel(j *nusav1.JobSpec) {
	j.Groups["web"].Update = &nusav1.Update{MaxParallel: 2}
}

// TestDrainMovesARegionsWorkInOrder: two instances move at a time, each after its region has
// confirmed, and only while another region has room.
func TestDrainMovesARegionsWorkInOrder(t *testing.T) {
	s := newFederation().start(t, "g1")
	full := func(r *fakeRegion) { r.fits = 0 }
	jakarta := s.joined("jakarta", func(r *fakeRegion) { r.script = releases })
	s.submit(testJob("api", 4, inParallel))
	jakarta.waitSlot("default/api/web/0", accepted)
	jakarta.runsAll(1)
	seoul := s.joined("seoul", full)
	regions := nusav1.NewRegionsClient(s.conn)
	drain := func(name string, on bool) *nusav1.Region {
		t.Helper()
		r, err := regions.Drain(t.Context(), &nusav1.DrainRegionRequest{Name: name, Drain: on})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := drain("jakarta", true); !r.GetDraining() {
		t.Errorf("%v does not drain", r)
	}
	if _, err := regions.Drain(t.Context(), &nusav1.DrainRegionRequest{Name: "tokyo", Drain: true}); status.Code(err) != codes.NotFound {
		t.Errorf("drain of an unknown region: %v", err)
	}
	s.watchRegion("jakarta", "waits for room", func(r *nusav1.Region) bool {
		return strings.HasPrefix(r.GetFailoverMessage(), "draining: 4 instances are left; default/api/web: no other region has room")
	})
	if n := func() int32 { jakarta.mu.Lock(); defer jakarta.mu.Unlock(); return jakarta.owns() }(); n != 4 {
		t.Errorf("%d instances are left at jakarta, although no other region has room", n)
	}
	seoul.mu.Lock()
	seoul.fits = 100
	rep := seoul.report()
	seoul.mu.Unlock()
	seoul.send(rep)
	seoul.wait("two instances", func() bool { return seoul.owns() == 2 })
	jakarta.wait("two instances", func() bool { return jakarta.owns() == 2 })
	jakarta.runsAll(2)
	s.watchRegion("jakarta", "waits for the others", func(r *nusav1.Region) bool {
		return strings.HasPrefix(r.GetFailoverMessage(), "draining: 2 instances are left; default/api/web: they follow when the instances that do not run now run again")
	})
	seoul.runsAll(1)
	seoul.wait("all instances", func() bool { return seoul.owns() == 4 })
	s.watchRegion("jakarta", "drained", func(r *nusav1.Region) bool { return r.GetFailoverMessage() == "drained: nothing is left" })
	if r := drain("jakarta", false); r.GetDraining() {
		t.Errorf("%v drains", r)
	}
}

// TestFailbackReturnsWorkToItsHome: a group without failback by itself returns only when an
// operator asks, two instances at a time.
func TestFailbackReturnsWorkToItsHome(t *testing.T) {
	s, seoul, _ := lostJakarta(t, func(j *nusav1.JobSpec) {
		inParallel(j)
		j.Groups["web"].Disconnect = &nusav1.Disconnect{Reconcile: nusav1.Reconcile_RECONCILE_KEEP_REPLACEMENT}
	}, nil)
	seoul.mu.Lock()
	seoul.script = releases
	seoul.mu.Unlock()
	seoul.runsAll(1)
	regions := nusav1.NewRegionsClient(s.conn)
	if _, err := regions.Failback(t.Context(), &nusav1.FailbackRequest{Name: "jakarta"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("failback to a region that is not connected: %v", err)
	}
	jakarta := s.returnOfJakarta()
	ended := jakarta.waitSlot("default/api/web/0", desired(toRevoke))
	plan := func(apply bool) []*nusav1.FailbackMove {
		t.Helper()
		resp, err := regions.Failback(t.Context(), &nusav1.FailbackRequest{Name: "jakarta", Apply: apply})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetMoves()
	}
	if m := plan(true); len(m) != 1 || m[0].GetReturns() || !strings.Contains(m[0].GetMessage(), "has not confirmed yet") {
		t.Errorf("before jakarta has confirmed: %v", m)
	}
	jakarta.answer(answerTo(ended, nusav1.SlotState_SLOT_STATE_REVOKED))
	jakarta.wait("no slot", func() bool { return len(jakarta.slots) == 0 })
	s.waitReport("jakarta")
	want := &nusav1.FailbackMove{Namespace: "default", Job: "api", Group: "web", To: 4, Owner: "seoul", Returns: true}
	if m := plan(false); len(m) != 1 || !proto.Equal(m[0], want) {
		t.Errorf("plan %v", m)
	}
	if jakarta.owns() != 0 {
		t.Error("a plan moves nothing")
	}
	plan(true)
	jakarta.wait("two instances", func() bool { return jakarta.owns() == 2 })
	seoul.runsAll(2)
	jakarta.runsAll(1)
	jakarta.wait("all instances", func() bool { return jakarta.owns() == 4 })
	s.watchRegion("jakarta", "not returning", func(r *nusav1.Region) bool { return !r.GetReturning() })
	if m := plan(false); len(m) != 0 {
		t.Errorf("afterwards: %v", m)
	}
}

// TestFailbackByItself: with mode auto the work returns after its home region was healthy for some
// time.
func TestFailbackByItself(t *testing.T) {
	s, seoul, _ := lostJakarta(t, func(j *nusav1.JobSpec) {
		j.Groups["web"].Disconnect = &nusav1.Disconnect{
			Reconcile: nusav1.Reconcile_RECONCILE_KEEP_REPLACEMENT,
			Region:    &nusav1.DisconnectLevel{Failback: &nusav1.Failback{Mode: nusav1.FailbackMode_FAILBACK_MODE_AUTO, After: durationpb.New(1e9)}},
		}
	}, nil)
	seoul.mu.Lock()
	seoul.script = releases
	seoul.mu.Unlock()
	seoul.runsAll(1)
	jakarta := s.returnOfJakarta()
	jakarta.answer(answerTo(jakarta.waitSlot("default/api/web/0", desired(toRevoke)), nusav1.SlotState_SLOT_STATE_REVOKED))
	jakarta.wait("one instance", func() bool { return jakarta.owns() == 1 })
}

// TestAttemptsMoveWithInstances: an instance whose retry policy asks for another region goes there with its attempts, and
// its region gets no instance of the group meanwhile.
func TestAttemptsMoveWithInstances(t *testing.T) {
	s := newFederation().start(t, "g1")
	newest := func(r *fakeRegion) { r.hello.FeatureLevel = 14 }
	jakarta := s.joined("jakarta", newest, func(r *fakeRegion) { r.script = releases })
	old := s.joined("tokyo", func(r *fakeRegion) { r.hello.FeatureLevel = 13 })
	s.submit(testJob("api", 2, func(j *nusav1.JobSpec) {
		j.Type = nusav1.JobType_JOB_TYPE_BATCH
		j.Groups["web"].Retry = &nusav1.Retry{Rules: []*nusav1.RetryRule{{Other: nusav1.RetryOther_RETRY_OTHER_REGION}}}
	}))
	slot := jakarta.waitSlot("default/api/web/0", accepted)
	seoul := s.joined("seoul", newest, func(r *fakeRegion) { r.script = agree })
	back := answerTo(slot, nusav1.SlotState_SLOT_STATE_RETURNED)
	back.From, back.Reason, back.Message = 1, nusav1.Reason_REASON_OTHER_REGION, "exit code 4"
	used := &nusav1.InstanceAttempts{Index: 1, Failures: 3, ByRule: []int32{3}, MemoryBytes: 7}
	back.Attempts = []*nusav1.InstanceAttempts{{Index: 0, Failures: 9}, used}
	jakarta.answer(back)
	seoul.waitSlot("default/api/web/1", accepted)
	seoul.mu.Lock()
	got := seoul.slots["default/api/web/1"].GetAttempts()
	seoul.mu.Unlock()
	if len(got) != 1 || !proto.Equal(got[0], used) {
		t.Errorf("seoul got %v, want %v", got, used)
	}
	for name, r := range map[string]*fakeRegion{"jakarta": jakarta, "tokyo": old} {
		r.mu.Lock()
		if o := r.slots["default/api/web/1"]; o != nil {
			t.Errorf("%s has %v", name, o)
		}
		r.mu.Unlock()
	}
	back = answerTo(seoul.waitSlot("default/api/web/1", accepted), nusav1.SlotState_SLOT_STATE_RETURNED)
	back.Reason = nusav1.Reason_REASON_OTHER_REGION
	seoul.answer(back) // both regions are avoided now
	var text string
	s.waitStore("both regions are avoided", func() bool {
		e, err := s.jobs().Explain(t.Context(), &nusav1.ExplainRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "api"}})
		if err != nil || len(e.GetGroups()) == 0 {
			return false
		}
		text = ""
		for _, r := range e.GetGroups()[0].GetRegions() {
			text += r.GetRegion() + ": " + r.GetMessage() + "\n"
		}
		return strings.Count(text, "its retry policy asks for another region; the region is tried again in")+strings.Count(text, "exit code 4; the region is tried again in") == 2
	})
	if !strings.Contains(text, "tokyo: retry and parallel of a group need more than its feature level 13") {
		t.Errorf("the explanation says\n%s", text)
	}
}
