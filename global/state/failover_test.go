package state

import (
	"fmt"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestDroppedSlotThatAFormerOwnerMayRun: an operator states that nothing runs in seoul. A
// stopped job that seoul took over from jakarta, which is cut off, may still run there.
func TestDroppedSlotThatAFormerOwnerMayRun(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	st.apply(regionPrefix+"jakarta", &nusav1.Region{ClusterId: "j", Lost: &nusav1.LostRegion{}}, 1)
	st.apply(regionPrefix+"seoul", &nusav1.Region{ClusterId: "s", Lost: &nusav1.LostRegion{NothingRuns: true}}, 2)
	st.apply(jobPrefix+"default/api", &nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob("api", 6), Version: 1, Stopped: true}}, 3)
	for i, mayRun := range []bool{true, false} {
		s := region.Slot{
			Namespace: "default", Job: "api", Group: "web", From: 3 * i, To: 3*i + 3, Region: "seoul", State: region.Accepted, Desired: region.DesiredStop,
			Generation: 4, Home: "jakarta", Former: []region.FormerOwner{{Region: "jakarta", Generation: 2, MayRun: mayRun}},
		}
		st.apply(slotPrefix+s.Key(), SlotToProto(s), int64(4+i))
	}
	got := fmt.Sprint(st.Dropped("seoul"))
	want := "[put default/api/web[0-2] at jakarta offered stop g0 v0 delete default/api/web[3-5] at seoul accepted stop g4 v0, jakarta g2 revoke, home jakarta]"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
