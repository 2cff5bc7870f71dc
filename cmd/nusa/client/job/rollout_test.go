package job

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRolloutLineOnlyOfSeveralRegions: the line is shown only if a version is rolled out
// from region to region.
func TestRolloutLineOnlyOfSeveralRegions(t *testing.T) {
	slots := func(j *nusav1.Job) []*nusav1.Slot { return j.GetStatus().GetGroups()["web"].GetSlots() }
	in := func(j *nusav1.Job, region string) *nusav1.InstanceCounts {
		return j.GetStatus().GetGroups()["web"].GetRegions()[region]
	}
	for name, c := range map[string]struct {
		change func(*nusav1.Job)
		want   string
	}{
		"on its way": {func(*nusav1.Job) {}, "version 3: done in kobe, nagoya; now in osaka; not yet in sapporo, tokyo"},
		"failed": {func(j *nusav1.Job) { in(j, "osaka").Outdated, in(j, "osaka").Failed = 0, 1 },
			"version 3: done in kobe, nagoya; failed in osaka; not yet in sapporo, tokyo"},
		"the last": {func(j *nusav1.Job) {
			for _, s := range slots(j) {
				s.JobVersion = 3
			}
			in(j, "sapporo").Outdated, in(j, "osaka").Outdated = 0, 0
		}, "version 3: done in kobe, nagoya, osaka, sapporo; now in tokyo"},
		"none is old": {func(j *nusav1.Job) {
			for _, s := range slots(j) {
				s.JobVersion, in(j, s.GetRegion()).Outdated = 3, 0
			}
		}, ""},
		"one region": {func(j *nusav1.Job) { j.Status.Groups["web"].Slots = slots(j)[3:4] }, ""},
		"others are left": {func(j *nusav1.Job) {
			for _, s := range slots(j)[3:] {
				s.Desired = nusav1.SlotDesired_SLOT_DESIRED_STOP
			}
			in(j, "osaka").Outdated = 0
		}, ""},
		"batch jobs": {func(j *nusav1.Job) { j.Spec.Type = nusav1.JobType_JOB_TYPE_BATCH }, ""},
	} {
		j := sample.Staged()
		c.change(j)
		if got := rolloutLine(j); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestGoesOn: job resume says that nothing was paused, if nothing stopped the rollout.
func TestGoesOn(t *testing.T) {
	for name, c := range map[string]struct {
		r    *nusav1.Rollout
		want bool
	}{
		"no rollout":           {nil, false},
		"it runs":              {&nusav1.Rollout{State: nusav1.RolloutState_ROLLOUT_STATE_RUNNING}, true},
		"canaries":             {&nusav1.Rollout{State: nusav1.RolloutState_ROLLOUT_STATE_CANARY}, true},
		"paused":               {&nusav1.Rollout{State: nusav1.RolloutState_ROLLOUT_STATE_PAUSED}, false},
		"failed":               {&nusav1.Rollout{State: nusav1.RolloutState_ROLLOUT_STATE_FAILED}, false},
		"it waits for a while": {&nusav1.Rollout{State: nusav1.RolloutState_ROLLOUT_STATE_RUNNING, PauseLeft: durationpb.New(time.Minute)}, false},
	} {
		if got := goesOn(c.r); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
