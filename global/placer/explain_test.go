package placer

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// TestExplanationDescribesThePresent: a stored decision that speaks of another placement, or of
// another state of a region, or of other rules of the job, is replaced by the present verdicts.
func TestExplanationDescribesThePresent(t *testing.T) {
	p := submitting(t)
	p.submit(t, "api", 2, 1000)
	k := keyOfName("api")
	verdict := func(note, message string, taken, fits int32) {
		t.Helper()
		e, ok := Explain(p.st, k, "")
		if !ok || len(e.GetGroups()) != 1 || len(e.GetGroups()[0].GetRegions()) != 1 {
			t.Fatalf("%v", e)
		}
		v := e.GetGroups()[0].GetRegions()[0]
		if e.GetNote() != note || v.GetMessage() != message || v.GetTaken() != taken || v.GetFits() != fits {
			t.Errorf("note %q, %q, takes %d, fits %d; want %q, %q, %d, %d", e.GetNote(), v.GetMessage(), v.GetTaken(), v.GetFits(), note, message, taken, fits)
		}
	}
	verdict("", "takes 2", 2, 2)
	change := func(what func(*nusav1.Region)) {
		t.Helper()
		if _, err := p.Commit.Do(t.Context(), func(tx *state.Tx) error {
			old, _ := tx.Region("sea")
			next := proto.CloneOf(old)
			what(next)
			return tx.PutRegion("sea", next)
		}); err != nil {
			t.Fatal(err)
		}
	}
	change(func(r *nusav1.Region) { r.Draining = true })
	verdict(asItIs, "an operator moves its work away", 2, 2)
	change(func(r *nusav1.Region) { r.Draining, r.Cordoned = false, true })
	verdict(asItIs, "an operator cordoned it", 2, 2)
	change(func(r *nusav1.Region) { r.Cordoned = false })
	verdict("", "takes 2", 2, 2)
	next := specOf("api", 2, 1000)
	next.Priority = proto.Int32(60) // the same regions and resources: the decision stays
	p.submitSpec(t, next)
	verdict("", "takes 2", 2, 2)
	next.Regions = &nusav1.RegionsSpec{Allow: []*nusav1.RegionSelector{{Name: "sea"}}} // no instance moves
	p.submitSpec(t, next)
	const keeps = "keeps 2 and none of its nodes seems to have room for one more, by their unreserved cpu, memory and disk"
	verdict(asItIs, keeps, 2, 2)
	next.Priority = proto.Int32(70) // the decision stays one about former rules
	p.submitSpec(t, next)
	verdict(asItIs, keeps, 2, 2)
	if _, err := p.Commit.Do(t.Context(), func(tx *state.Tx) error {
		rec, _ := tx.Job(k)
		stopped := rec.Full()
		stopped.Job.Stopped = true
		return tx.PutJob(k, stopped)
	}); err != nil {
		t.Fatal(err)
	}
	verdict(isStopped+"; "+asIfNew, "takes 2", 2, 2)
}

// TestResourcesMakeADecisionFormer: a decision about other resources than those of the present version is
// replaced.
func TestResourcesMakeADecisionFormer(t *testing.T) {
	p := submitting(t)
	p.submit(t, "api", 2, 1000)
	p.submit(t, "api", 2, 900)
	if e, ok := Explain(p.st, keyOfName("api"), ""); !ok || e.GetNote() != asItIs {
		t.Errorf("%v", e)
	}
}

// TestDecisionOfAVersionThatIsNoLonger: a plan that was made before a submit stores no decision about the
// present version.
func TestDecisionOfAVersionThatIsNoLonger(t *testing.T) {
	p := submitting(t)
	p.submit(t, "api", 2, 1000)
	k := keyOfName("api")
	p.submit(t, "api", 3, 1000) // the third has no room
	p.st.Lock()
	snapshot, jobs := snapshotOf(p.st, []state.JobKey{k})
	p.st.Unlock()
	plan := place.MakePlan(snapshot)
	next := specOf("api", 2, 1000)
	next.Regions = &nusav1.RegionsSpec{Allow: []*nusav1.RegionSelector{{Name: "sea"}}}
	p.submitSpec(t, next)
	p.st.Lock()
	p.record(plan, jobs, !snapshot.Terse)
	p.st.Unlock()
	if e, ok := Explain(p.st, k, ""); !ok || e.GetNote() != asItIs {
		t.Errorf("%v", e)
	}
}

// TestBrokenBoundSaysWhatMoves: the explanation of a broken bound promises a move only for instances that can
// move.
func TestBrokenBoundSaysWhatMoves(t *testing.T) {
	for want, change := range map[string]func(*nusav1.JobSpec){
		"the instances stay for now: if a better region has room, they move after the bound has been broken for another 10m0s (time in which it holds is subtracted)": func(*nusav1.JobSpec) {},
		"the instances stay: batch jobs, system jobs and colocated groups do not move for a bound":                                                                    func(j *nusav1.JobSpec) { j.Type = nusav1.JobType_JOB_TYPE_BATCH },
	} {
		p := submitting(t)
		spec := specOf("api", 2, 1000)
		change(spec)
		p.submitSpec(t, spec)
		p.st.Lock()
		p.st.Jobs[keyOfName("api")].EditNotes().Breaches = []place.Breach{{Group: "web", Region: "sea", Breach: topology.Breach{State: topology.Broken, Balance: 5 * time.Minute}}}
		p.st.Unlock()
		e, ok := Explain(p.st, keyOfName("api"), "")
		if !ok || len(e.GetGroups()) != 1 || len(e.GetGroups()[0].GetBounds()) != 1 || e.GetGroups()[0].GetBounds()[0].GetMessage() != want {
			t.Errorf("%v, want %q", e, want)
		}
	}
}

// TestPlanSaysWhatWaitsForReports: a dry run that finds room only by the answers of regions says
// that a submit waits for their reports.
func TestPlanSaysWhatWaitsForReports(t *testing.T) {
	k := keyOfName("api")
	plan := func(job string, unplaced int) place.Plan {
		return place.Plan{Groups: []place.GroupExplanation{{Namespace: "default", Job: job, Group: "web", Unplaced: unplaced, Regions: []place.RegionVerdict{
			{Region: "sea", Inputs: []place.Input{{Name: "report", Age: 3200 * time.Millisecond}, {Name: "rtt weu", Age: time.Hour}}},
		}}}}
	}
	const text = "the reports of the regions are up to 3.2s old: after a submit now, 1 instance of web would wait for the next reports"
	for name, c := range map[string]struct {
		reports, answers place.Plan
		want             string
	}{
		"only the answers have room": {plan("api", 3), plan("api", 2), text},
		"the same":                   {plan("api", 3), plan("api", 3), ""},
		"only the reports have room": {plan("api", 0), plan("api", 3), ""},
		"another job":                {plan("web", 3), plan("web", 2), ""},
	} {
		got := awaitsReports(k, c.reports, c.answers)
		if (c.want == "") != (len(got) == 0) || len(got) > 0 && got[0] != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
