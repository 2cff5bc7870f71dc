package sim_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// TestListPagesThroughRegions: pages show the regions' own jobs after the federation's. A purged
// job disappears soon.
func TestListPagesThroughRegions(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha", "beta", "gamma"}}, func(t *testing.T, f *sim.Federation) {
		var want []string
		for _, name := range []string{"one", "two", "zoo"} {
			mustSubmit(t, f.Global(1), service(name, 1), false)
			want = append(want, name)
		}
		for region, count := range map[string]int{"alpha": 5, "gamma": 2} {
			for i := range count {
				mustSubmit(t, f.Server(region, 1), service(fmt.Sprintf("own-%d", i), 1), false)
			}
		}
		for i := range 5 {
			want = append(want, fmt.Sprintf("own-%d@alpha", i))
		}
		want = append(want, "own-0@gamma", "own-1@gamma")
		jobs := nusav1.NewJobsClient(f.Global(1))
		list := func(ctx context.Context, limit int32) (names []string, err error) {
			token := ""
			for range 20 {
				page, err := jobs.List(ctx, &nusav1.ListJobsRequest{Limit: limit, PageToken: token})
				if err != nil || len(page.GetErrors()) > 0 || len(page.GetJobs()) > int(limit) {
					return nil, fmt.Errorf("%d jobs of at most %d, errors %v, %w", len(page.GetJobs()), limit, page.GetErrors(), err)
				}
				for _, j := range page.GetJobs() {
					name := j.GetSpec().GetName()
					if j.GetRegion() != "" {
						name += "@" + j.GetRegion()
					}
					names = append(names, name)
				}
				token = page.GetNextPageToken()
				if token == "" {
					return names, nil
				}
			}
			return nil, fmt.Errorf("no end: %v", names)
		}
		for limit := range int32(12) {
			f.Eventually(10*time.Second, "list", func(ctx context.Context) error {
				names, err := list(ctx, limit+1)
				if err == nil && !slices.Equal(names, want) {
					err = fmt.Errorf("by %d: %v, want %v", limit+1, names, want)
				}
				return err
			})
		}
		// The newest job disappears within a second of its last instance.
		ref := &nusav1.JobRef{Namespace: "default", Name: "own-0", Region: "alpha"}
		f.Eventually(10*time.Second, "running", func(ctx context.Context) error {
			j, err := jobs.Get(ctx, &nusav1.GetJobRequest{Job: ref})
			if err == nil && j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_RUNNING {
				err = fmt.Errorf("%v", j.GetStatus())
			}
			return err
		})
		versionsOfARegion(t, f, ref)
		if _, err := jobs.Stop(t.Context(), &nusav1.StopJobRequest{Job: ref, Purge: true}); err != nil {
			t.Fatal(err)
		}
		f.Eventually(3*time.Second, "purged", func(ctx context.Context) error {
			names, err := list(ctx, 100)
			if err == nil && (len(names) != len(want)-1 || slices.Contains(names, "own-0@alpha")) {
				err = fmt.Errorf("%v", names)
			}
			return err
		})
	})
}

// versionsOfARegion: a global server passes calls about the versions of a region's own job on to the region.
func versionsOfARegion(t *testing.T, f *sim.Federation, ref *nusav1.JobRef) {
	calls := nusav1.NewRolloutsClient(f.Global(1))
	if v, err := calls.Tag(t.Context(), &nusav1.TagVersionRequest{Job: ref, Tag: "first"}); err != nil || v.GetVersion() != 1 {
		t.Fatalf("%v, %v", v, err)
	}
	mustSubmit(t, f.Server(ref.GetRegion(), 1), service(ref.GetName(), 2), false)
	h, err := calls.History(t.Context(), &nusav1.JobHistoryRequest{Job: ref})
	if err != nil || len(h.GetVersions()) != 2 || h.GetVersions()[1].GetTag() != "first" || !h.GetVersions()[1].GetComplete() {
		t.Errorf("%v, %v", h, err)
	}
	d, err := calls.Diff(t.Context(), &nusav1.JobDiffRequest{Job: ref})
	if err != nil || len(d.GetLines()) != 1 || d.GetLines()[0].GetOld() != "1" || d.GetLines()[0].GetNew() != "2" {
		t.Errorf("%v, %v", d, err)
	}
	if r, err := calls.Revert(t.Context(), &nusav1.RevertJobRequest{Job: ref, To: "first"}); err != nil || r.GetVersion() != 3 || r.GetRevertedTo() != 1 {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := calls.Pause(t.Context(), &nusav1.ControlRolloutRequest{Job: ref}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a pause: %v", err)
	}
}

// TestPlanAsksRegions: a plan of a job whose ask no report covers asks the regions. It shows
// the regions' reasons, as explain does after the submit, and a remedy.
func TestPlanAsksRegions(t *testing.T) {
	inBubble(t, sim.Options{}, func(t *testing.T, f *sim.Federation) {
		for name, extra := range map[string]string{
			"picky": `    constraints: ['node.labels["disk"] == "none"']`, "elsewhere": "    pool: none",
		} {
			spec := strings.Replace(service(name, 2), "    count: 2\n", "    count: 2\n"+extra+"\n", 1)
			if !strings.Contains(spec, extra) {
				t.Fatalf("no %q in %s", extra, spec)
			}
			parsed, err := job.Parse([]byte(spec), "job.yaml")
			if err != nil {
				t.Fatal(err)
			}
			jobs := nusav1.NewJobsClient(f.Global(f.Active()))
			plan, err := jobs.Plan(t.Context(), &nusav1.PlanRequest{Spec: parsed})
			if err != nil {
				t.Fatal(err)
			}
			g := plan.GetExplanation().GetGroups()[0]
			if g.GetUnplaced() != 2 || len(plan.GetSlots()) > 0 || len(g.GetPending()) == 0 || !strings.Contains(g.GetRemedy(), "would take one more with ") {
				t.Errorf("%s: plan %v", name, plan)
			}
			f.Submit(spec)
			f.Eventually(30*time.Second, "explained so", func(ctx context.Context) error {
				e, err := jobs.Explain(ctx, &nusav1.ExplainRequest{Job: &nusav1.JobRef{Name: name}})
				if err != nil {
					return err
				}
				said := e.GetGroups()[0].GetPending()
				if len(said) == 0 || said[0].GetReason() != g.GetPending()[0].GetReason() || said[0].GetMessage() != g.GetPending()[0].GetMessage() {
					return fmt.Errorf("%v, the plan said %v", said, g.GetPending())
				}
				if got := e.GetGroups()[0].GetRemedy(); got != g.GetRemedy() {
					return fmt.Errorf("what would help is %q, the plan said %q", got, g.GetRemedy())
				}
				return nil
			})
		}
	})
}

// TestExplainSaysWhatIs: explain describes the present state, also of system jobs and ended batch
// jobs. A server that took no part in the decision gives the same explanation.
func TestExplainSaysWhatIs(t *testing.T) {
	inBubble(t, sim.Options{Globals: 2}, func(t *testing.T, f *sim.Federation) {
		f.Submit(strings.ReplaceAll(service("everywhere", 1, "type: system"), "count: 1\n", "\n"))
		f.Submit(batch("sum"))
		f.Submit(service("web", 3))
		explained := func(name string, desired int32, note string) func(context.Context) error {
			return func(ctx context.Context) error {
				e, err := nusav1.NewJobsClient(f.Global(f.Active())).Explain(ctx, &nusav1.ExplainRequest{Job: &nusav1.JobRef{Name: name}})
				if err != nil {
					return err
				}
				if len(e.GetGroups()) != 1 || len(e.GetGroups()[0].GetRegions()) != 2 {
					return fmt.Errorf("%v", e)
				}
				g, taken, scored := e.GetGroups()[0], int32(0), 0
				for _, r := range g.GetRegions() {
					taken += r.GetTaken()
					if len(r.GetTerms()) > 0 {
						scored++
					}
				}
				if g.GetDesired() != desired || g.GetUnplaced() != 0 || taken != desired || scored == 0 || !strings.Contains(e.GetNote(), note) || note == "" && e.GetNote() != "" {
					return fmt.Errorf("%d desired, %d unplaced, %d taken, %d scored, want %d: %v", g.GetDesired(), g.GetUnplaced(), taken, scored, desired, e)
				}
				return nil
			}
		}
		jobs := []struct {
			name    string
			desired int32
		}{{"everywhere", 4}, {"sum", 3}, {"web", 3}}
		for _, j := range jobs {
			f.Eventually(10*time.Second, "explain "+j.name, explained(j.name, j.desired, ""))
		}
		time.Sleep(10 * time.Second)
		f.Kill(fmt.Sprintf("global-%d", f.Active()))
		f.AwaitRegions()
		for _, j := range jobs {
			f.Eventually(10*time.Second, "explain "+j.name+" by the next server", explained(j.name, j.desired, "as if placed now"))
		}
	})
}
