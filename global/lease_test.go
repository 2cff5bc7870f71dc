package global

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/failover"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestUsualNotice: the advice for a job file is what a federation with the default lease accepts.
func TestUsualNotice(t *testing.T) {
	if is := failover.Notice(DefaultLease); is != job.UsualNotice {
		t.Errorf("%s, the job files' advice is %s", is, job.UsualNotice)
	}
}

func (r *fakeRegion) askLease(id uint64, change ...func(*nusav1.LeaseRequest)) {
	q := &nusav1.LeaseRequest{Id: id}
	for _, c := range change {
		c(q)
	}
	r.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Lease{Lease: q}})
}

// TestNoLeaseBeforeTheOrders: a region gets no lease before it has acknowledged the orders that it
// lacked at its welcome. The grant names the orders that it relies on.
func TestNoLeaseBeforeTheOrders(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.join(helloOf("alpha", 3), func(r *fakeRegion) { r.noAck = true })
	r.wait("orders", func() bool { return r.fullSets == 1 })
	r.askLease(1)
	r.summarize(true, 1) // the server has handled the request when it acknowledges the summaries
	r.mu.Lock()
	at, grants := r.position, len(r.grants)
	r.mu.Unlock()
	if at.GetSequence() == 0 || grants != 0 {
		t.Fatalf("%d grants before the orders up to %v are acknowledged", grants, at)
	}
	// A position of another server's term does not count.
	r.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_OrdersAck{OrdersAck: &nusav1.Position{Epoch: "other", Sequence: at.GetSequence()}}})
	r.askLease(2)
	r.summarize(false, 2)
	r.mu.Lock()
	if len(r.grants) != 0 {
		t.Error("granted on the acknowledgement of another server's orders")
	}
	r.mu.Unlock()
	r.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_OrdersAck{OrdersAck: at}})
	r.askLease(3)
	r.wait("grant", func() bool { return len(r.grants) == 1 })
	r.mu.Lock()
	defer r.mu.Unlock()
	g, term := r.grants[0], r.welcome.GetLeadershipTerm()
	if g.GetId() != 3 || g.GetLeadershipTerm().GetNumber() != term.GetNumber() || g.GetLeadershipTerm().GetNonce() != term.GetNonce() ||
		g.GetIncarnation() != 1 || g.GetFence() != 0 || g.GetOrders().GetEpoch() != at.GetEpoch() || g.GetOrders().GetSequence() < at.GetSequence() {
		t.Errorf("grant %v after the orders %v in term %v", g, at, term)
	}
}

// TestGrantsNameLaterOrders: a grant relies on the orders at the time of the grant, not on the
// orders of the welcome.
func TestGrantsNameLaterOrders(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha")
	r.wait("orders", func() bool { return r.fullSets == 1 })
	r.askLease(1)
	r.wait("grant", func() bool { return len(r.grants) == 1 })
	s.submit(testJob("api", 1))
	slot := r.waitSlot("default/api/web/0", accepted)
	r.askLease(2)
	r.wait("grant", func() bool { return len(r.grants) == 2 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if before, now := r.grants[0].GetOrders().GetSequence(), r.grants[1].GetOrders().GetSequence(); now <= before || now < uint64(slot.GetGeneration()) {
		t.Errorf("orders %d, then %d with a slot of generation %d", before, now, slot.GetGeneration())
	}
}

// TestSilenceIsCheckedEachSecond: a session without messages ends after one lease, however
// long the report interval is. Any message counts.
func TestSilenceIsCheckedEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		s := f.start(t, "g1", func(c *Config) {
			c.Clock = func() time.Duration { return time.Since(start) }
			c.Lease, c.ReportInterval, c.CheckpointInterval = 6*time.Second, time.Minute, time.Hour
		})
		r := s.joined("alpha")
		synctest.Wait()
		for range 3 {
			time.Sleep(5 * time.Second)
			r.mu.Lock()
			rep := r.report()
			r.mu.Unlock()
			r.send(rep)
			synctest.Wait()
		}
		last := time.Now()
		r.wait("end of the session", func() bool { return r.err != nil })
		if took := time.Since(last); took < 6*time.Second || took > 7*time.Second+100*time.Millisecond {
			t.Errorf("the session ended %s after the last message", took)
		}
		r.leave()
		s.stop()
	})
}

// TestLostGrantsAreSilence: a region that asks for leases and never confirms one is silent.
func TestLostGrantsAreSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		s := f.start(t, "g1", func(c *Config) {
			c.Clock, c.Lease = func() time.Duration { return time.Since(start) }, 6*time.Second
		})
		for _, confirms := range []bool{true, false} {
			hello := helloOf("alpha", 1)
			hello.FeatureLevel = 1
			r := s.join(hello)
			r.wait("welcome", func() bool { return r.welcome != nil })
			synctest.Wait()
			for id := uint64(1); id <= 10; id++ {
				r.askLease(id, func(q *nusav1.LeaseRequest) {
					if confirms {
						q.Granted = id - 1
					}
				})
				time.Sleep(2 * time.Second)
			}
			synctest.Wait()
			r.mu.Lock()
			if alive := r.err == nil; alive != confirms || confirms && len(r.grants) != 10 {
				t.Errorf("confirms grants: %t, its session is alive: %t, %d grants", confirms, alive, len(r.grants))
			}
			r.mu.Unlock()
			r.leave()
		}
		s.stop()
	})
}

// TestRegionThatCannotCommitIsShown: the region and an event say so.
func TestRegionThatCannotCommitIsShown(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha")
	look := func() *nusav1.Region {
		t.Helper()
		got, err := nusav1.NewRegionsClient(s.conn).Get(t.Context(), &nusav1.GetRegionRequest{Name: "alpha"})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	r.wait("orders", func() bool { return r.fullSets == 1 }) // no lease before it acknowledges them
	r.askLease(1, func(q *nusav1.LeaseRequest) { q.CommitBlocked = durationpb.New(7 * time.Second) })
	r.wait("grant", func() bool { return len(r.grants) == 1 })
	if got := look().GetCommitBlocked().AsDuration(); got != 7*time.Second {
		t.Errorf("blocked for %s", got)
	}
	r.askLease(2)
	r.wait("grant", func() bool { return len(r.grants) == 2 })
	if got := look(); got.GetCommitBlocked() != nil {
		t.Errorf("still blocked: %v", got)
	}
}

// TestNumbersThatWentBack: a region of another federation is refused for good, and so is a log that
// ends before an index that the server knew. The next active server refuses them too.
func TestNumbersThatWentBack(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1")
	hello := func(index uint64, federation string) *nusav1.RegionHello {
		h := helloOf("alpha", 1)
		h.AppliedIndex, h.FederationId = index, federation
		return h
	}
	first := s.join(hello(70, ""))
	first.wait("welcome", func() bool { return first.welcome != nil })
	id := first.welcome.GetFederationId()
	refused := func(h *nusav1.RegionHello, want ...string) {
		t.Helper()
		r := s.join(h)
		r.wait("refusal", func() bool { return r.refused != nil })
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, part := range want {
			if !r.refused.GetPermanent() || !strings.Contains(r.refused.GetMessage(), part) {
				t.Errorf("refused with %v, want %q", r.refused, part)
			}
		}
		if r.fullSets > 0 {
			t.Error("orders were sent")
		}
	}
	for range 2 {
		refused(hello(69, id), "index 69", "index 70")
		refused(hello(71, "other"), "federation other", id)
		first.leave()
		s.stop()
		s = f.start(t, "g2")
	}
	again := hello(5, id)
	again.Incarnation = 2
	restored := s.join(again)
	restored.wait("welcome of the next incarnation", func() bool { return restored.welcome != nil })
}
