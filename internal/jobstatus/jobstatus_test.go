package jobstatus

import (
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestPhaseOf(t *testing.T) {
	for name, c := range map[string]struct {
		facts   *Facts
		state   nusav1.JobState
		summary string
	}{
		"stopped":                   {&Facts{Stopped: true}, nusav1.JobState_JOB_STATE_STOPPED, ""},
		"being stopped":             {&Facts{Stopped: true, Stopping: StoppingInstances(1)}, nusav1.JobState_JOB_STATE_STOPPING, "1 instance is being stopped"},
		"failed":                    {&Facts{Desired: 3, Counts: nusav1.InstanceCounts{Failed: 1, Running: 2}}, nusav1.JobState_JOB_STATE_FAILED, "1 of 3 instances failed"},
		"outdated instances":        {&Facts{Version: 2, Desired: 3, Counts: nusav1.InstanceCounts{Running: 3, Outdated: 1}}, nusav1.JobState_JOB_STATE_STARTING, "updating: 2 of 3 instances run version 2"},
		"unreported version":        {&Facts{Version: 2, Desired: 1, Behind: true, Counts: nusav1.InstanceCounts{Running: 1}}, nusav1.JobState_JOB_STATE_STARTING, "updating: 1 of 1 instances run version 2"},
		"complete":                  {&Facts{Complete: true, Counts: nusav1.InstanceCounts{Complete: 1}}, nusav1.JobState_JOB_STATE_COMPLETE, ""},
		"pending":                   {&Facts{Behind: true, Counts: nusav1.InstanceCounts{Pending: 1}}, nusav1.JobState_JOB_STATE_PENDING, ""},
		"lost":                      {&Facts{Counts: nusav1.InstanceCounts{Lost: 1}}, nusav1.JobState_JOB_STATE_PENDING, ""},
		"not begun":                 {&Facts{NotBegun: true}, nusav1.JobState_JOB_STATE_PENDING, ""},
		"surplus instances":         {&Facts{Stopping: StoppingInstances(2), Counts: nusav1.InstanceCounts{Running: 1}}, nusav1.JobState_JOB_STATE_STARTING, "2 instances are being stopped"},
		"starting":                  {&Facts{Counts: nusav1.InstanceCounts{Starting: 1}}, nusav1.JobState_JOB_STATE_STARTING, ""},
		"running":                   {&Facts{Counts: nusav1.InstanceCounts{Running: 1}}, nusav1.JobState_JOB_STATE_RUNNING, ""},
		"nothing is wanted":         {&Facts{}, nusav1.JobState_JOB_STATE_RUNNING, ""},
		"failed while it is behind": {&Facts{Behind: true, Desired: 1, Counts: nusav1.InstanceCounts{Failed: 1}}, nusav1.JobState_JOB_STATE_FAILED, "1 of 1 instances failed"},
	} {
		p := PhaseOf(c.facts)
		if p.State() != c.state || p.Summary != c.summary {
			t.Errorf("%s: %v %q, want %v %q", name, p.State(), p.Summary, c.state, c.summary)
		}
	}
}

func TestWithObstacle(t *testing.T) {
	for _, c := range []struct {
		summary   string
		obstacles map[string]string
		want      string
	}{
		{"", nil, ""},
		{"1 of 2 instances wait", nil, "1 of 2 instances wait"},
		{"1 of 2 instances wait", map[string]string{"b": "no cpu", "a": ""}, "1 of 2 instances wait: b: no cpu"},
		{"", map[string]string{"b": "no cpu", "a": "no memory"}, "a: no memory"},
	} {
		if got := WithObstacle(c.summary, c.obstacles); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
