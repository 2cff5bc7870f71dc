package regional_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestExplainHasRegionAndNodes: an explanation has the region's verdict, the age
// of the decision, and every node. A node with an instance has the score that it
// had when the instance was placed.
func TestExplainHasRegionAndNodes(t *testing.T) {
	oneNode(t, func(t *testing.T, w *world, jobs nusav1.JobsClient, ctx context.Context) {
		plan, err := jobs.Plan(ctx, &nusav1.PlanRequest{Spec: spec("web", 1)})
		if err != nil {
			t.Fatal(err)
		}
		before := plan.GetExplanation().GetGroups()[0].GetNodes()[0].GetScore()
		w.submit(1, spec("web", 1))
		w.eventually("it runs", func() bool { return w.running(1)["n1"] == 1 })
		time.Sleep(5 * time.Minute)
		e, err := jobs.Explain(ctx, &nusav1.ExplainRequest{Job: ref("web")})
		if err != nil {
			t.Fatal(err)
		}
		g := e.GetGroups()[0]
		if age := e.GetAge().AsDuration(); age < 5*time.Minute || age > 6*time.Minute {
			t.Errorf("decided %v ago", age)
		}
		if r := g.GetRegions(); len(r) != 1 || r[0].GetRegion() != regionName || r[0].GetTaken() != 1 || r[0].GetFits() != 8 || r[0].GetReason() != 0 {
			t.Errorf("the region's verdict: %v", r)
		}
		if n := g.GetNodes(); len(n) != 1 || n[0].GetTaken() != 1 || n[0].GetReason() != 0 || n[0].GetScore() != before {
			t.Errorf("score %v before the placement, now %v", before, n)
		}
		w.submit(1, spec("web", 9))
		w.eventually("the region is full", func() bool { return w.running(1)["n1"] == 8 })
		e, err = jobs.Explain(ctx, &nusav1.ExplainRequest{Job: ref("web")})
		if err != nil {
			t.Fatal(err)
		}
		r := e.GetGroups()[0].GetRegions()[0]
		if r.GetTaken() != 8 || r.GetReason() != nusav1.Reason_REASON_INSUFFICIENT_CPU || r.GetMessage() != "needs 500m cpu, n1 has 0 free" {
			t.Errorf("verdict of the full region: %v", r)
		}
		j, err := jobs.Get(ctx, &nusav1.GetJobRequest{Job: ref("web")})
		if err != nil || strings.Contains(j.GetStatus().GetMessage(), "_") || !strings.Contains(j.GetStatus().GetMessage(), r.GetMessage()) {
			t.Errorf("status %q, %v", j.GetStatus().GetMessage(), err)
		}
	})
}

// TestPlanAndExplainGiveTheSameReasons: the plan of a job has the same reasons and the same
// remedy as explain has after the submit.
func TestPlanAndExplainGiveTheSameReasons(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*nusav1.Group)
		count  int32
		remedy string
	}{
		"too large":  {func(g *nusav1.Group) { g.Tasks["main"].Resources.CpuMilli = 64_000 }, 1, "n1 would take one more with at most 4 cpu"},
		"two things": {func(g *nusav1.Group) { g.Tasks["main"].Resources.CpuMilli, g.Pool = 5000, "batch" }, 1, `n1 would take one more with at most 4 cpu, pool "default"`},
		"full":       {func(g *nusav1.Group) { g.Tasks["main"].Resources.CpuMilli = 1500 }, 3, "n1 would take one more with at most 1 cpu"},
		"constraint": {func(g *nusav1.Group) { g.Constraints = []string{`node.labels["name"] == "n9"`} }, 1, `n1 would take one more with no constraint node.labels["name"] == "n9"`},
		"no driver":  {func(g *nusav1.Group) { g.Tasks["main"].Driver, g.Tasks["main"].Config = "other", nil }, 1, ""},
		"too many":   {func(g *nusav1.Group) { g.Tasks["main"].Resources.CpuMilli = 500 }, 10, ""},
	} {
		t.Run(name, func(t *testing.T) {
			oneNode(t, func(t *testing.T, w *world, jobs nusav1.JobsClient, ctx context.Context) {
				s := spec("web", c.count)
				c.change(s.Groups["web"])
				plan, err := jobs.Plan(ctx, &nusav1.PlanRequest{Spec: s})
				if err != nil {
					t.Fatal(err)
				}
				p := plan.GetExplanation().GetGroups()[0]
				w.submit(1, s)
				w.eventually("it is planned", func() bool { return len(w.explained(ctx, jobs, "web").GetPending()) > 0 })
				e := w.explained(ctx, jobs, "web")
				if p.GetUnplaced() == 0 || p.GetUnplaced() != e.GetUnplaced() || plan.GetUnplaced()["web"] != p.GetUnplaced() || p.GetRemedy() != c.remedy || e.GetRemedy() != c.remedy {
					t.Errorf("plan %v\nexplain %v", p, e)
				}
				later := spec("later", 2)
				later.Groups["web"].Tasks["main"].Resources.CpuMilli = 64_000
				w.submit(1, later)
				j, err := jobs.Get(ctx, &nusav1.GetJobRequest{Job: ref("later")})
				if q := j.GetStatus().GetGroups()["web"].GetQueue(); err != nil || q.GetPosition() != 2 || q.GetGroups() != 2 || q.GetEarlier() != int64(p.GetUnplaced()) || q.GetHigher() != 0 {
					t.Errorf("the place of a later job: %v, %v, want 2 of 2 after %d instances", q, err, p.GetUnplaced())
				}
				if !slices.EqualFunc(p.GetPending(), e.GetPending(), func(a, b *nusav1.CountedReason) bool { return proto.Equal(a, b) }) {
					t.Errorf("reasons of plan %v\nof explain %v", p.GetPending(), e.GetPending())
				}
			})
		})
	}
}

// TestExplainOfAForeignJob: a region explains a job from its spec, even without an instance
// of the job.
func TestExplainOfAForeignJob(t *testing.T) {
	oneNode(t, func(t *testing.T, w *world, jobs nusav1.JobsClient, ctx context.Context) {
		big := spec("far", 1)
		big.Groups["web"].Tasks["main"].Resources.CpuMilli = 64_000
		ref := &nusav1.JobRef{Namespace: "default", Name: "far"}
		if _, err := jobs.Explain(ctx, &nusav1.ExplainRequest{Job: ref}); status.Code(err) != codes.NotFound {
			t.Errorf("an unknown job: %v", err)
		}
		e, err := jobs.Explain(ctx, &nusav1.ExplainRequest{Job: ref, Spec: big})
		if err != nil || len(e.GetGroups()) != 1 || len(e.GetGroups()[0].GetNodes()) != 1 {
			t.Fatalf("%v, %v", e, err)
		}
		if n := e.GetGroups()[0].GetNodes()[0]; n.GetTaken() != 0 || n.GetMessage() != "needs 64 cpu, 4 free of 4" {
			t.Errorf("%v", n)
		}
	})
}

// TestExplainOfASystemJobCountsNodes: explain counts the nodes that run the job, and
// the nodes that should run it but have no room.
func TestExplainOfASystemJobCountsNodes(t *testing.T) {
	oneNode(t, func(t *testing.T, w *world, jobs nusav1.JobsClient, ctx context.Context) {
		w.agent("n2", runs)
		w.eventually("both nodes are ready", func() bool { return w.node(1, "n2").GetState() == nusav1.NodeState_NODE_STATE_READY })
		fill := spec("fill", 1)
		fill.Groups["web"].Tasks["main"].Resources.CpuMilli = 4000
		w.submit(1, fill)
		w.eventually("one node is full", func() bool { return len(w.running(1)) == 1 })
		s := spec("log", 0)
		s.Type, s.Groups["web"].Count = nusav1.JobType_JOB_TYPE_SYSTEM, nil
		plan, err := jobs.Plan(ctx, &nusav1.PlanRequest{Spec: s})
		if g := plan.GetExplanation().GetGroups(); err != nil || g[0].GetDesired() != 2 || g[0].GetUnplaced() != 1 {
			t.Errorf("plan: %v, %v", g, err)
		}
		w.submit(1, s)
		w.eventually("it runs on the other node", func() bool { return len(w.running(1)) == 2 })
		e, err := jobs.Explain(ctx, &nusav1.ExplainRequest{Job: ref("log")})
		if err != nil {
			t.Fatal(err)
		}
		g := e.GetGroups()[0]
		if g.GetDesired() != 2 || g.GetUnplaced() != 1 || len(g.GetNodes()) != 2 || g.GetRegions()[0].GetTaken() != 1 {
			t.Errorf("%v", g)
		}
	})
}

// TestPlanOfAStoppedJobShowsTheStart: the plan of a stopped job lists the start as a
// change.
func TestPlanOfAStoppedJobShowsTheStart(t *testing.T) {
	oneNode(t, func(t *testing.T, w *world, jobs nusav1.JobsClient, ctx context.Context) {
		w.submit(1, spec("web", 1))
		if _, err := jobs.Stop(ctx, &nusav1.StopJobRequest{Job: ref("web")}); err != nil {
			t.Fatal(err)
		}
		plan, err := jobs.Plan(ctx, &nusav1.PlanRequest{Spec: spec("web", 1)})
		if err != nil || len(plan.GetDiff()) != 1 || plan.GetDiff()[0].GetField() != "stopped" || plan.GetDiff()[0].GetOld() != "true" {
			t.Errorf("%v, %v", plan.GetDiff(), err)
		}
	})
}
