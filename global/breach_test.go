package global

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// TestSustainedBreach: a running job stays where it is while its latency bound is
// broken for a short time, and moves one instance after the other when the bound is
// broken for long. Explain shows why. In virtual time.
func TestSustainedBreach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := newFederation().start(t, "g1", func(c *Config) {
			c.Clock = func() time.Duration { return time.Since(start) }
			c.ReportInterval, c.CheckpointInterval, c.ElectionTTL = 0, 0, 0
		})
		obliging := func(r *fakeRegion) {
			r.script = func(s *nusav1.Slot) []*nusav1.SlotAnswer {
				if s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_REVOKE {
					return []*nusav1.SlotAnswer{answerTo(s, nusav1.SlotState_SLOT_STATE_REVOKED)}
				}
				return agree(s)
			}
		}
		near, far, target := s.joined("near", obliging), s.joined("far", obliging), s.joined("target")
		sequence := uint64(0)
		rtt := 30 * time.Millisecond // from far
		count := func(r *fakeRegion) int32 {
			r.mu.Lock()
			defer r.mu.Unlock()
			n := int32(0)
			for _, o := range r.slots {
				if o.GetSlot().GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_RUN {
					n += o.GetSlot().GetTo() - o.GetSlot().GetFrom()
				}
			}
			return n
		}
		pass := func(d time.Duration) {
			for range d / (10 * time.Second) {
				time.Sleep(10 * time.Second)
				far.measure("target", rtt)
				near.measure("target", 20*time.Millisecond)
				sequence++
				for _, r := range []*fakeRegion{near, far, target} {
					r.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Lease{Lease: &nusav1.LeaseRequest{Id: sequence}}})
					r.summarize(true, sequence, &nusav1.JobSummary{
						Namespace: "default", Job: "api", Incarnation: 1, Index: sequence,
						Groups: map[string]*nusav1.InstanceCounts{"web": {Running: count(r)}},
					})
				}
			}
			synctest.Wait()
		}
		bounds := func() []*nusav1.NearBound {
			e, err := s.jobs().Explain(t.Context(), &nusav1.ExplainRequest{Job: &nusav1.JobRef{Name: "api"}})
			if err != nil {
				t.Fatal(err)
			}
			return e.GetGroups()[0].GetBounds()
		}
		nearResults := func(want map[string]string) {
			t.Helper()
			e, err := s.jobs().Explain(t.Context(), &nusav1.ExplainRequest{Job: &nusav1.JobRef{Name: "api"}})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range e.GetGroups()[0].GetNear() {
				got := fmt.Sprint(f.GetBound(), " ", f.GetRtt().AsDuration(), " ", topology.Source(f.GetSource()), " ", f.GetVerdict())
				if w, there := want[f.GetRegion()]; there && got != w || !f.GetRequired() || f.GetTarget() != "target" || f.GetAge().AsDuration() > 11*time.Second {
					t.Errorf("from %s: %q, want %q: %v", f.GetRegion(), got, w, f)
				}
				delete(want, f.GetRegion())
			}
			if len(want) > 0 {
				t.Errorf("not shown: %v", want)
			}
		}
		within := func(bound time.Duration) *nusav1.JobSpec {
			return testJob("api", 2, func(j *nusav1.JobSpec) {
				j.Regions = &nusav1.RegionsSpec{
					Allow:  []*nusav1.RegionSelector{{Name: "near"}, {Name: "far"}},
					Prefer: []*nusav1.Preference{{Selector: &nusav1.RegionSelector{Name: "far"}, Weight: 100}},
					Near:   []*nusav1.Near{{Selector: &nusav1.RegionSelector{Name: "target"}, MaxRtt: durationpb.New(bound), Required: true}},
				}
			})
		}
		submitted := func(spec *nusav1.JobSpec) string {
			r, err := s.jobs().Submit(t.Context(), &nusav1.SubmitRequest{Spec: spec})
			if err != nil {
				t.Fatal(err)
			}
			return strings.Join(r.GetWarnings(), "\n")
		}
		pass(20 * time.Second)
		s.submit(within(40 * time.Millisecond))
		far.waitSlot("default/api/web/0", accepted)
		pass(time.Minute)
		if b := bounds(); len(b) != 0 {
			t.Errorf("a bound that holds is shown as broken: %v", b)
		}
		nearResults(map[string]string{
			"near": "p50 at most 40ms to target 20ms measured kept", "far": "p50 at most 40ms to target 30ms measured kept",
			"target": "p50 at most 40ms to target 0s measured kept",
		})
		for bound, warning := range map[time.Duration]string{
			40 * time.Millisecond: "",
			25 * time.Millisecond: "instances of web are in far, although the round trip of 30ms breaks p50 at most 25ms to target: nusa job explain says whether they move",
		} {
			plan, err := s.jobs().Plan(t.Context(), &nusav1.PlanRequest{Spec: within(bound)})
			if got := strings.Join(plan.GetWarnings(), "\n"); err != nil || got != warning {
				t.Errorf("the plan with at most %v warns %q, want %q: %v", bound, got, warning, err)
			}
		}
		if warned := submitted(within(25 * time.Millisecond)); !strings.Contains(warned, "the round trip of 30ms breaks p50 at most 25ms to target") {
			t.Errorf("the submit with at most 25ms warns %q", warned)
		}
		if warned := submitted(within(40 * time.Millisecond)); warned != "" {
			t.Errorf("the submit with at most 40ms warns %q", warned)
		}
		rtt = 90 * time.Millisecond
		pass(10 * time.Minute)
		if b := bounds(); len(b) != 1 || b[0].GetRegion() != "far" || b[0].GetState() != "broken" || b[0].GetWorst().AsDuration() != rtt ||
			b[0].GetSustainedIn().AsDuration() > 6*time.Minute || !strings.Contains(b[0].GetMessage(), "stay for now") {
			t.Errorf("after ten minutes: %v", b)
		}
		nearResults(map[string]string{"near": "p50 at most 40ms to target 20ms measured kept", "far": "p50 at most 40ms to target 90ms measured broken"})
		if count(far) != 2 {
			t.Fatalf("moved after ten minutes: %d", count(far))
		}
		pass(6 * time.Minute)
		for range 20 {
			if count(far)+count(near) < 1 || count(far) == 0 && count(near) == 2 {
				break
			}
			pass(10 * time.Second)
		}
		if count(far) != 0 || count(near) != 2 {
			t.Errorf("after a sustained breach %d stay and %d are moved; %v", count(far), count(near), bounds())
		}
		if b := bounds(); len(b) != 1 || b[0].GetState() != "sustained" || !strings.Contains(b[0].GetMessage(), "no instance of the group any more") {
			t.Errorf("after the move: %v", b)
		}
		rtt = 30 * time.Millisecond
		pass(20 * time.Minute)
		if b := bounds(); len(b) != 0 || count(near) != 2 {
			t.Errorf("healed: %v, %d", b, count(near))
		}
		for _, r := range []*fakeRegion{near, far, target} {
			r.leave()
		}
		s.stop()
	})
}
