package global

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRestoredSnapshotIsNoticedAtOnce: the store was restored from a snapshot that lacks no record,
// and no region is connected. The server notices the restore by the log of the store. After the
// recovery no region gets a lease before every region has confirmed what it runs, or an operator
// has stated that nothing runs there.
func TestRestoredSnapshotIsNoticedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		quick := func(c *Config) {
			c.Clock, c.Lease, c.ElectionTTL = func() time.Duration { return time.Since(start) }, 6*time.Second, 3*time.Second
		}
		s := f.start(t, "g1", quick)
		for _, name := range []string{"alpha", "beta", "gamma"} {
			s.joined(name)
		}
		s.stop()

		f.mem = f.mem.Snapshot()
		s = f.start(t, "g1", quick)
		alarm := func(words string) func(*nusav1.InfoResponse) bool {
			return func(i *nusav1.InfoResponse) bool {
				return i.GetLeader() && len(i.GetAlarms()) == 1 && strings.Contains(i.GetAlarms()[0], words)
			}
		}
		waitInfo(t, s, "active with an alarm", alarm("not the one that its records know"))
		refused := s.join(helloOf("alpha", 1))
		refused.wait("refusal", func() bool { return refused.refused != nil })
		id, _ := f.identity(t)
		if _, err := nusav1.NewSystemClient(s.conn).Recover(t.Context(), &nusav1.RecoverRequest{FederationId: id}); err != nil {
			t.Fatal(err)
		}
		waitInfo(t, s, "active, and waiting for the regions", confirming("alpha, beta, gamma"))

		confirms := func(name string) *fakeRegion {
			h := helloOf(name, 1)
			h.FeatureLevel = 2
			r := s.welcomed(h)
			synctest.Wait() // the region has acknowledged its orders; a request before that confirms nothing
			return r
		}
		alpha, beta := confirms("alpha"), confirms("beta")
		if !alpha.welcome.GetConfirm() {
			t.Error("the welcome does not ask the region to confirm")
		}
		requests := uint64(0)
		ask := func(of *fakeRegion, confirmed bool, unordered int32) {
			requests++
			of.askLease(requests, func(q *nusav1.LeaseRequest) { q.Confirmed, q.Unordered = confirmed, unordered })
			time.Sleep(1500 * time.Millisecond)
		}
		granted := func() int {
			alpha.mu.Lock()
			defer alpha.mu.Unlock()
			return len(alpha.grants)
		}
		ask(alpha, true, 0)
		ask(beta, false, 2)
		if r := s.getRegion("beta"); !strings.Contains(r.GetFailoverMessage(), "does not order: 2") {
			t.Errorf("beta says %q", r.GetFailoverMessage())
		}
		if r := s.getRegion("alpha"); r.GetFailoverMessage() != "" {
			t.Errorf("alpha says %q", r.GetFailoverMessage())
		}
		ask(beta, true, 0)
		waitInfo(t, s, "waiting for one region", confirming("gamma"))
		if note := s.getRegion("gamma").GetFailoverMessage(); !strings.Contains(note, "nusa region lose gamma") {
			t.Errorf("gamma says %q", note)
		}
		for range 10 {
			ask(alpha, true, 0)
		}
		if granted() > 0 {
			t.Error("a region got a lease although another one has not confirmed what it runs")
		}
		s.stop()

		// The next server continues to wait.
		s = f.start(t, "g2", quick)
		waitInfo(t, s, "waiting for one region", confirming("gamma"))
		alpha = confirms("alpha")
		if alpha.welcome.GetConfirm() {
			t.Error("the welcome asks the region to confirm again")
		}
		for range 10 {
			ask(alpha, false, 0)
		}
		if granted() > 0 {
			t.Error("a region got a lease from the next server")
		}
		regions := nusav1.NewRegionsClient(s.conn)
		if _, err := regions.Lose(t.Context(), &nusav1.LoseRegionRequest{Name: "delta", Confirm: "delta"}); status.Code(err) != codes.NotFound {
			t.Errorf("a region that nobody knows is lost: %v", err)
		}
		if _, err := regions.Lose(t.Context(), &nusav1.LoseRegionRequest{Name: "gamma", Confirm: "gamma"}); err != nil {
			t.Fatal(err)
		}
		ask(alpha, false, 0)
		if granted() == 0 {
			t.Error("no lease although an operator has stated that nothing runs in the last region")
		}
		waitInfo(t, s, "active without an alarm", func(i *nusav1.InfoResponse) bool { return i.GetLeader() && len(i.GetAlarms()) == 0 })
		s.stop()
	})
}

func (s *testServer) getRegion(name string) *nusav1.Region {
	s.t.Helper()
	r, err := nusav1.NewRegionsClient(s.conn).Get(s.t.Context(), &nusav1.GetRegionRequest{Name: name})
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}
