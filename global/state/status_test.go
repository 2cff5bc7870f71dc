package state

import (
	"testing"

	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestStatusOfSummaries: counts about an earlier run or version never count as the present ones.
func TestStatusOfSummaries(t *testing.T) {
	const run, version = 70, 3
	counts := func(c *nusav1.InstanceCounts) map[string]*nusav1.InstanceCounts {
		return map[string]*nusav1.InstanceCounts{"web": c}
	}
	heldAt := func(n int32, c *nusav1.InstanceCounts) *nusav1.JobSummary {
		c.Held = n
		return &nusav1.JobSummary{Version: version, Run: run, Groups: counts(c), Override: &nusav1.Override{Region: "alpha", Held: n}}
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
		{"no summary", service, nil, false, nusav1.JobState_JOB_STATE_PENDING, "6 of 6 instances wait"},
		{"present", service, &nusav1.JobSummary{Version: version, Run: run, Groups: counts(&nusav1.InstanceCounts{Running: 6})}, false, nusav1.JobState_JOB_STATE_RUNNING, ""},
		{"a region that reports no version", service, &nusav1.JobSummary{Groups: counts(&nusav1.InstanceCounts{Running: 6})}, false, nusav1.JobState_JOB_STATE_RUNNING, ""},
		{"an earlier version", service, &nusav1.JobSummary{Version: 2, Run: run, Groups: counts(&nusav1.InstanceCounts{Running: 6})}, false, nusav1.JobState_JOB_STATE_STARTING, "updating: 0 of 6 instances run version 3"},
		{"partly outdated", service, &nusav1.JobSummary{Version: version, Run: run, Groups: counts(&nusav1.InstanceCounts{Running: 5, Pending: 1, Outdated: 3})}, false, nusav1.JobState_JOB_STATE_STARTING, "updating: 2 of 6 instances run version 3"},
		{"failures of an earlier version", service, &nusav1.JobSummary{Version: 2, Run: run, Groups: counts(&nusav1.InstanceCounts{Running: 5, Failed: 1})}, false, nusav1.JobState_JOB_STATE_STARTING, "updating: 0 of 6 instances run version 3"},
		{"failures of this one", service, &nusav1.JobSummary{Version: version, Run: run, Groups: counts(&nusav1.InstanceCounts{Running: 5, Failed: 1, Outdated: 5})}, false, nusav1.JobState_JOB_STATE_FAILED, "1 of 6 instances failed"},
		{"complete", batch, &nusav1.JobSummary{Version: version, Run: run, Groups: counts(&nusav1.InstanceCounts{Complete: 6})}, false, nusav1.JobState_JOB_STATE_COMPLETE, ""},
		{"complete in an earlier run", batch, &nusav1.JobSummary{Version: 2, Run: 60, Groups: counts(&nusav1.InstanceCounts{Complete: 6})}, false, nusav1.JobState_JOB_STATE_PENDING, "6 of 6 instances wait"},
		{"complete before a purge", batch, &nusav1.JobSummary{Version: version, Run: 60, Groups: counts(&nusav1.InstanceCounts{Complete: 6})}, false, nusav1.JobState_JOB_STATE_PENDING, "6 of 6 instances wait"},
		{"left over without a slot", batch, &nusav1.JobSummary{Version: -1, Run: -1, Groups: counts(&nusav1.InstanceCounts{Complete: 6})}, false, nusav1.JobState_JOB_STATE_PENDING, "6 of 6 instances wait"},
		{"complete in an earlier version", batch, &nusav1.JobSummary{Version: 2, Run: run, Groups: counts(&nusav1.InstanceCounts{Complete: 6})}, false, nusav1.JobState_JOB_STATE_STARTING, "updating: 0 of 6 instances run version 3"},
		{"partly held", service, heldAt(4, &nusav1.InstanceCounts{Running: 2}), false, nusav1.JobState_JOB_STATE_RUNNING, "4 held by an override at alpha"},
		{"held while they still stop", service, heldAt(4, &nusav1.InstanceCounts{Running: 6}), false, nusav1.JobState_JOB_STATE_STARTING, "4 instances are being stopped; 4 held by an override at alpha"},
		{"all held", service, heldAt(6, &nusav1.InstanceCounts{Stopped: 6}), false, nusav1.JobState_JOB_STATE_PENDING, "6 held by an override at alpha"},
		{"one is lost beside those held", service, heldAt(4, &nusav1.InstanceCounts{Running: 1, Lost: 1}), false, nusav1.JobState_JOB_STATE_PENDING, "1 of 6 instances wait; 4 held by an override at alpha"},
		{"some have ended before the others were held", batch, heldAt(4, &nusav1.InstanceCounts{Complete: 2}), false, nusav1.JobState_JOB_STATE_PENDING, "4 held by an override at alpha"},
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
				Record: recordOfMessage(&nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: version, Run: run}}), Revision: 99,
				// The result of an earlier run does not count either.
				Result: &nusav1.ResultRecord{Version: version, Run: 60, Status: &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_COMPLETE}},
			}
			j.Slots.Put(&slot)
			if c.sum != nil {
				j.Summaries.Put("alpha", c.sum)
			}
			if got := j.Status(Sight{}); got.GetState() != c.want || got.GetMessage() != c.message {
				t.Errorf("%v %q, want %v %q", got.GetState(), got.GetMessage(), c.want, c.message)
			}
		})
	}
}

// TestSurplusInstancesStop: the instances that a scale-down leaves over do not
// count as running, and the job is not running before they have stopped.
func TestSurplusInstancesStop(t *testing.T) {
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
		{"revoked", false, []region.Slot{slot(0, 1, "alpha", region.DesiredRun), slot(1, 2, "beta", region.DesiredRevoke)},
			map[string]*nusav1.JobSummary{"alpha": says(1), "beta": says(1)}, nusav1.JobState_JOB_STATE_STARTING, "1 instance is being stopped", 1},
		{"gone, and not confirmed", false, []region.Slot{slot(0, 1, "alpha", region.DesiredRun), slot(1, 3, "alpha", region.DesiredStop)},
			map[string]*nusav1.JobSummary{"alpha": says(1)}, nusav1.JobState_JOB_STATE_STARTING, "region alpha has not confirmed yet that its instances have stopped", 1},
		{"confirmed", false, []region.Slot{slot(0, 1, "alpha", region.DesiredRun)},
			map[string]*nusav1.JobSummary{"alpha": says(1)}, nusav1.JobState_JOB_STATE_RUNNING, "", 1},
		{"a stopped job", true, []region.Slot{slot(0, 1, "alpha", region.DesiredStop), slot(1, 3, "alpha", region.DesiredStop)},
			map[string]*nusav1.JobSummary{"alpha": says(3)}, nusav1.JobState_JOB_STATE_STOPPING, "3 instances are being stopped", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := &Job{
				Record: recordOfMessage(&nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob("api", 1), Version: 2, Run: 7, Stopped: c.stopped}}), Revision: 9,
			}
			putAll(&j.Summaries, c.sums)
			for _, s := range c.slots {
				j.Slots.Put(&s)
			}
			got := j.Status(Sight{})
			if running := got.GetGroups()["web"].GetCounts().GetRunning(); got.GetState() != c.want || got.GetMessage() != c.message || running != c.running {
				t.Errorf("%v %q with %d running, want %v %q with %d", got.GetState(), got.GetMessage(), running, c.want, c.message, c.running)
			}
		})
	}
}
