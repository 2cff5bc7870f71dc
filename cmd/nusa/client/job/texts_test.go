package job

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestStateText: a job is not called pending when some of its instances run.
func TestStateText(t *testing.T) {
	const pending = nusav1.JobState_JOB_STATE_PENDING
	for _, c := range []struct {
		state  nusav1.JobState
		counts *nusav1.InstanceCounts
		want   string
	}{
		{pending, &nusav1.InstanceCounts{Pending: 12}, "pending"},
		{pending, &nusav1.InstanceCounts{Running: 11, Pending: 1}, "partial"},
		{pending, &nusav1.InstanceCounts{Running: 3, Unknown: 3}, "partial"},
		{pending, &nusav1.InstanceCounts{Complete: 3, Pending: 1}, "pending"},
		{nusav1.JobState_JOB_STATE_FAILED, &nusav1.InstanceCounts{Running: 2, Failed: 1}, "failed"},
		{nusav1.JobState_JOB_STATE_STARTING, &nusav1.InstanceCounts{Running: 2, Starting: 1}, "starting"},
	} {
		s := &nusav1.JobStatus{State: c.state, Groups: map[string]*nusav1.GroupStatus{"web": {Counts: c.counts}}}
		if got := stateText(s); got != c.want {
			t.Errorf("%v with %v: %q, want %q", c.state, c.counts, got, c.want)
		}
	}
}

// TestInstancesInLists: a complete batch job is not shown as running.
func TestInstancesInLists(t *testing.T) {
	const batch, service = nusav1.JobType_JOB_TYPE_BATCH, nusav1.JobType_JOB_TYPE_SERVICE
	for _, c := range []struct {
		kind              nusav1.JobType
		state             nusav1.JobState
		counts            *nusav1.InstanceCounts
		running, complete string
	}{
		{batch, nusav1.JobState_JOB_STATE_COMPLETE, &nusav1.InstanceCounts{Complete: 2}, "-", "2/2"},
		{batch, nusav1.JobState_JOB_STATE_RUNNING, &nusav1.InstanceCounts{Complete: 1, Running: 1}, "1/2", "1/2"},
		{batch, nusav1.JobState_JOB_STATE_FAILED, &nusav1.InstanceCounts{Complete: 1, Failed: 1}, "0/2", "1/2"},
		{service, nusav1.JobState_JOB_STATE_RUNNING, &nusav1.InstanceCounts{Running: 2}, "2/2", "-"},
	} {
		j := &nusav1.Job{Spec: &nusav1.JobSpec{Type: c.kind}, Status: &nusav1.JobStatus{State: c.state, Groups: map[string]*nusav1.GroupStatus{"web": {Desired: 2, Counts: c.counts}}}}
		sum, _ := totalsOf(j.GetStatus())
		if running, complete := runningText(j, sum), completeText(j, sum); running != c.running || complete != c.complete {
			t.Errorf("%v %v: %s running, %s complete, want %s and %s", c.kind, c.counts, running, complete, c.running, c.complete)
		}
	}
}

// TestAllocationsOfEarlierRuns: the status of a job that has ended leaves out what a purged
// job of the same name has left.
func TestAllocationsOfEarlierRuns(t *testing.T) {
	submitted := sample.Noon
	at := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(submitted.Add(d)) }
	federation := &nusav1.Job{Run: 100, Submitted: timestamppb.New(submitted)}
	for name, c := range map[string]struct {
		job     *nusav1.Job
		alloc   *nusav1.Allocation
		earlier bool
	}{
		"of a purged job":             {federation, &nusav1.Allocation{Generation: 90, Created: at(-time.Minute)}, true},
		"of this run":                 {federation, &nusav1.Allocation{Generation: 101, Created: at(time.Second)}, false},
		"of this run, clocks differ":  {federation, &nusav1.Allocation{Generation: 101, Created: at(-time.Second)}, false},
		"of this run, in an old slot": {federation, &nusav1.Allocation{Generation: 90, Created: at(time.Second)}, false},
		"of a region's purged job":    {&nusav1.Job{Run: 100, Region: "tokyo"}, &nusav1.Allocation{CreateIndex: 90}, true},
		"of a region's job":           {&nusav1.Job{Run: 100, Region: "tokyo"}, &nusav1.Allocation{CreateIndex: 101}, false},
		"an earlier server":           {&nusav1.Job{}, &nusav1.Allocation{Generation: 1}, false},
	} {
		if got := ofEarlierRun(c.job, c.alloc); got != c.earlier {
			t.Errorf("%s: %v, want %v", name, got, c.earlier)
		}
	}
}

// TestNodesHaveAReason: nodes with equal scores, whose terms have no details, have a reason
// too.
func TestNodesHaveAReason(t *testing.T) {
	nodes := []verdict{
		{taken: 2, score: 5}, {score: 5}, {score: 3}, {score: 5, message: "own text"},
		{reason: nusav1.Reason_REASON_CONSTRAINT}, {score: 5, terms: []*nusav1.ScoreTerm{{Detail: "1 here"}}},
	}
	sayWhy(nodes)
	for i, want := range []string{"has 2 instances", "fits as well as the others", "fits, but the others have a better score", "own text", "", ""} {
		if nodes[i].message != want {
			t.Errorf("node %d: %q, want %q", i, nodes[i].message, want)
		}
	}
	free := []verdict{{score: 5}}
	sayWhy(free)
	if free[0].message != "fits" {
		t.Errorf("%q, want fits", free[0].message)
	}
}

// TestVerdictNamesMissingDriver: a verdict does not say that room is missing if its message
// names another reason.
func TestVerdictNamesMissingDriver(t *testing.T) {
	for message, want := range map[string]string{
		"a driver that it needs is missing: has no driver docker": "a driver that it needs is missing: has no driver docker",
		"none of its nodes has room for one more":                 "no room for another instance: none of its nodes has room for one more",
	} {
		w := sample.Screen(&strings.Builder{}, false, 0)
		if got := verdictText(w, verdict{reason: nusav1.Reason_REASON_NO_CAPACITY, message: message}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestExplanationFits80Columns: in a terminal of 80 columns no line of an explanation wraps.
func TestExplanationFits80Columns(t *testing.T) {
	var out strings.Builder
	writeExplanation(sample.Screen(&out, false, 80), sample.Explanation())
	for line := range strings.Lines(out.String()) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 79 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// TestEachFailureMayBeTakenBack: a version that failed, ran and fails again has the whole time to be taken back.
func TestEachFailureMayBeTakenBack(t *testing.T) {
	f := &waiter{Session: &cli.Session{Settings: &cli.Settings{Output: "json"}}}
	for _, state := range []nusav1.JobState{nusav1.JobState_JOB_STATE_FAILED, nusav1.JobState_JOB_STATE_RUNNING} {
		f.failedSince = time.Now().Add(-revertWithin)
		f.receive(&nusav1.Job{Status: &nusav1.JobStatus{State: state}})
		if f.failedSince.IsZero() != (state == nusav1.JobState_JOB_STATE_RUNNING) {
			t.Errorf("after %v it has failed since %v", state, f.failedSince)
		}
	}
}
