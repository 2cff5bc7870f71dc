package regional_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// TestResourcesChangeInPlace: a version that changes only resources reaches running instances as an order
// about the same allocation, with the same epoch. Plan says so before. An instance whose agent refuses
// is replaced.
func TestResourcesChangeInPlace(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.server(1)
		w.master(1)
		limits := nusav1.LimitsState_LIMITS_STATE_APPLIED
		resizes := func(o *nusav1.AllocOrder) *nusav1.AllocReport {
			r := runs(o)
			if o.GetResized() {
				r.Limits = limits
			}
			return r
		}
		n1 := w.agent("n1", resizes, "live_resources")
		sized := func(cpu int64) *nusav1.JobSpec {
			s := spec("web", 2)
			s.Groups["web"].Update = &nusav1.Update{MaxParallel: 2}
			s.Groups["web"].Tasks["main"].Resources.CpuMilli = cpu
			return s
		}
		w.submit(1, sized(500))
		w.eventually("2 instances run", func() bool { return w.running(1)["n1"] == 2 })
		before := map[string]int64{}
		for _, a := range w.allocs(1, false) {
			before[a.GetId()] = a.GetEpoch()
		}
		ctx, cancel := callCtx()
		defer cancel()
		plan, err := nusav1.NewJobsClient(w.conn(1)).Plan(ctx, &nusav1.PlanRequest{Spec: sized(600)})
		if c := plan.GetChanges(); err != nil || len(c) != 1 || !c[0].GetInPlace() || c[0].GetInstances() != "0-1" {
			t.Errorf("plan: %v, %v", c, err)
		}
		w.submit(1, sized(600))
		inPlace := func(cpu, version int64) (n int) {
			for _, a := range w.allocs(1, false) {
				epoch, known := before[a.GetId()]
				if known && epoch == a.GetEpoch() && a.GetResources().GetCpuMilli() == cpu && a.GetJobVersion() == version {
					n++
				}
			}
			return n
		}
		w.eventually("both have the version", func() bool { return inPlace(600, 2) == 2 && w.running(1)["n1"] == 2 })
		n1.locked(func(a *fakeAgent) {
			for _, o := range a.orders {
				if !o.GetResized() || o.GetAllocation().GetResources().GetCpuMilli() != 600 {
					t.Errorf("the order is %v", o)
				}
			}
		})
		if plan, err = nusav1.NewJobsClient(w.conn(1)).Plan(ctx, &nusav1.PlanRequest{Spec: sized(4000)}); err != nil ||
			len(plan.GetChanges()) != 1 || plan.GetChanges()[0].GetInPlace() || plan.GetChanges()[0].GetMessage() != "node n1 has no room for cpu 600m to 4" {
			t.Errorf("plan: %v, %v", plan.GetChanges(), err)
		}
		limits = nusav1.LimitsState_LIMITS_STATE_REFUSED
		w.submit(1, sized(700))
		w.eventually("both are replaced", func() bool { return inPlace(700, 3) == 0 && w.running(1)["n1"] == 2 && len(w.allocs(1, false)) == 2 })
	})
}

// TestSummaryCountsChangesInPlace: the summary of a job of the federation counts the instances that got its version
// while they ran, and only those.
func TestSummaryCountsChangesInPlace(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		w.server(1)
		w.master(1)
		w.agent("n1", func(o *nusav1.AllocOrder) *nusav1.AllocReport {
			r := runs(o)
			if o.GetResized() {
				r.Limits = nusav1.LimitsState_LIMITS_STATE_APPLIED
				if o.GetAllocation().GetIndex() == 1 {
					r.Limits = nusav1.LimitsState_LIMITS_STATE_REFUSED
				}
			}
			return r
		}, "live_resources")
		summary := func() (out *nusav1.JobSummary) {
			g.locked(func() { out = g.summaries["default/web"] })
			return out
		}
		sized := spec("web", 2)
		g.offer(sized, 0, 2)
		w.eventually("2 instances run", func() bool { return g.count("web").GetRunning() == 2 })
		if n := len(summary().GetInPlace()); n > 0 {
			t.Errorf("the first version: %v", summary())
		}
		sized.Groups["web"].Tasks["main"].Resources.CpuMilli += 100
		g.update(func() {
			old, _ := g.orders.Get(slotKey("web", 0))
			next := proto.CloneOf(old)
			job.Default(sized)
			g.revision++
			next.Spec, _ = wire.Deterministic.Marshal(sized)
			next.Slot.JobVersion, next.Revision = 2, g.revision
			g.orders.Put(slotKey("web", 0), next)
		})
		w.eventually("one has changed in place, the other is replaced", func() bool {
			s := summary()
			return s.GetVersion() == 2 && s.GetInPlace()["web"] == 1 && s.GetGroups()["web"].GetRunning() == 2 && s.GetGroups()["web"].GetOutdated() == 0
		})
	})
}
