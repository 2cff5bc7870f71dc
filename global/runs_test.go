package global

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func batchJob(name string, count int32, change ...func(*nusav1.JobSpec)) *nusav1.JobSpec {
	return testJob(name, count, append(change, func(j *nusav1.JobSpec) { j.Type = nusav1.JobType_JOB_TYPE_BATCH })...)
}

// otherWork changes the work of the group's tasks.
func otherWork(j *nusav1.JobSpec) {
	for _, t := range j.GetGroups()["web"].GetTasks() {
		t.Env = map[string]string{"STEP": "two"}
	}
}

// TestRunsBeginInTheSubmit: the transaction that stores a job decides whether a run
// begins, and drops the done slots.
func TestRunsBeginInTheSubmit(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha")
	const key = "default/sum/web/0"
	// offered waits for the offer after the last one. It reports that slot as done if its argument
	// says so.
	var last *nusav1.Slot
	offered := func(what string, done bool) *nusav1.Slot {
		t.Helper()
		slot := r.waitSlot(key, func(s *nusav1.Slot) bool { return accepted(s) && s.GetGeneration() != last.GetGeneration() })
		last = slot
		if done {
			r.answer(answerTo(slot, nusav1.SlotState_SLOT_STATE_DONE))
			r.waitSlot(key, inState(nusav1.SlotState_SLOT_STATE_DONE))
		}
		j, err := s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "sum"}})
		if err != nil || slot.GetRun() == 0 || j.GetRun() != slot.GetRun() || slot.GetJobVersion() != j.GetVersion() {
			t.Errorf("%s: slot %v of job at run %d version %d, %v", what, slot, j.GetRun(), j.GetVersion(), err)
		}
		return slot
	}
	again := func(spec *nusav1.JobSpec) (*nusav1.SubmitResponse, error) {
		return s.jobs().Submit(t.Context(), &nusav1.SubmitRequest{Spec: spec, Again: true})
	}

	first := s.submit(batchJob("sum", 2))
	one := offered("the first run", false)
	if one.GetRun() != first.GetRevision() {
		t.Errorf("run %d of the submit at %d", one.GetRun(), first.GetRevision())
	}
	if _, err := again(batchJob("sum", 2)); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "stop it") {
		t.Errorf("again while it runs: %v", err)
	}
	r.answer(answerTo(one, nusav1.SlotState_SLOT_STATE_DONE))
	r.waitSlot(key, inState(nusav1.SlotState_SLOT_STATE_DONE))
	same := s.submit(batchJob("sum", 2))
	if same.GetChanged() || len(same.GetWarnings()) == 0 || !strings.Contains(same.GetWarnings()[0], "--again") {
		t.Errorf("the same once more: %v", same)
	}
	if resp, err := again(batchJob("sum", 2)); err != nil || !resp.GetChanged() {
		t.Errorf("again: %v, %v", resp, err)
	}
	if two := offered("again", true); two.GetRun() <= one.GetRun() {
		t.Errorf("again is run %d after %d", two.GetRun(), one.GetRun())
	}
	before := last.GetRun()
	s.submit(batchJob("sum", 2, otherWork))
	if three := offered("changed after its end", false); three.GetRun() <= before {
		t.Errorf("changed after its end is run %d after %d", three.GetRun(), before)
	}
	// In the middle of a run a change does not begin another.
	before = last.GetRun()
	s.submit(batchJob("sum", 2))
	if four := offered("changed in the middle", false); four.GetRun() != before {
		t.Errorf("changed in the middle is run %d after %d", four.GetRun(), before)
	}
	// Done slots run again unless their work is the same.
	s.submit(batchJob("sum", 4))
	r.waitSlot("default/sum/web/2", accepted)
	last = r.waitSlot(key, accepted)
	r.answer(answerTo(last, nusav1.SlotState_SLOT_STATE_DONE))
	r.waitSlot(key, inState(nusav1.SlotState_SLOT_STATE_DONE))
	s.submit(batchJob("sum", 5))
	r.waitSlot("default/sum/web/4", accepted)
	if slot := r.waitSlot(key, func(*nusav1.Slot) bool { return true }); slot.GetState() != nusav1.SlotState_SLOT_STATE_DONE {
		t.Errorf("more of the same work: %v", slot)
	}
	s.submit(batchJob("sum", 5, otherWork))
	if five := offered("other work in the middle", false); five.GetRun() != before {
		t.Errorf("other work in the middle is run %d after %d", five.GetRun(), before)
	}
	if _, err := s.jobs().Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "sum"}}); err != nil {
		t.Fatal(err)
	}
	s.submit(batchJob("sum", 5, otherWork))
	if six := offered("after a stop", false); six.GetRun() <= before {
		t.Errorf("after a stop it is run %d after %d", six.GetRun(), before)
	}
	if _, err := again(testJob("api", 1)); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("again of a service: %v", err)
	}
}

// TestTypeCannotChange: a stored job does not become a system job, and a stored system job does not
// become another type. The slots of both types would have the same keys.
func TestTypeCannotChange(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1")
	of := func(typ nusav1.JobType) error {
		spec := testJob("api", 1, func(j *nusav1.JobSpec) { j.Type = typ })
		if typ == nusav1.JobType_JOB_TYPE_SYSTEM {
			spec.Groups["web"].Count = nil
		}
		_, err := s.jobs().Submit(t.Context(), &nusav1.SubmitRequest{Spec: spec})
		return err
	}
	stop := func(purge bool) {
		t.Helper()
		if _, err := s.jobs().Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "api"}, Purge: purge}); err != nil {
			t.Fatal(err)
		}
	}
	const service, batch, system = nusav1.JobType_JOB_TYPE_SERVICE, nusav1.JobType_JOB_TYPE_BATCH, nusav1.JobType_JOB_TYPE_SYSTEM
	refused := func(typ nusav1.JobType) {
		t.Helper()
		if err := of(typ); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "--purge") {
			t.Errorf("%v: %v", typ, err)
		}
	}
	for _, typ := range []nusav1.JobType{service, batch} {
		if err := of(typ); err != nil {
			t.Fatal(err)
		}
	}
	refused(system)
	stop(false)
	refused(system)
	stop(true)
	if err := of(system); err != nil {
		t.Fatal(err)
	}
	refused(service)
}

// TestRefusalTextStays: the text of a region's refusal stays after its next report,
// which says only that nothing fits.
func TestRefusalTextStays(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha", func(r *fakeRegion) {
		r.script = func(s *nusav1.Slot) []*nusav1.SlotAnswer {
			a := answerTo(s, nusav1.SlotState_SLOT_STATE_RETURNED)
			a.Reason, a.Message = nusav1.Reason_REASON_INSUFFICIENT_MEMORY, "needs 64 GiB memory, the most free is 12 GiB"
			return []*nusav1.SlotAnswer{a}
		}
	})
	// Regions that the job does not allow are named last, however many there are.
	s.joined("beta")
	s.joined("gamma")
	s.submit(testJob("api", 2, func(j *nusav1.JobSpec) {
		j.Regions = &nusav1.RegionsSpec{Allow: []*nusav1.RegionSelector{{Name: "alpha"}}}
	}))
	said := func(j *nusav1.Job) bool {
		return j.GetStatus().GetMessage() == "2 of 2 instances wait: web: not enough memory: alpha: needs 64 GiB memory, the most free is 12 GiB"
	}
	s.waitJob("api", "waiting with the region's text", said)
	r.mu.Lock()
	r.fits = 0
	rep := r.report()
	r.mu.Unlock()
	r.send(rep)
	s.waitReport("alpha")
	e, err := s.jobs().Explain(t.Context(), &nusav1.ExplainRequest{Job: &nusav1.JobRef{Name: "api"}})
	if err != nil || !strings.Contains(e.GetGroups()[0].GetRegions()[0].GetMessage(), "64 GiB") {
		t.Errorf("explained as %v, %v", e, err)
	}
	s.waitJob("api", "waiting with the region's text after a report", said)
}

// TestReportedReasonsAreShown: the status of a job that was never offered has the
// reasons of the regions' reports, not only that there is no room.
func TestReportedReasonsAreShown(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha", func(r *fakeRegion) { r.fits = 0 })
	s.waitReport("alpha")
	s.submit(testJob("api", 2))
	r.wait("subscription", func() bool { return len(r.shapes.GetAsks()) == 1 })
	r.mu.Lock()
	rep := r.report()
	r.mu.Unlock()
	fit := rep.GetReport().GetShape().GetFits()[0]
	fit.Reason, fit.Message = nusav1.Reason_REASON_CONSTRAINT, `for example n1: constraint node.os == "plan9" is false`
	r.send(rep)
	s.waitJob("api", "waiting with the region's text", func(j *nusav1.Job) bool {
		return j.GetStatus().GetMessage() == `2 of 2 instances wait: web: a constraint does not match: alpha: for example n1: constraint node.os == "plan9" is false`
	})
}

// TestNewVersionKeepsTheExplanation: the decision that placed the instances is
// still shown, with its scores, when a new version leaves them in place.
func TestNewVersionKeepsTheExplanation(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha")
	s.submit(testJob("api", 2))
	first := r.waitSlot("default/api/web/0", accepted)
	s.submit(testJob("api", 2, otherWork))
	r.waitSlot("default/api/web/0", func(s *nusav1.Slot) bool { return accepted(s) && s.GetGeneration() != first.GetGeneration() })
	e, err := s.jobs().Explain(t.Context(), &nusav1.ExplainRequest{Job: &nusav1.JobRef{Name: "api"}})
	if err != nil || e.GetNote() != "" || e.GetAge().AsDuration() <= 0 || len(e.GetGroups()[0].GetRegions()[0].GetTerms()) == 0 {
		t.Errorf("%v, %v", e, err)
	}
}
