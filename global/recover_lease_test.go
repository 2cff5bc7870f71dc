package global

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/lease"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestNoLeaseAfterARecovery: by the recovered store a region may own a bound slot that another
// region runs, because the store does not know the latest move. So no region gets orders while a
// lease from before the recovery is valid. No region gets a lease until everything has ended that
// such a lease bound. A longer lease that only a region's log knows counts too, and so does an
// election in between.
func TestNoLeaseAfterARecovery(t *testing.T) {
	const leaseMax, stop, elected = 9 * time.Second, 40 * time.Second, 3 * time.Second
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		quick := func(c *Config) {
			c.Clock, c.Lease, c.ElectionTTL = func() time.Duration { return time.Since(start) }, 6*time.Second, elected
		}
		s := f.start(t, "g1", quick)
		alpha := s.joined("alpha")
		s.submit(testJob("db", 1, func(j *nusav1.JobSpec) {
			j.Groups["web"].Singleton = true
			j.Groups["web"].Tasks["server"].KillTimeout = durationpb.New(stop)
		}))
		id := alpha.welcome.GetFederationId()
		beta := func(leaseMax time.Duration) *nusav1.RegionHello {
			h := helloOf("beta", 1)
			h.FederationId, h.StoreRevision, h.LeaseMax, h.FeatureLevel = id, 1<<30, durationpb.New(leaseMax), region.ConfirmLevel
			return h
		}
		refused := s.join(beta(time.Second))
		refused.wait("refusal", func() bool { return refused.refused != nil })
		if _, err := nusav1.NewSystemClient(s.conn).Recover(t.Context(), &nusav1.RecoverRequest{FederationId: id}); err != nil {
			t.Fatal(err)
		}
		waits := func(i *nusav1.InfoResponse) bool {
			return i.GetLeader() && len(i.GetAlarms()) == 2 && strings.Contains(i.GetAlarms()[0], "every earlier lease") && strings.Contains(i.GetAlarms()[1], "have confirmed")
		}
		waitInfo(t, s, "active with an alarm", waits)
		recovered := time.Now()
		again := s.welcomed(beta(leaseMax)) // the region's log knows a longer lease than at the conflict
		if took := time.Since(recovered); took < lease.Over(leaseMax, 0) {
			t.Errorf("welcomed after %s", took)
		}
		again.wait("orders", func() bool { return again.fullSets == 1 })
		again.askLease(1, confirmed)
		time.Sleep(2 * time.Second) // the region has confirmed what it runs
		s.stop()

		began := time.Now()
		s = f.start(t, "g2", quick)
		waitInfo(t, s, "active with an alarm", waits)
		took, least := s.firstLease("alpha").Sub(began), lease.Over(leaseMax, stop)
		if took < least || took > least+elected+time.Second {
			t.Errorf("the first lease came %s after the election, want %s", took, least)
		}
		time.Sleep(5 * time.Second)
		waitInfo(t, s, "active without an alarm", func(i *nusav1.InfoResponse) bool { return i.GetLeader() && len(i.GetAlarms()) == 0 })
		s.stop()
		began = time.Now()
		s = f.start(t, "g3", quick)
		if took := s.firstLease("alpha").Sub(began); took > time.Second {
			t.Errorf("after the wait, the next server granted the first lease after %s", took)
		}
		s.stop()
	})
}

// confirmed makes a request for a lease say that the region runs nothing without an order.
func confirmed(q *nusav1.LeaseRequest) { q.Confirmed = true }

// welcomed joins again and again until the region is welcomed.
func (s *testServer) welcomed(h *nusav1.RegionHello) *fakeRegion {
	s.t.Helper()
	for range 1000 {
		r := s.join(h)
		r.wait("answer", func() bool { return r.welcome != nil || r.refused != nil })
		if r.welcome != nil {
			return r
		}
		r.leave()
		time.Sleep(100 * time.Millisecond)
	}
	s.t.Fatalf("%v is not welcomed", h)
	return nil
}

// firstLease returns when a region that asks again and again gets a lease.
func (s *testServer) firstLease(name string) time.Time {
	s.t.Helper()
	h := helloOf(name, 1)
	h.FeatureLevel = region.ConfirmLevel
	r := s.welcomed(h)
	defer r.leave()
	for id := uint64(1); id < 2000; id++ {
		r.askLease(id, confirmed)
		synctest.Wait()
		r.mu.Lock()
		granted, err := len(r.grants) > 0, r.err
		r.mu.Unlock()
		if granted {
			return time.Now()
		}
		if err != nil {
			s.t.Fatalf("the session of %s ended: %v", name, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.t.Fatalf("%s gets no lease", name)
	return time.Time{}
}
