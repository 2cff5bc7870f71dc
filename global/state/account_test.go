package state

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestAcceptedSlotsAreChargedAfterAnElection: the report in the checkpoint is older than the latest
// slots. A new active server must not give the same room away again.
func TestAcceptedSlotsAreChargedAfterAnElection(t *testing.T) {
	c := store.NewMemory().Client()
	defer c.Close()
	put := func(key string, m proto.Message) int64 {
		t.Helper()
		value, err := Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		revision, err := c.Txn(t.Context(), nil, []store.Op{store.Put(key, value)})
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	spec := func(name string) *nusav1.JobSpec {
		return &nusav1.JobSpec{Namespace: "default", Name: name, Type: nusav1.JobType_JOB_TYPE_SERVICE, Groups: map[string]*nusav1.Group{"web": {
			Count: proto.Int32(1), Tasks: map[string]*nusav1.Task{"t": {Driver: "process", Resources: &nusav1.Resources{CpuMilli: 1000}}}}}}
	}
	put(regionKey("sea"), &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: "sea"}, ClusterId: "c"})
	reported := put(CheckpointKey("sea", 0), &nusav1.CheckpointRecord{Chunks: 1, Report: &nusav1.RegionReport{NodesReady: 1, SlotsRevision: 1,
		Shape: &nusav1.RegionShape{Bins: []*nusav1.ShapeBin{{Nodes: 1, Free: &nusav1.Resources{CpuMilli: 1000}, Pool: "default"}}}}})
	put(JobKey{"default", "old"}.recordKey(), &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec("old"), Version: 1}})
	slot := &nusav1.Slot{Namespace: "default", Job: "old", Group: "web", To: 1, Region: "sea", State: nusav1.SlotState_SLOT_STATE_OFFERED,
		Desired: nusav1.SlotDesired_SLOT_DESIRED_RUN, JobVersion: 1}
	stored := slotFromProto("default/old/web/0", slot, 0)
	key := slotKey(&stored)
	if !strings.HasPrefix(key, slotPrefix) {
		t.Fatal(key)
	}
	slot.Generation = put(key, slot)
	slot.State = nusav1.SlotState_SLOT_STATE_ACCEPTED
	if put(key, slot) <= reported {
		t.Fatal("the slot is older than the report")
	}
	put(JobKey{"default", "new"}.recordKey(), &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec("new"), Version: 1}})
	put(leadershipKey, &nusav1.LeadershipRecord{})

	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	if err := st.Load(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	sea := st.Regions["sea"].ToPlace(0)
	sea.Connected = true
	for charged, offers := range map[bool]int{true: 0, false: 1} {
		at := sea
		if !charged {
			at.Charged = place.Charges{}
		}
		plan := place.MakePlan(place.Snapshot{Charged: true, Regions: []*place.Region{&at}, Jobs: []place.Job{st.Jobs[JobKey{"default", "new"}].ToPlace(st.Sight())}})
		if len(plan.Actions) != offers {
			t.Errorf("charged %v:\n%s", charged, plan)
		}
	}
}
