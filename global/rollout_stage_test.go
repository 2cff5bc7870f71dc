package global

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRolloutGoesFromRegionToRegion: three regions with one instance each get a new version one
// after the other, also when another server is elected meanwhile. When the version fails in a
// region, the next region does not get it.
func TestRolloutGoesFromRegionToRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		clock := func(c *Config) {
			c.Clock = func() time.Duration { return time.Since(start) }
			c.ReportInterval, c.CheckpointInterval, c.ElectionTTL = 0, 0, 0
		}
		s := f.start(t, "g1", clock)
		names := []string{"alpha", "beta", "gamma"}
		regions := map[string]*fakeRegion{}
		for _, name := range names {
			regions[name] = s.joined(name)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait() // all regions have reported their room; a region without a report gets nothing
		sequence := uint64(0)
		// held returns a region's slot once the federation is at rest.
		held := func(name string) *nusav1.Slot {
			time.Sleep(time.Millisecond)
			synctest.Wait()
			r := regions[name]
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, o := range r.slots {
				return o.GetSlot()
			}
			return nil
		}
		report := func(name string, full bool, c *nusav1.InstanceCounts) {
			sequence++
			slot := held(name)
			regions[name].summarize(full, sequence, &nusav1.JobSummary{
				Namespace: "default", Job: "api", Incarnation: 1, Index: sequence, Version: slot.GetJobVersion(), Run: slot.GetRun(),
				Groups: map[string]*nusav1.InstanceCounts{"web": c},
			})
		}
		versions := func(when string, want ...int64) {
			t.Helper()
			for i, name := range names {
				if got := held(name).GetJobVersion(); got != want[i] {
					t.Errorf("%s: %s has version %d, not %d", when, name, got, want[i])
				}
			}
		}
		up := &nusav1.InstanceCounts{Running: 1}
		spread := func(j *nusav1.JobSpec) { j.Regions = &nusav1.RegionsSpec{Divide: nusav1.Divide_DIVIDE_EVEN} }
		s.submit(testJob("api", 3, reverting, spread))
		for _, name := range names {
			report(name, true, up)
		}
		time.Sleep(time.Millisecond)
		// A plan shows in advance the order of the regions.
		p, err := s.jobs().Plan(t.Context(), &nusav1.PlanRequest{Spec: testJob("api", 3, reverting, spread, otherWork)})
		if err != nil {
			t.Fatal(err)
		}
		for i, slot := range p.GetSlots() {
			want, version := "version 2 waits for region alpha to be done", int64(1)
			if i == 0 {
				want, version = "", 2
			}
			if slot.GetMessage() != want || slot.GetJobVersion() != version || !strings.Contains(p.GetExplanation().GetGroups()[0].String(), "version 2 waits") {
				t.Errorf("planned is %v, explained as %v", slot, p.GetExplanation())
			}
		}
		s.submit(testJob("api", 3, reverting, spread, otherWork))
		versions("submitted", 2, 1, 1)
		report("alpha", false, &nusav1.InstanceCounts{Running: 1, Outdated: 1})
		versions("alpha has begun", 2, 1, 1)
		const waits = "version 2 waits for region alpha to be done"
		s.waitJob("api", "waiting", func(j *nusav1.Job) bool { return strings.Contains(j.GetStatus().GetMessage(), waits) })
		e, err := s.jobs().Explain(t.Context(), &nusav1.ExplainRequest{Job: &nusav1.JobRef{Name: "api"}})
		if err != nil || !strings.Contains(e.GetGroups()[0].String(), waits) {
			t.Errorf("explained as %v, %v", e, err)
		}

		// Another server: beta connects first, and alpha has reported nothing.
		for _, name := range names {
			regions[name].leave()
		}
		s.stop()
		s = f.start(t, "g2", clock)
		waitActive(t, s)
		for _, name := range []string{"gamma", "beta"} {
			regions[name] = s.joined(name)
			held(name)
			report(name, true, up)
		}
		for _, name := range names[1:] {
			if v := held(name).GetJobVersion(); v != 1 {
				t.Errorf("before alpha is back %s has version %d", name, v)
			}
		}
		regions["alpha"] = s.joined("alpha")
		versions("alpha is back", 2, 1, 1)
		report("alpha", true, up)
		versions("alpha is done", 2, 2, 1)

		// The version fails in beta. It is reverted in beta first.
		report("beta", false, &nusav1.InstanceCounts{Failed: 1})
		versions("beta has failed", 2, 3, 1)
		report("beta", false, up)
		versions("beta is as it was", 3, 3, 1)
		report("alpha", false, up)
		versions("alpha is as it was", 3, 3, 3)
		report("gamma", false, up)
		s.waitJob("api", "running", func(j *nusav1.Job) bool { return j.GetStatus().GetState() == runs && j.GetVersion() == 3 })
		for _, name := range names {
			regions[name].leave()
		}
		s.stop()
	})
}
