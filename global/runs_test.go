package global

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func batchJob(name string, count int32, change ...func(*nusav1.JobSpec)) *nusav1.JobSpec {
	return testJob(name, count, append(change, func(j *nusav1.JobSpec) { j.Type = nusav1.JobType_JOB_TYPE_BATCH })...)
}

// otherWork changes what the group's tasks do.
func otherWork(j *nusav1.JobSpec) {
	for _, t := range j.GetGroups()["web"].GetTasks() {
		t.Env = map[string]string{"STEP": "two"}
	}
}

// TestRunsBeginInTheSubmit: the transaction that stores a job decides whether a
// run begins, and drops the done slots with it.
func TestRunsBeginInTheSubmit(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha")
	const key = "default/sum/web/0"
	// offered waits for another offer than the last one, and says that it is done.
	var last *nusav1.Slot
	offered := func(what string, done bool) *nusav1.Slot {
		t.Helper()
		slot := r.waitSlot(key, func(s *nusav1.Slot) bool { return accepted(s) && s.GetGeneration() != last.GetGeneration() })
		if last = slot; done {
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
	// What is done of it is to be done anew, unless the work is the same.
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

// A job does not become a system job, nor a system job another, while there is
// something of it: the slots of both have the same places.
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

// TestCountsAreJudgedByRunAndVersion: counts about an earlier run or version
// never stand for the present one.
func TestCountsAreJudgedByRunAndVersion(t *testing.T) {
	const run, version = 70, 3
	counts := func(c *nusav1.InstanceCounts) map[string]*nusav1.InstanceCounts {
		return map[string]*nusav1.InstanceCounts{"web": c}
	}
	service, batch := nusav1.JobType_JOB_TYPE_SERVICE, nusav1.JobType_JOB_TYPE_BATCH
	for _, c := range []struct {
		name    string
		kind    nusav1.JobType
		sum     *nusav1.JobSummary
		done    bool
		want    nusav1.JobState
		message string
	}{
		{"nothing said", service, nil, false, nusav1.JobState_JOB_STATE_PENDING, "6 of 6 instances wait"},
		{"present", service, &nusav1.JobSummary{Version: version, Run: run, Groups: counts(&nusav1.InstanceCounts{Running: 6})}, false, nusav1.JobState_JOB_STATE_RUNNING, ""},
		{"of a region that cannot say", service, &nusav1.JobSummary{Groups: counts(&nusav1.InstanceCounts{Running: 6})}, false, nusav1.JobState_JOB_STATE_RUNNING, ""},
		{"an earlier version", service, &nusav1.JobSummary{Version: 2, Run: run, Groups: counts(&nusav1.InstanceCounts{Running: 6})}, false, nusav1.JobState_JOB_STATE_STARTING, "updating: 0 of 6 instances run version 3"},
		{"on the way", service, &nusav1.JobSummary{Version: version, Run: run, Groups: counts(&nusav1.InstanceCounts{Running: 5, Pending: 1, Outdated: 3})}, false, nusav1.JobState_JOB_STATE_STARTING, "updating: 2 of 6 instances run version 3"},
		{"failures of an earlier version", service, &nusav1.JobSummary{Version: 2, Run: run, Groups: counts(&nusav1.InstanceCounts{Running: 5, Failed: 1})}, false, nusav1.JobState_JOB_STATE_STARTING, "updating: 0 of 6 instances run version 3"},
		{"failures of this one", service, &nusav1.JobSummary{Version: version, Run: run, Groups: counts(&nusav1.InstanceCounts{Running: 5, Failed: 1, Outdated: 5})}, false, nusav1.JobState_JOB_STATE_FAILED, "1 of 6 instances failed"},
		{"complete", batch, &nusav1.JobSummary{Version: version, Run: run, Groups: counts(&nusav1.InstanceCounts{Complete: 6})}, false, nusav1.JobState_JOB_STATE_COMPLETE, ""},
		{"complete in an earlier run", batch, &nusav1.JobSummary{Version: 2, Run: 60, Groups: counts(&nusav1.InstanceCounts{Complete: 6})}, false, nusav1.JobState_JOB_STATE_PENDING, "6 of 6 instances wait"},
		{"complete before a purge", batch, &nusav1.JobSummary{Version: version, Run: 60, Groups: counts(&nusav1.InstanceCounts{Complete: 6})}, false, nusav1.JobState_JOB_STATE_PENDING, "6 of 6 instances wait"},
		{"left over without a slot", batch, &nusav1.JobSummary{Version: -1, Run: -1, Groups: counts(&nusav1.InstanceCounts{Complete: 6})}, false, nusav1.JobState_JOB_STATE_PENDING, "6 of 6 instances wait"},
		{"complete in an earlier version", batch, &nusav1.JobSummary{Version: 2, Run: run, Groups: counts(&nusav1.InstanceCounts{Complete: 6})}, false, nusav1.JobState_JOB_STATE_STARTING, "updating: 0 of 6 instances run version 3"},
		{"done in an earlier version", batch, &nusav1.JobSummary{Version: 2, Run: run, Groups: counts(&nusav1.InstanceCounts{Complete: 6})}, true, nusav1.JobState_JOB_STATE_COMPLETE, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := testJob("api", 6)
			spec.Type = c.kind
			slot := region.Slot{Namespace: "default", Job: "api", Group: "web", To: 6, Region: "alpha", Desired: region.DesiredRun, State: region.Accepted, Run: run, JobVersion: version}
			if c.done {
				slot.State = region.Done
			}
			j := &Job{
				Record: &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: version, Run: run}}, Revision: 99,
				Slots: map[string]region.Slot{slot.Key(): slot}, Summaries: map[string]*nusav1.JobSummary{},
				// How an earlier run ended stands for nothing either.
				Result: &nusav1.ResultRecord{Version: version, Run: 60, Status: &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_COMPLETE}},
			}
			if c.sum != nil {
				j.Summaries["alpha"] = c.sum
			}
			if got := j.Status(); got.GetState() != c.want || got.GetMessage() != c.message {
				t.Errorf("%v %q, want %v %q", got.GetState(), got.GetMessage(), c.want, c.message)
			}
		})
	}
}

// TestWhatIsStillStopping: what a scale-down leaves over is no part of what
// runs, and the job is not running before it is gone.
func TestWhatIsStillStopping(t *testing.T) {
	slot := func(from, to int, at string, desired region.Desired) region.Slot {
		return region.Slot{Namespace: "default", Job: "api", Group: "web", From: from, To: to, Region: at, Desired: desired, State: region.Accepted, Run: 7, JobVersion: 2}
	}
	says := func(running int32) *nusav1.JobSummary {
		return &nusav1.JobSummary{Version: 2, Run: 7, Groups: map[string]*nusav1.InstanceCounts{"web": {Running: running}}}
	}
	for _, c := range []struct {
		name    string
		stopped bool
		slots   []region.Slot
		sums    map[string]*nusav1.JobSummary
		want    nusav1.JobState
		message string
		running int32
	}{
		{"in the same region", false, []region.Slot{slot(0, 1, "alpha", region.DesiredRun), slot(1, 3, "alpha", region.DesiredStop)},
			map[string]*nusav1.JobSummary{"alpha": says(3)}, nusav1.JobState_JOB_STATE_STARTING, "2 instances are being stopped", 1},
		{"in another", false, []region.Slot{slot(0, 1, "alpha", region.DesiredRun), slot(1, 2, "beta", region.DesiredStop)},
			map[string]*nusav1.JobSummary{"alpha": says(1), "beta": says(1)}, nusav1.JobState_JOB_STATE_STARTING, "1 instance is being stopped", 1},
		{"taken back", false, []region.Slot{slot(0, 1, "alpha", region.DesiredRun), slot(1, 2, "beta", region.DesiredRevoke)},
			map[string]*nusav1.JobSummary{"alpha": says(1), "beta": says(1)}, nusav1.JobState_JOB_STATE_STARTING, "1 instance is being stopped", 1},
		{"gone, and not confirmed", false, []region.Slot{slot(0, 1, "alpha", region.DesiredRun), slot(1, 3, "alpha", region.DesiredStop)},
			map[string]*nusav1.JobSummary{"alpha": says(1)}, nusav1.JobState_JOB_STATE_STARTING, "region alpha has still to confirm that what it had has stopped", 1},
		{"confirmed", false, []region.Slot{slot(0, 1, "alpha", region.DesiredRun)},
			map[string]*nusav1.JobSummary{"alpha": says(1)}, nusav1.JobState_JOB_STATE_RUNNING, "", 1},
		{"a stopped job", true, []region.Slot{slot(0, 1, "alpha", region.DesiredStop), slot(1, 3, "alpha", region.DesiredStop)},
			map[string]*nusav1.JobSummary{"alpha": says(3)}, nusav1.JobState_JOB_STATE_STOPPING, "3 instances are being stopped", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := &Job{
				Record: &nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob("api", 1), Version: 2, Run: 7, Stopped: c.stopped}}, Revision: 9,
				Slots: map[string]region.Slot{}, Summaries: c.sums,
			}
			for _, s := range c.slots {
				j.Slots[s.Key()] = s
			}
			got := j.Status()
			if running := got.GetGroups()["web"].GetCounts().GetRunning(); got.GetState() != c.want || got.GetMessage() != c.message || running != c.running {
				t.Errorf("%v %q with %d running, want %v %q with %d", got.GetState(), got.GetMessage(), running, c.want, c.message, c.running)
			}
		})
	}
}

// TestNoLeaseOnADoubtfulReign: once the candidacy has run out by the clock
// nothing is granted, though nobody has said yet that it is lost.
func TestNoLeaseOnADoubtfulReign(t *testing.T) {
	var now time.Duration
	clock := func() time.Duration { return now }
	var fails error
	cfg := &Config{Clock: clock, ElectionTTL: 3 * time.Second, Logger: slog.New(slog.DiscardHandler)}
	a := &active{cfg: cfg, log: cfg.Logger, ctx: t.Context(), st: New("e", clock, 10*time.Second),
		renew: func(context.Context) error { now += time.Second; return fails }} // the answer takes a second
	a.st.apply(RegionKey("alpha"), &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: "alpha"}, ClusterId: "c"}, 1)
	r := a.st.Regions["alpha"]
	r.Life, _ = region.Step(a.st.RegionConfig, r.Life, now, region.Hello{Stream: 7, ClusterID: "c", Incarnation: 1, Term: 1})
	s := &session{a: a, number: 7, region: "alpha", out: make(chan *nusav1.GlobalMessage, 8)}
	granted := func() bool {
		before := len(s.out)
		a.lease(s, 1)
		return len(s.out) > before
	}
	if granted() {
		t.Error("granted before the first proof")
	}
	if err := a.hold(t.Context()); err != nil || !granted() {
		t.Errorf("not granted after a proof, %v", err)
	}
	fails = fmt.Errorf("no answer")
	if err := a.hold(t.Context()); err == nil || !granted() {
		t.Errorf("not granted within the time, %v", err)
	}
	now = 3 * time.Second // counted from when the last proof was asked for
	if granted() {
		t.Error("granted when a successor may be active")
	}
	fails = nil
	if err := a.hold(t.Context()); err != nil || !granted() {
		t.Errorf("not granted after another proof, %v", err)
	}
}

// TestWhatARegionSaidStays: its words outlive its next report, which only says
// that nothing fits.
func TestWhatARegionSaidStays(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha", func(r *fakeRegion) {
		r.script = func(s *nusav1.Slot) []*nusav1.SlotAnswer {
			a := answerTo(s, nusav1.SlotState_SLOT_STATE_RETURNED)
			a.Reason, a.Message = nusav1.Reason_REASON_INSUFFICIENT_MEMORY, "needs 64 GiB memory, the most free is 12 GiB"
			return []*nusav1.SlotAnswer{a}
		}
	})
	// A region that is left out is named last, however many there are.
	s.joined("beta")
	s.joined("gamma")
	s.submit(testJob("api", 2, func(j *nusav1.JobSpec) {
		j.Regions = &nusav1.RegionsSpec{Allow: []*nusav1.RegionSelector{{Name: "alpha"}}}
	}))
	said := func(j *nusav1.Job) bool {
		return j.GetStatus().GetMessage() == "2 of 2 instances wait: web: not enough memory: alpha: needs 64 GiB memory, the most free is 12 GiB"
	}
	s.waitJob("api", "region's words", said)
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
	s.waitJob("api", "region's words after a report", said)
}

// TestWhyNothingFitsIsReported: a job that was never offered says what the
// regions report, not only that they have no room.
func TestWhyNothingFitsIsReported(t *testing.T) {
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
	s.waitJob("api", "region's words", func(j *nusav1.Job) bool {
		return j.GetStatus().GetMessage() == `2 of 2 instances wait: web: a constraint does not match: alpha: for example n1: constraint node.os == "plan9" is false`
	})
}

// TestNewVersionKeepsTheExplanation: what put the instances where they are is
// still the decision, with its scores, when a new version left them there.
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

// TestMuchDoneBeforeAChange: a change in the middle of a run makes all be done
// anew that is done of its group, however many slots, and leaves other groups.
func TestMuchDoneBeforeAChange(t *testing.T) {
	const slots = 5 * dropMost
	spec := batchJob("sum", 1)
	group := func(n int) *nusav1.Group {
		g := proto.CloneOf(spec.Groups["web"])
		g.Count = proto.Int32(int32(n))
		return g
	}
	spec.Groups = map[string]*nusav1.Group{"web": group(slots), "other": group(1), "going": group(1)}
	job.Default(spec)
	st := New("e", func() time.Duration { return 0 }, time.Second)
	k := KeyOf(spec)
	st.mu.Lock()
	defer st.mu.Unlock()
	st.apply(k.RecordKey(), &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1}}, 5)
	put := func(group string, i int, state nusav1.SlotState) {
		st.apply(fmt.Sprintf("%s%s/%s/%d", SlotPrefix, k, group, i), &nusav1.Slot{
			Namespace: k.Namespace, Job: k.Name, Group: group, From: int32(i), To: int32(i + 1), Region: "r",
			State: state, Desired: nusav1.SlotDesired_SLOT_DESIRED_RUN, JobVersion: 1, Run: 5, Generation: 6,
		}, 6)
	}
	for i := range slots {
		put("web", i, nusav1.SlotState_SLOT_STATE_DONE)
	}
	put("other", 0, nusav1.SlotState_SLOT_STATE_DONE)
	put("going", 0, nusav1.SlotState_SLOT_STATE_ACCEPTED)
	st.Jobs[k].Summaries["r"] = &nusav1.JobSummary{Version: 1, Run: 5, Groups: map[string]*nusav1.InstanceCounts{
		"web": {Complete: slots}, "other": {Complete: 1}, "going": {Running: 1},
	}}

	// A version that changes nothing of web's work makes nothing of it anew.
	submit := func(revision int64, change func(*nusav1.JobSpec)) {
		t.Helper()
		next := proto.CloneOf(spec)
		change(next)
		tx := NewTx(st)
		if _, err := tx.Submit(k, &nusav1.SubmitRequest{Spec: next}, fmt.Appendf(nil, "%d", revision)); err != nil {
			t.Fatal(err)
		}
		rec, _ := tx.Job(k)
		st.apply(k.RecordKey(), rec, revision)
	}
	updates := func() map[string]int {
		out := map[string]int{}
		for _, a := range place.MakePlan(place.Snapshot{Jobs: []place.Job{st.Jobs[k].ForPlacer()}}).Actions {
			if a.Kind == place.Update {
				out[a.Group]++
			}
		}
		return out
	}
	going := func(j *nusav1.JobSpec) {
		for _, t := range j.Groups["going"].Tasks {
			t.Env = map[string]string{"STEP": "two"}
		}
	}
	submit(7, going)
	if got := updates(); got["web"] != 0 || got["other"] != 0 || got["going"] != 1 {
		t.Errorf("of another group's change: %v", got)
	}
	submit(8, func(j *nusav1.JobSpec) { going(j); otherWork(j) })
	put("going", 0, nusav1.SlotState_SLOT_STATE_DONE) // of version 1: obsolete as well
	if got := updates(); got["web"] != slots || got["other"] != 0 || got["going"] != 1 {
		t.Errorf("of its own: %v", got)
	}
	if now := st.Jobs[k].Status(); HasEnded(now.GetState()) || NewTx(st).Ended(k) != nusav1.JobState_JOB_STATE_UNSPECIFIED {
		t.Errorf("it has ended before that is done: %v", now.GetState())
	}
	if rec := st.Jobs[k].Record; RunOf(rec, 8) != 5 || rec.GetSince()["web"] != 3 || rec.GetSince()["going"] != 2 || rec.GetSince()["other"] != 0 {
		t.Errorf("run %d since %v", RunOf(rec, 8), rec.GetSince())
	}
}
