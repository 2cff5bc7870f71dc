package state

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestChangeRepeatsDoneSlots: a change in the middle of a run makes all done slots of the changed
// group run again, however many there are. Other groups keep theirs.
func TestChangeRepeatsDoneSlots(t *testing.T) {
	const slots = 5 * maxDropped
	spec := testJob("sum", 1)
	spec.Type = nusav1.JobType_JOB_TYPE_BATCH
	group := func(n int) *nusav1.Group {
		g := proto.CloneOf(spec.Groups["web"])
		g.Count = proto.Int32(int32(n))
		return g
	}
	spec.Groups = map[string]*nusav1.Group{"web": group(slots), "other": group(1), "going": group(1)}
	job.Default(spec)
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	k := KeyOf(spec)
	st.Lock()
	defer st.Unlock()
	st.apply(k.recordKey(), &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1}}, 5)
	put := func(group string, i int, state nusav1.SlotState) {
		st.apply(fmt.Sprintf("%s%s/%s/%d", slotPrefix, k, group, i), &nusav1.Slot{
			Namespace: k.Namespace, Job: k.Name, Group: group, From: int32(i), To: int32(i + 1), Region: "r",
			State: state, Desired: nusav1.SlotDesired_SLOT_DESIRED_RUN, JobVersion: 1, Run: 5, Generation: 6,
		}, 6)
	}
	for i := range slots {
		put("web", i, nusav1.SlotState_SLOT_STATE_DONE)
	}
	put("other", 0, nusav1.SlotState_SLOT_STATE_DONE)
	put("going", 0, nusav1.SlotState_SLOT_STATE_ACCEPTED)
	st.Jobs[k].Summaries.Put("r", &nusav1.JobSummary{Version: 1, Run: 5, Groups: map[string]*nusav1.InstanceCounts{
		"web": {Complete: slots}, "other": {Complete: 1}, "going": {Running: 1},
	}})

	// A version that does not change web's work repeats no slot of web.
	submit := func(revision int64, change func(*nusav1.JobSpec)) {
		t.Helper()
		next := proto.CloneOf(spec)
		change(next)
		tx := NewTx(st)
		if _, err := tx.Submit(k, &nusav1.SubmitRequest{Spec: next}); err != nil {
			t.Fatal(err)
		}
		rec, _ := tx.Job(k)
		st.applyJob(k.String(), rec, revision)
	}
	updates := func() map[string]int {
		out := map[string]int{}
		for _, a := range place.MakePlan(place.Snapshot{Jobs: []place.Job{st.Jobs[k].ToPlace(st.Sight())}}).Actions {
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
		t.Errorf("updates after a change of another group: %v", got)
	}
	submit(8, func(j *nusav1.JobSpec) { going(j); otherWork(j) })
	put("going", 0, nusav1.SlotState_SLOT_STATE_DONE) // of version 1: obsolete as well
	if got := updates(); got["web"] != slots || got["other"] != 0 || got["going"] != 1 {
		t.Errorf("updates after a change of the group: %v", got)
	}
	if now := st.Jobs[k].Status(st.Sight()); jobstatus.HasEnded(now.GetState()) || NewTx(st).batchEnd(k) != nusav1.JobState_JOB_STATE_UNSPECIFIED {
		t.Errorf("the job has ended before the repeated slots are done: %v", now.GetState())
	}
	rec := st.Jobs[k].Record
	if since := rec.Full().GetSince(); rec.Run(8) != 5 || since["web"] != 3 || since["going"] != 2 || since["other"] != 0 {
		t.Errorf("run %d since %v", rec.Run(8), since)
	}
}

// TestSinceFollowsTheLeases: a change of the leases that bind a group replaces its running
// instances, so it is a rollout. The completed instances of a batch job still count.
func TestSinceFollowsTheLeases(t *testing.T) {
	spec := func(kind nusav1.JobType, node, region nusav1.Running) *nusav1.JobSpec {
		return &nusav1.JobSpec{Type: kind, Groups: map[string]*nusav1.Group{"web": {Disconnect: &nusav1.Disconnect{
			Node: &nusav1.DisconnectLevel{Running: node}, Region: &nusav1.DisconnectLevel{Running: region}}}}}
	}
	const keep, stop = nusav1.Running_RUNNING_KEEP, nusav1.Running_RUNNING_STOP
	const service, batch = nusav1.JobType_JOB_TYPE_SERVICE, nusav1.JobType_JOB_TYPE_BATCH
	for _, c := range []struct {
		kind         nusav1.JobType
		node, region nusav1.Running
		want         int64
	}{{service, keep, keep, 3}, {service, stop, keep, 7}, {service, keep, stop, 7}, {batch, stop, stop, 3}} {
		old := &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec(c.kind, keep, keep)}, Since: map[string]int64{"web": 3}}
		got := Since(recordOfMessage(old), spec(c.kind, c.node, c.region), 7)
		if got["web"] != c.want {
			t.Errorf("%s, node %s, region %s: since version %d, want %d", c.kind, c.node, c.region, got["web"], c.want)
		}
	}
}
