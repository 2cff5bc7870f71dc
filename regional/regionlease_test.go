package regional_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// regionLeft returns the remaining time of the region's lease in an agent's latest grant.
func (a *fakeAgent) regionLeft() time.Duration {
	var left time.Duration
	a.locked(func(a *fakeAgent) { left = a.latest.GetRegionLeft().AsDuration() })
	return left
}

func (g *fakeGlobal) lastHello() *nusav1.RegionHello {
	var h *nusav1.RegionHello
	g.locked(func() { h = g.hellos[len(g.hellos)-1] })
	return h
}

func TestRegionLeaseReachesTheAgents(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		w.server(1)
		w.master(1)
		a := w.agent("n1", runs)
		w.eventually("the agent knows the region's lease", func() bool { return a.regionLeft() > 0 })
		for range 20 {
			time.Sleep(time.Second)
			if left := a.regionLeft(); left > regionLease || left < regionLease-3*time.Second {
				t.Fatalf("%s are left of a lease of %s that is renewed every 2 s", left, regionLease)
			}
		}
		g.locked(func() {
			if n := len(g.requests); n < 10 || n > 13 {
				t.Errorf("%d requests in 20 s", n)
			}
			last := g.requests[len(g.requests)-1]
			if last.GetGranted() != last.GetId()-1 || last.GetCommitBlocked() != nil {
				t.Errorf("the last request: %v", last)
			}
		})
		began := time.Now()
		g.srv.Stop()
		w.eventually("the lease is over", func() bool { return a.regionLeft() == 0 })
		if took := time.Since(began); took > regionLease+nodeLease/3 {
			t.Errorf("the lease ended %s after the last grant", took)
		}
		g.serve()
		w.eventually("the agent gets the lease back", func() bool { return a.regionLeft() > 0 })
	})
}

// TestReturnedLeaseIsPassedOnAtOnce: when the region has a lease again, the agents get it
// before their next request.
func TestReturnedLeaseIsPassedOnAtOnce(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		g.ahead = 1 // the log lacks an order that the grants need, so no grant counts
		w.server(1)
		w.master(1)
		a := w.agent("n1", runs)
		grants := 0
		count := func() int {
			n := 0
			a.locked(func(a *fakeAgent) { n = a.grants })
			return n
		}
		w.eventually("the agent has its lease", func() bool { return count() > 2 })
		for range 100 { // until just after an answered request
			if n := count(); n != grants {
				grants = n
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		w.eventually("the next grant", func() bool { return count() > grants })
		began := time.Now()
		g.locked(func() { g.ahead = 0 })
		g.offer(spec("api", 1), 0, 1) // with this order the log has the basis of the grants
		w.eventually("the lease counts", func() bool { return a.regionLeft() > 0 })
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("the agent got the region's lease after %s", took)
		}
	})
}

// TestGrantDoesNotOvertakeOrders: a region that returns may have lost a slot. The orders
// that say so arrive after a grant, and the grant must wait for them.
func TestGrantDoesNotOvertakeOrders(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		g.ahead = 1
		w.server(1)
		w.master(1)
		a := w.agent("n1", runs)
		w.eventually("grants arrive", func() bool {
			n := 0
			g.locked(func() { n = g.leases })
			return n > 5
		})
		if left := a.regionLeft(); left != 0 {
			t.Fatalf("the region passes on %s of a lease whose orders it lacks", left)
		}
	})
}

// TestOlderLeadershipIsRefused: a deposed global server welcomes the region and sends its
// old set of orders, in which a job is missing. The region must not apply it.
func TestOlderLeadershipIsRefused(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		g.term = &nusav1.LeadershipTerm{Number: 2, Nonce: "n2"}
		w.server(1)
		w.master(1)
		w.agent("n1", runs)
		g.offer(spec("api", 2), 0, 2)
		w.eventually("it runs", func() bool { return w.running(1)["n1"] == 2 })
		g.srv.Stop()
		deposed := &nusav1.LeadershipTerm{Number: 1, Nonce: "n1"}
		g.locked(func() { g.term = deposed })
		g.update(func() { g.orders.Delete(slotKey("api", 0)) })
		sessions := g.sessions
		g.serve()
		w.eventually("the region connects again and again", func() bool {
			n := 0
			g.locked(func() { n = g.sessions })
			return n > sessions+2
		})
		if n := w.running(1)["n1"]; n != 2 {
			t.Errorf("%d instances run, 2 before the orders of a deposed server", n)
		}
		h := g.lastHello()
		if h.GetLeadershipTerm().GetNumber() != 2 || h.GetFederationId() != "fed" || h.GetFence() != 1 || h.GetFeatureLevel() != state.FeatureLevel || h.GetStoreRevision() == 0 || h.GetAppliedIndex() == 0 {
			t.Errorf("hello %v", h)
		}
		g.locked(func() { g.term = &nusav1.LeadershipTerm{Number: 3, Nonce: "n3"} })
		w.eventually("a later one is obeyed", func() bool { return len(w.allocs(1, false)) == 0 })
	})
}

// TestForeignFederationIsRefused: the global tier lost its store and begins with an empty
// one. The region works on its own until an operator lets it join the new federation.
func TestForeignFederationIsRefused(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		w.server(1)
		w.master(1)
		w.agent("n1", runs)
		g.offer(spec("api", 2), 0, 2)
		w.submit(1, spec("own", 1))
		w.eventually("all run", func() bool { return w.running(1)["n1"] == 3 })
		const empty, third = "EMPTY2EMPTY2EMPTY2EMPTY2EM", "THIRD2THIRD2THIRD2THIRD2TH"
		rebind := func(id string) error {
			ctx, cancel := callCtx()
			defer cancel()
			_, err := nusav1.NewRegionsClient(w.conn(1)).Rebind(ctx, &nusav1.RebindRegionRequest{FederationId: id})
			return err
		}
		if err := rebind(empty); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("rebind of a connected region: %v", err)
		}
		g.srv.Stop()
		g.update(func() {
			g.federation = empty
			g.revision = 0
			g.orders = link.NewOutbox[*nusav1.SlotOrder]("empty", 64)
		})
		g.serve()
		w.eventually("the region says what is wrong", func() bool {
			alarms := w.info(1).GetAlarms()
			return len(alarms) == 1 && strings.Contains(alarms[0], "belongs to federation fed, the global server to "+empty) &&
				strings.Contains(alarms[0], "nusa region rebind --federation "+empty)
		})
		time.Sleep(time.Minute)
		if n := w.running(1)["n1"]; n != 3 {
			t.Fatalf("%d run beside an empty federation, want 3", n)
		}
		if own := w.region(1); own.GetState() != nusav1.RegionState_REGION_STATE_ISLAND || own.GetFailoverMessage() == "" {
			t.Errorf("the region: %v", own)
		}
		for _, id := range []string{"", "xyz", strings.Repeat("X", 200)} {
			if err := rebind(id); status.Code(err) != codes.InvalidArgument {
				t.Errorf("rebind to %q: %v", id, err)
			}
		}
		for _, id := range []string{third, empty} {
			if err := rebind(id); err != nil {
				t.Errorf("rebind to %q: %v", id, err)
			}
		}
		w.eventually("only the region's own job runs", func() bool { return w.running(1)["n1"] == 1 && len(w.allocs(1, false)) == 1 })
		g.offer(spec("new", 1), 0, 1)
		w.eventually("the other federation's job runs", func() bool { return w.running(1)["n1"] == 2 })
		if err := rebind(empty); err != nil {
			t.Errorf("rebind to the federation of the region: %v", err)
		}
		if err := rebind(third); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("rebind of a connected region to a third federation: %v", err)
		}
		if info := w.info(1); info.GetFederationId() != empty || len(info.GetAlarms()) != 0 {
			t.Errorf("info %v", info)
		}
	})
}

// TestBoundWorkNeedsAgentsThatEndIt: an agent of an earlier version does not know the
// region's lease, so it gets no instance that this lease binds. After its upgrade it gets
// the instance, with the binding in the order.
func TestBoundWorkNeedsAgentsThatEndIt(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		w.server(1)
		w.master(1)
		a := w.agent("n1", runs)
		stops := spec("stops", 1)
		stops.Groups["web"].Disconnect = &nusav1.Disconnect{Region: &nusav1.DisconnectLevel{Running: nusav1.Running_RUNNING_STOP}}
		w.eventually("the node is ready", func() bool { return w.node(1, "n1").GetState() == nusav1.NodeState_NODE_STATE_READY })
		g.offer(stops, 0, 1)
		w.eventually("the slot is returned", func() bool {
			found := false
			g.locked(func() {
				for _, x := range g.answers {
					found = found || x.GetState() == nusav1.SlotState_SLOT_STATE_RETURNED && strings.Contains(x.GetMessage(), "too old")
				}
			})
			return found
		})
		a.stop()
		a.level = 1
		a.start()
		w.eventually("the agent is registered again", func() bool {
			n := 0
			a.locked(func(a *fakeAgent) { n = a.welcomes })
			return n == 2
		})
		g.offer(stops, 0, 1)
		w.eventually("it runs", func() bool { return w.running(1)["n1"] == 1 })
		a.locked(func(a *fakeAgent) {
			for _, o := range a.orders {
				if o.GetBinding() != nusav1.LeaseBinding_LEASE_BINDING_REGION {
					t.Errorf("the order says %v", o.GetBinding())
				}
			}
		})
		w.eventually("the region answers that its lease binds it", func() bool {
			found := false
			g.locked(func() {
				for _, x := range g.answers {
					found = found || x.GetState() == nusav1.SlotState_SLOT_STATE_ACCEPTED && x.GetBound()
				}
			})
			return found
		})
	})
}

// region returns the region as server i describes it.
func (w *world) region(i int) *nusav1.Region {
	ctx, cancel := callCtx()
	defer cancel()
	r, err := nusav1.NewRegionsClient(w.conn(i)).Get(ctx, &nusav1.GetRegionRequest{Name: regionName})
	if err != nil {
		w.t.Error(err)
	}
	return r
}
