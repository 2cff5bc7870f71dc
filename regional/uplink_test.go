package regional_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/sets"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestOfferedSlotRunsAndIsReported(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		w.server(1)
		w.master(1)
		w.agent("n1", runs)
		w.eventually("a report counts the node", func() bool { return g.lastReport().GetNodesReady() == 1 })
		began := time.Now()
		g.offer(spec("api", 3), 0, 3)
		w.eventually("the slot is accepted", func() bool { return slices.Equal(g.slots(), []string{"api[0-2] accepted"}) })
		w.eventually("the summary counts running instances", func() bool { return g.count("api").GetRunning() == 3 })
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("from offer to a running summary took %v", took)
		}
		w.eventually("the report includes the slot", func() bool {
			r := g.lastReport()
			return r.GetSlotsRevision() >= 1 && r.GetAllocated().GetCpuMilli() == 1500 && r.GetFree().GetCpuMilli() == 2500
		})
		g.locked(func() {
			g.shapes = []*nusav1.ShapeSubscription{{Ask: 7, Resources: &nusav1.Resources{CpuMilli: 1000, MemoryBytes: 1 << 30}}}
		})
		g.update(func() {})
		w.eventually("the subscribed ask is counted", func() bool {
			fits := g.lastReport().GetShape().GetFits()
			return len(fits) == 1 && fits[0].GetAsk() == 7 && fits[0].GetCount() == 2
		})
		w.eventually("leases are requested", func() bool {
			n := 0
			g.locked(func() { n = g.leases })
			return n > 3
		})
		g.setDesired("api", 0, nusav1.SlotDesired_SLOT_DESIRED_STOP)
		w.eventually("the stopped slot is gone", func() bool { return len(g.slots()) == 0 })
		if n := len(w.allocs(1, false)); n != 0 {
			t.Errorf("%d allocations live after the slot is gone", n)
		}
		// Ended allocations stay for a while, but the region no longer lists the job.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		jobs := nusav1.NewJobsClient(w.conn(1))
		w.eventually("the list is empty", func() bool {
			list, err := jobs.List(ctx, &nusav1.ListJobsRequest{})
			return err == nil && len(list.GetJobs()) == 0
		})
		j, err := jobs.Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "api"}})
		if err != nil || j.GetSpec().GetName() != "api" || j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_STOPPED || len(w.allocs(1, true)) == 0 {
			t.Errorf("the ended job: %v, %v", j, err)
		}
		w.stop(1)
		w.eventually("the global tier got a goodbye", func() bool {
			n := 0
			g.locked(func() { n = g.goodbyes })
			return n == 1
		})
	})
}

func TestUnplaceableInstancesAreReturned(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		w.server(1)
		w.master(1)
		w.agent("n1", runs)
		w.eventually("the node is ready", func() bool { return g.lastReport().GetNodesReady() == 1 })
		g.offer(spec("big", 10), 0, 10) // 8 of 500m fit 4 cores
		w.eventually("two are returned", func() bool { return slices.Equal(g.slots(), []string{"big[0-7] accepted"}) })
		g.locked(func() {
			for _, a := range g.answers {
				if a.GetState() == nusav1.SlotState_SLOT_STATE_ACCEPTED {
					continue
				}
				if a.GetFrom() != 8 || a.GetTo() != 10 || len(a.GetCounts()) == 0 || a.GetReason() != nusav1.Reason_REASON_INSUFFICIENT_CPU {
					t.Errorf("answer %v", a)
				}
			}
		})
		w.eventually("eight run", func() bool { return w.running(1)["n1"] == 8 })
	})
}

func TestRegionWorksWithoutTheGlobalTier(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		w.server(1)
		w.master(1)
		w.agent("n1", runs)
		g.offer(spec("api", 2), 0, 2)
		w.eventually("the slot is accepted", func() bool { return slices.Equal(g.slots(), []string{"api[0-1] accepted"}) })
		w.eventually("it runs", func() bool { return w.running(1)["n1"] == 2 })
		g.srv.Stop()

		w.submit(1, spec("own", 1))
		w.eventually("the region runs its own job", func() bool { return w.running(1)["n1"] == 3 })
		time.Sleep(time.Minute)
		if n := w.running(1)["n1"]; n != 3 {
			t.Errorf("%d run without the global tier, want 3", n)
		}
		g.setDesired("api", 0, nusav1.SlotDesired_SLOT_DESIRED_STOP)
		g.serve()
		defer g.stop()
		w.eventually("the slot is stopped once the global tier is back", func() bool { return len(g.slots()) == 0 })
		w.eventually("its own job still runs and is reported", func() bool {
			return w.running(1)["n1"] == 1 && g.count("own@"+regionName).GetRunning() == 1
		})
	})
}

func TestGlobalCallsThroughTheTunnel(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		w.server(1)
		w.master(1)
		w.agent("n1", runs)
		g.offer(spec("api", 1), 0, 1)
		w.eventually("it runs", func() bool { return w.running(1)["n1"] == 1 })
		conn := g.region()
		defer conn.Close()
		ctx, cancel := callCtx()
		defer cancel()
		nodes, err := nusav1.NewNodesClient(conn).List(ctx, &nusav1.ListNodesRequest{})
		if err != nil || len(nodes.GetNodes()) != 1 {
			t.Fatalf("nodes through the tunnel: %v, %v", nodes, err)
		}
		why, err := nusav1.NewJobsClient(conn).Explain(ctx, &nusav1.ExplainRequest{Job: &nusav1.JobRef{Name: "api"}})
		if err != nil || len(why.GetGroups()) != 1 || len(why.GetGroups()[0].GetNodes()) != 1 || why.GetGroups()[0].GetNodes()[0].GetTaken() != 1 {
			t.Errorf("explain through the tunnel: %v, %v", why, err)
		}
	})
}

// TestStreamCutAtEachMessage: one message is lost with its stream. In the end the region
// runs each instance of its slots once, and all its answers have arrived.
func TestStreamCutAtEachMessage(t *testing.T) {
	for _, direction := range []string{"up", "down"} {
		for at := 1; at <= 12; at++ {
			t.Run(fmt.Sprintf("%s-%d", direction, at), func(t *testing.T) {
				bubble(t, 1, func(t *testing.T, w *world) {
					g := w.startGlobal()
					defer g.stop()
					var mu sync.Mutex
					seen := 0
					g.cut = func(d string) bool {
						mu.Lock()
						defer mu.Unlock()
						if d == direction {
							seen++
						}
						return d == direction && seen == at
					}
					w.server(1)
					w.master(1)
					w.agent("n1", runs)
					w.eventually("the node is ready", func() bool { return w.node(1, "n1").GetState() == nusav1.NodeState_NODE_STATE_READY })
					g.offer(spec("a", 2), 0, 2)
					g.offer(spec("b", 1), 0, 1)
					g.offer(spec("big", 10), 0, 10)
					w.eventually("every slot is answered", func() bool {
						s := g.slots()
						return len(s) > 0 && !strings.Contains(strings.Join(s, " "), "offered") && len(w.allocs(1, false)) == 8
					})
					w.eventually("b is accepted and running", func() bool { return g.count("b").GetRunning() == 1 })
					g.setDesired("b", 0, nusav1.SlotDesired_SLOT_DESIRED_REVOKE)
					g.setDesired("a", 0, nusav1.SlotDesired_SLOT_DESIRED_STOP)
					w.eventually("the slots of a and b are gone", func() bool {
						s := g.slots()
						return len(s) == 1 && strings.HasPrefix(s[0], "big[0-")
					})
					// The number of instances of big that stay depends on whether the other
					// jobs ended within the grace. Each instance that stays runs once.
					w.eventually("only big runs, once each", func() bool {
						indices := map[int32]int{}
						for _, a := range w.allocs(1, false) {
							if a.GetJob() != "big" {
								return false
							}
							indices[a.GetIndex()]++
						}
						for i := range int32(len(indices)) {
							if indices[i] != 1 {
								return false
							}
						}
						return slices.Equal(g.slots(), []string{fmt.Sprintf("big[0-%d] accepted", len(indices)-1)}) &&
							g.count("big").GetRunning() == int32(len(indices))
					})
				})
			})
		}
	}
}

// TestNewJobReplacesAPurgedOneOfItsName: a job was purged and another job was submitted
// under its name. Both have version 1.
func TestNewJobReplacesAPurgedOneOfItsName(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		w.server(1)
		w.master(1)
		w.agent("n1", runs)
		g.offer(spec("api", 3), 0, 3)
		w.eventually("three run", func() bool { return w.running(1)["n1"] == 3 })
		other := spec("api", 3)
		other.Groups["web"].Tasks["main"].Resources.CpuMilli = 600
		g.offer(other, 0, 3)
		w.eventually("the other job runs instead", func() bool {
			n := 0
			for _, a := range w.allocs(1, false) {
				if a.GetResources().GetCpuMilli() == 600 && a.GetState() == nusav1.AllocState_ALLOC_STATE_RUNNING {
					n++
				}
			}
			return n == 3 && len(w.allocs(1, false)) == 3
		})
	})
}

func TestUndecodableOrdersAreRejected(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		w.server(1)
		w.master(1)
		w.agent("n1", runs)
		g.update(func() {
			g.revision++
			g.orders.Put(slotKey("bad", 0), &nusav1.SlotOrder{Revision: g.revision, Spec: []byte{0xff}, Slot: &nusav1.Slot{
				Namespace: "default", Job: "bad", Group: "web", From: 0, To: 2, Region: regionName,
				State: nusav1.SlotState_SLOT_STATE_OFFERED, Desired: nusav1.SlotDesired_SLOT_DESIRED_RUN, Generation: g.revision, JobVersion: 1}})
		})
		g.offer(spec("good", 2), 0, 2)
		w.eventually("the bad one is rejected, the good one accepted", func() bool {
			return slices.Equal(g.slots(), []string{"good[0-1] accepted"})
		})
		g.locked(func() {
			for _, a := range g.answers {
				if a.GetJob() == "bad" && (a.GetState() != nusav1.SlotState_SLOT_STATE_REJECTED || a.GetReason() != nusav1.Reason_REASON_UNSUPPORTED || a.GetMessage() == "") {
					t.Errorf("answer %v", a)
				}
			}
			if g.sessions != 1 {
				t.Errorf("%d sessions: the bad order has ended one", g.sessions)
			}
		})
	})
}

// TestRegionKeepsOrdersOverAnElection: the hello says which orders the region has, once it has got all of them. If
// the next active server has the same, it sends only their position, and the region goes on from there.
func TestRegionKeepsOrdersOverAnElection(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		w.server(1)
		w.master(1)
		w.agent("n1", runs)
		g.offer(spec("api", 3), 0, 3)
		w.eventually("the slot is accepted", func() bool { return slices.Equal(g.slots(), []string{"api[0-2] accepted"}) })
		again := func() (hello *nusav1.RegionHello) {
			g.srv.Stop()
			before := 0
			g.locked(func() { before = g.sessions })
			g.serve()
			w.eventually("another session begins", func() bool {
				g.locked(func() {
					if g.sessions > before {
						hello = g.hellos[before]
					}
				})
				return hello != nil
			})
			return hello
		}
		time.Sleep(time.Second)
		want := uint64(0)
		g.locked(func() {
			want = sets.HashOrders(1, func(yield func(string, int64) bool) {
				for key, o := range g.orders.All() {
					if !yield(key, o.GetRevision()) {
						return
					}
				}
			})
		})
		if got := again().GetKnown().GetOrders(); got != want || g.hellos[0].GetKnown().GetOrders() != 0 {
			t.Errorf("the hellos have the hashes %d and %d, want 0 and %d", g.hellos[0].GetKnown().GetOrders(), got, want)
		}
		next := &nusav1.Position{Epoch: "next", Sequence: 1000}
		w.eventually("the position is stored", func() bool {
			g.update(func() {
				g.queued = append(g.queued, &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Orders{Orders: &nusav1.SlotOrders{Position: next}}})
			})
			return proto.Equal(again().GetOrders(), next)
		})
		if got := g.slots(); !slices.Equal(got, []string{"api[0-2] accepted"}) || g.count("api").GetRunning() != 3 {
			t.Errorf("slots %v, %v", got, g.count("api"))
		}
	})
}
