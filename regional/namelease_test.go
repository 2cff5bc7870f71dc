package regional_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestNameBelongsToOneAgent: two agents with different data directories have the same name.
// While the first is not lost, the second is refused, even by the next master. The refusal
// names the first agent. The first may connect from another address at any time. When the
// first is lost, the second is accepted. After that the first is refused, unless it may run
// instances: see TestLostNodeWithInstancesKeepsItsName.
func TestNameBelongsToOneAgent(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		w.server(1)
		w.server(2, 1)
		w.server(3, 1)
		master := w.master(1, 2, 3)
		first := w.agent("n1", runs)
		w.eventually("the first is ready", func() bool {
			return w.node(master, "n1").GetState() == nusav1.NodeState_NODE_STATE_READY
		})
		second := w.agent("n1", runs)
		second.stop()
		second.id, second.refused = "other", ""
		refused := func() (message string) {
			second.locked(func(a *fakeAgent) {
				message = a.refused
				if a.welcomes > 0 {
					t.Error("the second is accepted")
				}
				a.refused = ""
			})
			return message
		}
		second.welcomes = 0
		second.start()
		w.eventually("the second is refused", func() bool {
			m := refused()
			return strings.Contains(m, "the name n1 is taken by another agent, node node-n1 at "+first.ip) && strings.Contains(m, "give this agent another --name")
		})

		// The first agent connects again at once, from another address.
		first.stop()
		before := 0
		first.locked(func(a *fakeAgent) { before, a.ip = a.welcomes, "10.1.1.77" })
		first.start()
		w.eventually("the first is accepted again", func() (ok bool) {
			first.locked(func(a *fakeAgent) { ok = a.welcomes > before })
			return ok
		})
		w.kill(master)
		master = w.master(without([]int{1, 2, 3}, master)...)
		refused()
		time.Sleep(3 * nodeLease)
		if refused() == "" {
			t.Error("the next master does not refuse the second")
		}

		first.stop()
		time.Sleep(nodeLease / 2)
		if refused() == "" {
			t.Error("the second is accepted while the first is not lost")
		}
		w.eventually("the second is accepted", func() (ok bool) {
			second.locked(func(a *fakeAgent) { ok = a.welcomes > 0 })
			return ok
		})
		first.locked(func(a *fakeAgent) { a.refused = "" })
		first.start()
		w.eventually("the first is refused", func() (ok bool) {
			first.locked(func(a *fakeAgent) { ok = strings.Contains(a.refused, "taken by another agent, node other") })
			return ok
		})
	})
}

// TestLostNodeWithInstancesKeepsItsName: a node is lost while it runs an instance, and
// another node gets its name. When the lost node returns, it is accepted although the other
// node is ready, and it gets the order to stop the instance. After its last instance has
// ended, it is refused. The same is true when the node and its allocations were forgotten
// meanwhile, as happens after 72 hours.
func TestLostNodeWithInstancesKeepsItsName(t *testing.T) {
	for _, forgotten := range []bool{false, true} {
		t.Run(fmt.Sprint("forgotten ", forgotten), func(t *testing.T) { testLostNodeWithInstances(t, forgotten) })
	}
}

func testLostNodeWithInstances(t *testing.T, forgotten bool) {
	oneNode(t, func(t *testing.T, w *world, jobs nusav1.JobsClient, ctx context.Context) {
		first := w.agents[0]
		keep := spec("web", 1)
		keep.Groups["web"].Disconnect = &nusav1.Disconnect{Node: &nusav1.DisconnectLevel{
			After: durationpb.New(time.Second), Running: nusav1.Running_RUNNING_KEEP, Replace: proto.Bool(true)}}
		w.submit(1, keep)
		w.eventually("it runs", func() bool { return w.running(1)["n1"] == 1 })
		first.stop()
		w.eventually("the first is lost", func() bool { return w.node(1, "n1").GetState() == nusav1.NodeState_NODE_STATE_LOST })
		second := w.agent("n1", runs)
		second.stop()
		second.id = "other"
		second.start()
		on := func(a *fakeAgent, desired nusav1.AllocDesired) (n int) {
			a.locked(func(a *fakeAgent) {
				for _, o := range a.orders {
					if o.GetAllocation().GetDesired() == desired {
						n++
					}
				}
			})
			return n
		}
		w.eventually("it runs on the second", func() bool { return on(second, nusav1.AllocDesired_ALLOC_DESIRED_RUN) == 1 })
		if _, err := jobs.Stop(ctx, &nusav1.StopJobRequest{Job: ref("web")}); err != nil {
			t.Fatal(err)
		}
		w.eventually("the second stops it", func() bool { return on(second, nusav1.AllocDesired_ALLOC_DESIRED_RUN) == 0 })
		if forgotten {
			if _, err := nusav1.NewNodesClient(w.conn(1)).Remove(ctx, &nusav1.RemoveNodeRequest{Id: first.id}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		before := 0
		first.locked(func(a *fakeAgent) { before, a.refused = a.welcomes, "" })
		first.start()
		w.eventually("the first is accepted and ordered to stop", func() (ok bool) {
			first.locked(func(a *fakeAgent) { ok = a.welcomes > before })
			return ok && on(first, nusav1.AllocDesired_ALLOC_DESIRED_RUN) == 0
		})
		time.Sleep(3 * nodeLease) // the report is committed meanwhile
		first.stop()
		time.Sleep(3 * nodeLease) // the node is lost meanwhile
		first.start()
		w.eventually("the first is refused", func() (ok bool) {
			first.locked(func(a *fakeAgent) { ok = strings.Contains(a.refused, "taken by another agent, node other") })
			return ok
		})
	})
}
