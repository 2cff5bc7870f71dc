package global

import (
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func reverting(j *nusav1.JobSpec) {
	j.Groups["web"].Update = &nusav1.Update{AutoRevert: true}
}

// rollout acts as the region: it waits for a version and reports its counts.
type rollout struct {
	t        *testing.T
	s        *testServer
	r        *fakeRegion
	sequence uint64
}

func (o *rollout) report(version int64, c *nusav1.InstanceCounts) *nusav1.Slot {
	o.t.Helper()
	slot := o.r.waitSlot("default/api/web/0", func(s *nusav1.Slot) bool { return accepted(s) && s.GetJobVersion() == version })
	o.sequence++
	o.r.summarize(o.sequence == 1, o.sequence, &nusav1.JobSummary{
		Namespace: "default", Job: "api", Incarnation: 1, Index: o.sequence, Version: version, Run: slot.GetRun(),
		Groups: map[string]*nusav1.InstanceCounts{"web": c},
	})
	return slot
}

func (o *rollout) wait(version int64, state nusav1.JobState) *nusav1.Job {
	o.t.Helper()
	return o.s.waitJob("api", state.String(), func(j *nusav1.Job) bool {
		return j.GetVersion() == version && j.GetStatus().GetState() == state
	})
}

// healthy waits until the given version is stored as the healthy one; 0 = no version is.
func (o *rollout) healthy(version int64) {
	o.t.Helper()
	late := time.After(testWait)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		kv, ok, _, err := o.s.store.Get(o.t.Context(), state.HealthyPrefix+"default/api")
		if err != nil {
			o.t.Fatal(err)
		}
		rec := new(nusav1.JobRecord)
		if ok {
			err = state.Decode(kv, rec)
		}
		if err == nil && rec.GetJob().GetVersion() == version {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			o.t.Fatalf("healthy is %d, want %d; %v", rec.GetJob().GetVersion(), version, err)
		}
	}
}

const (
	runs  = nusav1.JobState_JOB_STATE_RUNNING
	fails = nusav1.JobState_JOB_STATE_FAILED
)

// TestFailedRolloutIsReverted: a failed rollout is reverted once, to the latest version that ran
// with all instances. The same happens when another server is elected meanwhile. A version that is
// not a rollout is never reverted.
func TestFailedRolloutIsReverted(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1")
	o := &rollout{t: t, s: s, r: s.joined("alpha")}
	s.submit(testJob("api", 2, reverting))
	run := o.report(1, &nusav1.InstanceCounts{Running: 2}).GetRun()
	o.wait(1, runs)
	o.healthy(1)

	// The stored healthy version survives a change of the active server. It also survives the
	// second rollout, which was never healthy.
	s.submit(testJob("api", 2, reverting, otherWork))
	o.report(2, &nusav1.InstanceCounts{Running: 1, Starting: 1})
	o.r.leave()
	s.stop()
	s = f.start(t, "g2")
	waitActive(t, s)
	o.s, o.r, o.sequence = s, s.joined("alpha"), 10
	o.r.summarize(true, 10)
	s.submit(testJob("api", 3, reverting, otherWork))
	o.report(3, &nusav1.InstanceCounts{Running: 2, Failed: 1, Outdated: 1})
	back := o.wait(4, nusav1.JobState_JOB_STATE_STARTING)
	why := back.GetReverted()
	if why.GetVersion() != 3 || why.GetTo() != 1 || !strings.Contains(why.GetWhy(), "version 3 failed: 1 of 3 instances failed") ||
		back.GetRun() != run || back.GetSpec().GetGroups()["web"].GetCount() != 2 {
		t.Errorf("run %d, want %d; %v", back.GetRun(), run, back)
	}

	// The reverted version fails too: it is not reverted again.
	o.report(4, &nusav1.InstanceCounts{Running: 1, Failed: 1})
	o.wait(4, fails)
	o.healthy(0)
	s.submit(testJob("api", 2, reverting, otherWork))
	o.report(5, &nusav1.InstanceCounts{Running: 1, Failed: 1})
	if j := o.wait(5, fails); j.GetReverted() != nil {
		t.Errorf("reverted although no version was healthy: %v", j.GetReverted())
	}

	// A group without auto_revert is not reverted.
	s.submit(testJob("api", 2))
	o.report(6, &nusav1.InstanceCounts{Running: 2})
	o.wait(6, runs)
	s.submit(testJob("api", 2, otherWork))
	o.report(7, &nusav1.InstanceCounts{Running: 1, Failed: 1})
	o.wait(7, fails)

	// A version without auto_revert that ran with all instances is a target of later
	// reverts.
	s.submit(testJob("api", 1, reverting))
	o.report(8, &nusav1.InstanceCounts{Running: 1})
	o.healthy(8)
	s.submit(testJob("api", 2))
	o.report(9, &nusav1.InstanceCounts{Running: 2})
	o.healthy(9)
	s.submit(testJob("api", 2, reverting, otherWork))
	o.report(10, &nusav1.InstanceCounts{Running: 1, Failed: 1})
	if j := o.wait(11, nusav1.JobState_JOB_STATE_STARTING); j.GetReverted().GetTo() != 9 {
		t.Errorf("reverted to %v", j.GetReverted())
	}

	// A version without instances is not healthy: it is no target of a revert.
	s.submit(testJob("api", 2, reverting))
	o.report(12, &nusav1.InstanceCounts{Running: 2})
	o.healthy(12)
	s.submit(testJob("api", 0, reverting))
	o.wait(13, runs)
	o.r.wait("removal of the slot", func() bool { return len(o.r.slots) == 0 })
	s.submit(testJob("api", 2, reverting, otherWork))
	o.report(14, &nusav1.InstanceCounts{Running: 1, Failed: 1})
	if j := o.wait(15, nusav1.JobState_JOB_STATE_STARTING); j.GetReverted().GetTo() != 12 {
		t.Errorf("reverted to %v", j.GetReverted())
	}

	// A purge forgets the healthy version.
	if _, err := s.jobs().Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "api"}, Purge: true}); err != nil {
		t.Fatal(err)
	}
	o.healthy(0)
}

// TestFirstVersionWithAutoRevert: the first version with auto_revert is reverted to
// the version before it only if the earlier version ran with all instances.
func TestFirstVersionWithAutoRevert(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1")
	o := &rollout{t: t, s: s, r: s.joined("alpha")}
	s.submit(testJob("api", 2))
	o.report(1, &nusav1.InstanceCounts{Running: 1, Starting: 1})
	o.wait(1, nusav1.JobState_JOB_STATE_STARTING)
	s.submit(testJob("api", 2, reverting, otherWork)) // the version before never ran with all instances
	o.report(2, &nusav1.InstanceCounts{Running: 1, Failed: 1})
	if j := o.wait(2, fails); j.GetReverted() != nil {
		t.Errorf("reverted although no version was healthy: %v", j.GetReverted())
	}

	s.submit(testJob("api", 2))
	o.report(3, &nusav1.InstanceCounts{Running: 2})
	o.wait(3, runs)
	o.healthy(0) // no version has auto_revert yet
	s.submit(testJob("api", 2, reverting, otherWork))
	o.report(4, &nusav1.InstanceCounts{Running: 1, Failed: 1})
	back := o.wait(5, nusav1.JobState_JOB_STATE_STARTING)
	if why := back.GetReverted(); why.GetVersion() != 4 || why.GetTo() != 3 || back.GetSpec().GetGroups()["web"].GetUpdate().GetAutoRevert() {
		t.Errorf("reverted to %v", back)
	}
}

// TestRevertSkipsFailedVersions: a revert without a version goes back to the latest one that ran completely. The
// history says which did, and which failed.
func TestRevertSkipsFailedVersions(t *testing.T) {
	s := newFederation().start(t, "g1")
	o := &rollout{t: t, s: s, r: s.joined("alpha")}
	calls := nusav1.NewRolloutsClient(s.conn)
	ref := &nusav1.JobRef{Namespace: "default", Name: "api"}
	work := func(text string) func(*nusav1.JobSpec) {
		return func(j *nusav1.JobSpec) {
			for _, task := range j.Groups["web"].Tasks {
				task.Env = map[string]string{"V": text}
			}
		}
	}
	revert := func(want int64, warning string) {
		t.Helper()
		out, err := calls.Revert(t.Context(), &nusav1.RevertJobRequest{Job: ref})
		if err != nil || out.GetRevertedTo() != want || !strings.Contains(strings.Join(out.GetWarnings(), "\n"), warning) || (warning == "") != (len(out.GetWarnings()) == 0) {
			t.Errorf("%v, %v, want version %d and %q", out, err, want, warning)
		}
	}
	s.submit(testJob("api", 2, work("1")))
	o.report(1, &nusav1.InstanceCounts{Running: 1, Failed: 1})
	o.wait(1, fails)
	s.submit(testJob("api", 2, work("2")))
	o.report(2, &nusav1.InstanceCounts{Running: 1, Failed: 1})
	o.wait(2, fails)
	revert(1, "version 1 was submitted again, and it failed: 1 of 2 instances failed")
	o.report(3, &nusav1.InstanceCounts{Running: 2})
	o.wait(3, runs)
	for v, text := range []string{"4", "5"} {
		s.submit(testJob("api", 2, work(text)))
		o.report(int64(4+v), &nusav1.InstanceCounts{Running: 1, Failed: 1})
		o.wait(int64(4+v), fails)
	}
	h, err := calls.History(t.Context(), &nusav1.JobHistoryRequest{Job: ref})
	if err != nil {
		t.Fatal(err)
	}
	for i, complete := range []bool{false, false, true, false, false} {
		if v := h.GetVersions()[i]; v.GetComplete() != complete || (v.GetFailed() == "") != complete {
			t.Errorf("%v", v)
		}
	}
	revert(3, "")
}
