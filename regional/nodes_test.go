package regional_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestSilentNodeIsShownBeforeItIsLost: a node whose agent is gone stays ready until its
// lease has ended. Until then, the node and its allocations are shown as silent. After that
// the node is lost and can be removed.
func TestSilentNodeIsShownBeforeItIsLost(t *testing.T) {
	oneNode(t, func(t *testing.T, w *world, _ nusav1.JobsClient, ctx context.Context) {
		nodes, allocs := nusav1.NewNodesClient(w.conn(1)), nusav1.NewAllocationsClient(w.conn(1))
		w.submit(1, spec("web", 1))
		w.eventually("it runs", func() bool { return w.running(1)["n1"] == 1 })
		id := w.allocs(1, false)[0].GetId()
		time.Sleep(time.Minute)
		if n := w.node(1, "n1"); n.GetSilent() != nil {
			t.Errorf("a connected node is silent for %v", n.GetSilent().AsDuration())
		}
		if _, err := nodes.Remove(ctx, &nusav1.RemoveNodeRequest{Id: "n1"}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "drain it") {
			t.Errorf("a ready node is removed: %v", err)
		}

		w.agents[0].stop()
		gone := time.Now()
		time.Sleep(2 * time.Second) // the lease is 3 s
		n, err := nodes.Get(ctx, &nusav1.GetNodeRequest{Id: "n1"})
		if silent := n.GetSilent().AsDuration(); err != nil || n.GetState() != nusav1.NodeState_NODE_STATE_READY || silent < 2*time.Second || silent > 3*time.Second {
			t.Errorf("2 s after its agent ended: %v, silent %v, %v", n.GetState(), silent, err)
		}
		a, err := allocs.Get(ctx, &nusav1.GetAllocationRequest{Id: id})
		if err != nil || a.GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING || a.GetNodeSilent().AsDuration() < 2*time.Second {
			t.Errorf("its allocation: %v, silent %v, %v", a.GetState(), a.GetNodeSilent().AsDuration(), err)
		}
		if list := w.allocs(1, false); len(list) != 1 || list[0].GetNodeSilent() == nil {
			t.Errorf("list of allocations: %v", list)
		}
		if _, err := nodes.Remove(ctx, &nusav1.RemoveNodeRequest{Id: "n1"}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "it is lost after 3s of silence") {
			t.Errorf("a silent node is removed: %v", err)
		}

		w.eventually("it is lost", func() bool { return w.node(1, "n1").GetState() == nusav1.NodeState_NODE_STATE_LOST })
		time.Sleep(time.Minute)
		silent, since := w.node(1, "n1").GetSilent().AsDuration(), time.Since(gone)
		if silent < since || silent > since+time.Second {
			t.Errorf("lost: silent %v, its agent ended %v ago", silent, since)
		}
		removed, err := nodes.Remove(ctx, &nusav1.RemoveNodeRequest{Id: "n1"})
		if err != nil || removed.GetNode().GetName() != "n1" {
			t.Fatalf("remove: %v, %v", removed, err)
		}
		if _, err := nodes.Get(ctx, &nusav1.GetNodeRequest{Id: "n1"}); status.Code(err) != codes.NotFound {
			t.Errorf("the removed node: %v", err)
		}
		if _, err := nodes.Remove(ctx, &nusav1.RemoveNodeRequest{Id: "n1"}); status.Code(err) != codes.NotFound {
			t.Errorf("removed twice: %v", err)
		}
	})
}

// TestNodeIsRemovedWhenItsLeaseIsOver: an operator cannot remove a lost node while it may
// still run an instance that a lease binds, because that instance would be replaced at
// once.
func TestNodeIsRemovedWhenItsLeaseIsOver(t *testing.T) {
	oneNode(t, func(t *testing.T, w *world, _ nusav1.JobsClient, ctx context.Context) {
		nodes := nusav1.NewNodesClient(w.conn(1))
		s := spec("web", 1)
		for _, g := range s.Groups {
			g.Disconnect = &nusav1.Disconnect{Node: &nusav1.DisconnectLevel{Running: nusav1.Running_RUNNING_STOP}}
		}
		w.submit(1, s)
		w.eventually("it runs", func() bool { return w.running(1)["n1"] == 1 })
		w.agents[0].stop()
		w.eventually("it is lost", func() bool { return w.node(1, "n1").GetState() == nusav1.NodeState_NODE_STATE_LOST })
		if _, err := nodes.Remove(ctx, &nusav1.RemoveNodeRequest{Id: "n1"}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "must not run twice") {
			t.Errorf("removed while its lease may last: %v", err)
		}
		time.Sleep(15 * time.Second) // the lease is 3 s, the kill timeout 10 s
		if _, err := nodes.Remove(ctx, &nusav1.RemoveNodeRequest{Id: "n1"}); err != nil {
			t.Errorf("its lease is over: %v", err)
		}
	})
}

// TestNodeIsSilentSinceTheElection: a new master shows a node that has not connected yet as
// silent, although the committed status of the node is ready.
func TestNodeIsSilentSinceTheElection(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		for i := range 3 {
			w.server(i+1, 1)
		}
		first := w.master(1, 2, 3)
		w.agent("n1", runs)
		w.eventually("the node is ready", func() bool { return w.node(first, "n1").GetState() == nusav1.NodeState_NODE_STATE_READY })
		w.agents[0].stop()
		w.stop(first)
		next := w.master(slices.DeleteFunc([]int{1, 2, 3}, func(i int) bool { return i == first })...)
		if n := w.node(next, "n1"); n.GetState() != nusav1.NodeState_NODE_STATE_READY || n.GetSilent() == nil {
			t.Errorf("under the next master it is %v, silent %v", n.GetState(), n.GetSilent())
		}
	})
}

// TestSilentNodeIsReadyBeforeItsNextLease: a node is silent on its open stream until it is
// lost. Its return is committed before it gets a lease again. A replacement after that
// commit is refused. An instance that was replaced before it has its order to stop.
func TestSilentNodeIsReadyBeforeItsNextLease(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.server(1)
		w.master(1)
		n1 := w.agent("n1", runs)
		w.eventually("it has a lease", func() bool { ok := false; n1.locked(func(a *fakeAgent) { ok = a.grants > 0 }); return ok })
		for range 3 {
			n1.locked(func(a *fakeAgent) { a.silent = true })
			w.eventually("it is lost", func() bool { return w.node(1, "n1").GetState() == nusav1.NodeState_NODE_STATE_LOST })
			granted := make(chan nusav1.NodeState, 100)
			n1.locked(func(a *fakeAgent) {
				a.silent = false
				a.onGrant = func() { granted <- w.node(1, "n1").GetState() }
			})
			if st := <-granted; st != nusav1.NodeState_NODE_STATE_READY {
				t.Errorf("granted while it is %v", st)
			}
			n1.locked(func(a *fakeAgent) {
				a.onGrant = nil
				if a.welcomes != 1 {
					t.Errorf("%d sessions", a.welcomes)
				}
			})
		}
	})
}

// TestEndOfALeaseIsNoFailure: the tasks of an instance wait on their node for a lease. The
// instance counts as starting, with that reason. No attempt is used, and nothing replaces
// the instance. It runs again on its node when the lease is back.
func TestEndOfALeaseIsNoFailure(t *testing.T) {
	for _, reason := range []nusav1.Reason{nusav1.Reason_REASON_LEASE_EXPIRED, nusav1.Reason_REASON_REGION_LEASE} {
		oneNode(t, func(t *testing.T, w *world, jobs nusav1.JobsClient, ctx context.Context) {
			w.submit(1, spec("web", 2))
			w.eventually("it runs", func() bool { return w.running(1)["n1"] == 2 })
			id := w.allocs(1, false)[0].GetId()
			report := func(up bool) {
				w.agents[0].locked(func(a *fakeAgent) {
					r := runs(a.orders[id])
					task := &nusav1.TaskState{State: nusav1.AllocState_ALLOC_STATE_RUNNING, Run: 2}
					if !up {
						r.Reason, r.Message = reason, "no lease"
						task = &nusav1.TaskState{State: nusav1.AllocState_ALLOC_STATE_STOPPED, Reason: reason, Run: 1}
					}
					r.Tasks = map[string]*nusav1.TaskState{"main": task}
					a.reports.Put(id, r)
				})
				w.agents[0].wakeSender()
			}
			group := func() *nusav1.GroupStatus {
				st, err := jobs.Get(ctx, &nusav1.GetJobRequest{Job: ref("web")})
				if err != nil {
					t.Fatal(err)
				}
				return st.GetStatus().GetGroups()["web"]
			}
			report(false)
			w.eventually("it waits", func() bool { return group().GetCounts().GetStarting() == 1 })
			time.Sleep(time.Minute)
			g := group()
			if g.GetCounts().GetRunning() != 1 || len(g.GetPending()) != 1 || g.GetPending()[0].GetReason() != reason || g.GetPending()[0].GetMessage() != "no lease" {
				t.Errorf("%v: shown as %v", reason, g)
			}
			report(true)
			w.eventually("it runs again", func() bool { return group().GetCounts().GetRunning() == 2 })
			if all := w.allocs(1, true); len(all) != 2 {
				t.Errorf("%v: allocations %v", reason, all)
			}
		})
	}
}

// TestDrainCountsInstancesThatCannotMove: the response to a drain counts the instances that are
// still on the node, and says why they cannot move.
func TestDrainCountsInstancesThatCannotMove(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.server(1)
		w.master(1)
		w.agent("n1", runs)
		w.submit(1, spec("web", 8)) // the job takes all of the node's cores
		w.eventually("it runs", func() bool { return w.running(1)["n1"] == 8 })
		w.agent("n2", runs)
		w.eventually("n2 is ready", func() bool { return w.node(1, "n2").GetState() == nusav1.NodeState_NODE_STATE_READY })
		w.submit(1, spec("other", 6))
		w.eventually("n2 has room for two more", func() bool { return w.running(1)["n2"] == 6 })
		ctx, cancel := callCtx()
		defer cancel()
		n, err := nusav1.NewNodesClient(w.conn(1)).Drain(ctx, &nusav1.DrainNodeRequest{Id: "n1", Drain: true})
		if err != nil || n.GetAllocations() != 8 || len(n.GetLeaving()) != 1 {
			t.Fatalf("drain: %v, %v", n, err)
		}
		g := n.GetLeaving()[0]
		if g.GetJob() != "web@"+regionName || g.GetGroup() != "web" || g.GetCount() != 8 || g.GetFits() != 2 ||
			g.GetReason() != nusav1.Reason_REASON_INSUFFICIENT_CPU || !strings.Contains(g.GetMessage(), "n2") {
			t.Errorf("%v", g)
		}
		w.eventually("n2 is full", func() bool { return w.running(1)["n2"] == 8 })
		time.Sleep(10 * time.Second)
		n = w.node(1, "n1")
		if n.GetAllocations() != 5 || len(n.GetLeaving()) != 1 || n.GetLeaving()[0].GetFits() != 0 {
			t.Errorf("after the drain %v", n) // three instances may move at once; the third finds no room, and the others wait for it
		}
		ctx, cancel = callCtx()
		defer cancel()
		for _, wrong := range []*nusav1.DrainNodeRequest{
			{Id: "n1", IgnoreSystem: true}, {Id: "n1", Drain: true, Deadline: durationpb.New(0)}, {Id: "n1", Drain: true, Deadline: durationpb.New(721 * time.Hour)},
		} {
			if _, err := nusav1.NewNodesClient(w.conn(1)).Drain(ctx, wrong); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%v: %v", wrong, err)
			}
		}
		n, err = nusav1.NewNodesClient(w.conn(1)).Drain(ctx, &nusav1.DrainNodeRequest{Id: "n1", Drain: true, Deadline: durationpb.New(time.Minute), IgnoreSystem: true})
		if d := n.GetDrain(); err != nil || d.GetLeft() != 5 || !d.GetIgnoreSystem() || d.GetDeadline().AsDuration() != time.Minute {
			t.Errorf("drain with a deadline: %v, %v", n.GetDrain(), err)
		}
		time.Sleep(59 * time.Second)
		if n := w.node(1, "n1"); n.GetDrain().GetLeft() != 5 || n.GetDrain().GetDeadline().AsDuration() > time.Second {
			t.Errorf("before the deadline: %v", n.GetDrain())
		}
		time.Sleep(2 * time.Second)
		if n := w.node(1, "n1"); n.GetDrain().GetLeft() != 0 || n.GetAllocations() != 0 || n.GetDrain().GetDeadline().AsDuration() != 0 {
			t.Errorf("after the deadline: %v", n)
		}
	})
}

// TestLostNodeIsForgottenAfter72Hours: a disconnected instance waits for its node for 72
// hours. After that the node is forgotten and the instance is replaced. A node that returns
// later is a new node.
func TestLostNodeIsForgottenAfter72Hours(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.server(1)
		w.master(1)
		n1 := w.agent("n1", runs)
		w.submit(1, spec("web", 1))
		w.eventually("it runs", func() bool { return w.running(1)["n1"] == 1 })
		n1.stop()
		time.Sleep(71 * time.Hour)
		if n := w.node(1, "n1"); n.GetState() != nusav1.NodeState_NODE_STATE_LOST || n.GetAllocations() != 1 {
			t.Errorf("after 71 hours: %v", n)
		}
		time.Sleep(61 * time.Minute)
		if n := w.node(1, "n1"); n.GetId() != "" {
			t.Errorf("after more than 72 hours: %v", n)
		}
		w.agent("n2", runs)
		w.eventually("it is replaced", func() bool { return w.running(1)["n2"] == 1 })
		n1.start()
		w.eventually("the node is ready again", func() bool { return w.node(1, "n1").GetState() == nusav1.NodeState_NODE_STATE_READY })
		w.eventually("the agent has no orders", func() (ok bool) {
			n1.locked(func(a *fakeAgent) { ok = len(a.orders) == 0 })
			return ok
		})
	})
}
