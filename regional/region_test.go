package regional_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestServersFormAGroupFromOneAddress(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		w.server(1)
		w.server(2, 1)
		w.server(3, 1)
		first := w.master(1, 2, 3)
		w.submit(first%3+1, spec("kept", 0)) // the job is submitted through a server that is not the master

		w.kill(first)
		rest := without([]int{1, 2, 3}, first)
		second := w.master(rest...)

		// A new server replaces the dead one without a change of any configuration. After
		// that, another of the first three servers dies.
		w.server(4, rest[0])
		w.eventually("the new server follows", func() bool { return w.info(4).GetLeaderAddress() == serverAddr(second) })
		time.Sleep(20 * time.Second)
		w.kill(second)
		last := append(without(rest, second), 4)
		third := w.master(last...)
		ctx, cancel := callCtx()
		defer cancel()
		job, err := nusav1.NewJobsClient(w.conn(third)).Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "kept", Region: regionName}})
		if err != nil || job.GetVersion() != 1 {
			t.Errorf("the job after two servers died: %v, %v", job, err)
		}
	})
}

// TestServerWithoutItsDiskReplacesItself: a server that lost its disk joins as a new member
// with the same name and address. After that another server dies, and the committed job
// still exists.
func TestServerWithoutItsDiskReplacesItself(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		for i := 1; i <= 3; i++ {
			w.server(i, 1, 2, 3)
		}
		first := w.master(1, 2, 3)
		lost := first%3 + 1
		w.kill(lost)
		w.submit(first, spec("kept", 0))
		w.server(lost, first) // the lost server had its data in memory
		w.eventually("it knows the master", func() bool { return w.info(lost).GetLeaderAddress() == serverAddr(first) })
		time.Sleep(20 * time.Second)
		w.kill(first)
		second := w.master(without([]int{1, 2, 3}, first)...)
		ctx, cancel := callCtx()
		defer cancel()
		r, err := nusav1.NewRegionsClient(w.conn(second)).Get(ctx, &nusav1.GetRegionRequest{Name: regionName})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(r.GetServers()); n != 3 {
			t.Errorf("%d servers are listed, want two living ones and the one killed last: %v", n, r.GetServers())
		}
		if _, err := nusav1.NewJobsClient(w.conn(second)).Get(ctx, &nusav1.GetJobRequest{Job: ref("kept")}); err != nil {
			t.Errorf("the acknowledged job: %v", err)
		}
	})
}

func without(all []int, one int) []int {
	var out []int
	for _, i := range all {
		if i != one {
			out = append(out, i)
		}
	}
	return out
}

func TestStoppedMasterHandsOver(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		for i := 1; i <= 3; i++ {
			w.server(i, 1, 2, 3)
		}
		first := w.master(1, 2, 3)
		w.stop(first)
		began := time.Now()
		w.master(without([]int{1, 2, 3}, first)...)
		if took := time.Since(began); took > time.Second {
			t.Errorf("another server was the master only after %v", took)
		}
	})
}

func TestSubmitWithoutQuorumIsUnavailable(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		w.server(1)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := nusav1.NewJobsClient(w.conn(1)).Submit(ctx, &nusav1.SubmitRequest{Spec: spec("x", 1)})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("submit without a quorum: %v", err)
		}
	})
}

func TestInstancesMoveFromALostNode(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.server(1)
		w.master(1)
		n1, n2 := w.agent("n1", runs), w.agent("n2", runs)
		w.eventually("both nodes are ready", func() bool {
			return w.node(1, "n1").GetState() == nusav1.NodeState_NODE_STATE_READY && w.node(1, "n2").GetState() == nusav1.NodeState_NODE_STATE_READY
		})
		began := time.Now()
		w.submit(1, spec("web", 4))
		w.eventually("four instances run", func() bool {
			r := w.running(1)
			return r["n1"]+r["n2"] == 4
		})
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("from submit to running took %v", took)
		}
		w.eventually("leases are granted", func() bool {
			ok := false
			n1.locked(func(a *fakeAgent) { ok = a.grants > 1 })
			return ok
		})

		// A silent node is lost after its lease. Its instances run on the other node
		// after the group's disconnect.node.after (30 s).
		n1.stop()
		w.eventually("the silent node is lost", func() bool { return w.node(1, "n1").GetState() == nusav1.NodeState_NODE_STATE_LOST })
		w.eventually("the other node runs all", func() bool { return w.running(1)["n2"] == 4 })

		// The node returns with another address. It counts as the same node, and its
		// replaced instances have orders to stop.
		n1.ip = "10.1.1.77"
		n1.start()
		w.eventually("the node is ready again", func() bool {
			n := w.node(1, "n1")
			return n.GetState() == nusav1.NodeState_NODE_STATE_READY && n.GetAddress() == "10.1.1.77"
		})
		w.eventually("four instances run, once each", func() bool {
			r := w.running(1)
			return r["n1"]+r["n2"] == 4 && len(w.allocs(1, false)) == 4
		})
		n1.locked(func(a *fakeAgent) {
			if a.welcomes != 2 {
				t.Errorf("node n1 had %d sessions, want 2", a.welcomes)
			}
		})
		n2.locked(func(a *fakeAgent) {
			if a.fullSets != 1 {
				t.Errorf("node n2 got %d full sets of orders, want 1", a.fullSets)
			}
		})
	})
}

func TestDeclinedInstanceGoesToTheNextNode(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.server(1)
		w.master(1)
		w.agent("declining", declines)
		w.eventually("the declining node is ready", func() bool { return w.node(1, "declining").GetState() == nusav1.NodeState_NODE_STATE_READY })
		w.submit(1, spec("web", 1))
		w.eventually("it declined", func() bool {
			for _, a := range w.allocs(1, true) {
				if a.GetReason() == nusav1.Reason_REASON_AGENT_BUSY || a.GetReason() == nusav1.Reason_REASON_DECLINED {
					return true
				}
			}
			return false
		})
		w.agent("accepting", runs)
		w.eventually("the next node runs it", func() bool { return w.running(1)["accepting"] == 1 })
	})
}

func TestDrainMovesInstances(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.server(1)
		w.master(1)
		w.agent("n1", runs)
		w.submit(1, spec("web", 2))
		w.eventually("it runs", func() bool { return w.running(1)["n1"] == 2 })
		w.agent("n2", runs)
		w.eventually("n2 is ready", func() bool { return w.node(1, "n2").GetState() == nusav1.NodeState_NODE_STATE_READY })
		ctx, cancel := callCtx()
		defer cancel()
		if _, err := nusav1.NewNodesClient(w.conn(1)).Drain(ctx, &nusav1.DrainNodeRequest{Id: "n1", Drain: true}); err != nil {
			t.Fatal(err)
		}
		w.eventually("the drained node's instances run on n2", func() bool { return w.running(1)["n2"] == 2 && w.running(1)["n1"] == 0 })
	})
}

// TestUnstartedInstanceOfALeavingNodeStaysEnded: an instance was placed on a node while its
// agent left. The instance then runs on another node. It does not start when the first node
// returns.
func TestUnstartedInstanceOfALeavingNodeStaysEnded(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.server(1)
		w.master(1)
		n1 := w.agent("n1", func(*nusav1.AllocOrder) *nusav1.AllocReport { return nil })
		w.submit(1, spec("web", 1))
		on := func(name string) (live, ended int) {
			for _, a := range w.allocs(1, true) {
				switch {
				case a.GetNodeName() != name:
				case a.GetState() <= nusav1.AllocState_ALLOC_STATE_RUNNING:
					live++
				default:
					ended++
				}
			}
			return live, ended
		}
		w.eventually("it is placed on n1", func() bool { live, _ := on("n1"); return live == 1 })
		n1.locked(func(a *fakeAgent) { a.leaves = true })
		n1.wakeSender()
		w.eventually("it has ended there", func() bool { live, ended := on("n1"); return live == 0 && ended == 1 })
		n1.stop()
		w.agent("n2", runs)
		w.eventually("it runs on n2", func() bool { return w.running(1)["n2"] == 1 })
		n1.locked(func(a *fakeAgent) { a.leaves = false })
		n1.start()
		w.eventually("n1 is ready again", func() bool { return w.node(1, "n1").GetState() == nusav1.NodeState_NODE_STATE_READY })
		time.Sleep(time.Minute)
		if live, _ := on("n1"); live != 0 || w.running(1)["n2"] != 1 {
			t.Errorf("%d on n1, %d on n2", live, w.running(1)["n2"])
		}
	})
}

func TestAgentsFollowToTheNextMaster(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		for i := 1; i <= 3; i++ {
			w.server(i, 1, 2, 3)
		}
		first := w.master(1, 2, 3)
		a := w.agent("n1", runs)
		w.submit(first, spec("web", 2))
		w.eventually("it runs", func() bool { return w.running(first)["n1"] == 2 })
		before := map[string]bool{}
		for _, x := range w.allocs(first, false) {
			before[x.GetId()] = true
		}
		w.kill(first)
		rest := without([]int{1, 2, 3}, first)
		second := w.master(rest...)
		w.eventually("the agent has a session with the new master", func() bool {
			ok := false
			a.locked(func(a *fakeAgent) { ok = a.welcomes >= 2 })
			return ok
		})
		time.Sleep(5 * nodeLease)
		if s := w.node(second, "n1").GetState(); s != nusav1.NodeState_NODE_STATE_READY {
			t.Errorf("the node is %v under the new master", s)
		}
		for _, x := range w.allocs(second, true) {
			if !before[x.GetId()] || x.GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING {
				t.Errorf("allocation %s is %v, existed before: %v", x.GetId(), x.GetState(), before[x.GetId()])
			}
		}
		// The new master places instances.
		w.submit(second, spec("more", 1))
		w.eventually("the new job runs", func() bool { return w.running(second)["n1"] == 3 })
	})
}

func TestAgentOfAnotherClusterIsRefused(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.server(1)
		w.master(1)
		a := w.agent("n1", runs)
		a.locked(func(a *fakeAgent) { a.cluster = "another" })
		a.stop()
		a.start()
		w.eventually("an agent of another cluster is refused", func() bool {
			ok := false
			a.locked(func(a *fakeAgent) { ok = a.refused != "" })
			return ok
		})
	})
}

// TestEndsAreAcknowledgedAtOnce: a report of a running allocation is acknowledged together
// with the next grant of a lease. A report of an ended allocation is acknowledged at once,
// because an agent that leaves waits for the acknowledgement.
func TestEndsAreAcknowledgedAtOnce(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.server(1)
		w.master(1)
		a := w.agent("n1", runs)
		w.eventually("the empty set is acknowledged", func() bool { return w.acked(a) })
		grant := func() {
			var before int
			a.locked(func(a *fakeAgent) { before = a.grants })
			w.eventually("a lease is granted", func() bool {
				granted := false
				a.locked(func(a *fakeAgent) { granted = a.grants > before })
				return granted
			})
		}
		grant() // the next grant is a third of the lease away, so none is sent while the job starts
		w.submit(1, spec("web", 1))
		w.eventually("it runs", func() bool { return w.running(1)["n1"] == 1 })
		if w.acked(a) {
			t.Error("the running allocation was acknowledged in a message of its own")
		}
		grant()
		synctest.Wait()
		if !w.acked(a) {
			t.Error("the running allocation was not acknowledged with the next grant")
		}

		ctx, cancel := callCtx()
		defer cancel()
		if _, err := nusav1.NewJobsClient(w.conn(1)).Stop(ctx, &nusav1.StopJobRequest{Job: ref("web")}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		w.eventually("the end is acknowledged", func() bool { return w.running(1)["n1"] == 0 && w.acked(a) })
		if took := time.Since(began); took > nodeLease/10 {
			t.Errorf("the end is acknowledged after %v", took)
		}
	})
}

// acked returns whether the master has acknowledged all reports of an agent.
func (w *world) acked(a *fakeAgent) bool {
	all := false
	a.locked(func(a *fakeAgent) {
		p := a.reports.Position()
		all = a.acked.GetEpoch() == p.Epoch && a.acked.GetSequence() == p.Sequence
	})
	return all
}
