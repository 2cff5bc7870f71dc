package state

import (
	"slices"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/events"
	"github.com/nusa-scheduler/nusa/internal/eventlog"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestFailureEventsComeOnce: lost nodes and failed instances in the regions' reports and summaries
// become one event each.
func TestFailureEventsComeOnce(t *testing.T) {
	r := Events{events.New(events.Config{Federation: "f"})}
	lost := func(n int32) *nusav1.RegionReport { return &nusav1.RegionReport{NodesLost: n, NodesReady: 5 - n} }
	r.AddLostNodes("alpha", nil, lost(0))
	r.AddLostNodes("alpha", lost(0), lost(2))
	r.AddLostNodes("alpha", lost(2), lost(2))
	r.AddLostNodes("alpha", lost(2), lost(1))
	says := func(failed, lost int32) *nusav1.JobSummary {
		return &nusav1.JobSummary{
			Groups: map[string]*nusav1.InstanceCounts{"web": {Failed: failed, Lost: lost}},
			Reasons: map[string]*nusav1.GroupReasons{"web": {Reasons: []*nusav1.CountedReason{
				{Reason: nusav1.Reason_REASON_EXITED, Count: failed, What: "instance", Message: "task t exited with code 7"}}}},
		}
	}
	r.addFailedInstances("alpha", JobKey{"default", "api"}, nil, says(0, 0))
	r.addFailedInstances("alpha", JobKey{"default", "api"}, says(0, 0), says(1, 2))
	r.addFailedInstances("alpha", JobKey{"default", "api"}, says(1, 2), says(1, 2))
	r.addFailedInstances("alpha", JobKey{"default", "api"}, says(1, 2), says(0, 0))
	watch, err := eventlog.NewWatch(t.Context(), r.Window, r, "0", 0)
	if err != nil {
		t.Fatal(err)
	}
	r.Release()
	all, _, err := watch.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range all {
		got = append(got, e.GetType()+" "+e.GetSubject()+" "+e.GetMessage())
	}
	want := []string{
		"node.lost alpha 2 more lost, 2 in all; 3 ready",
		"node.back alpha 1 back or forgotten, 1 still lost; 4 ready",
		"instance.given_up default/api web: 1 at alpha will not be tried again: it exited: task t exited with code 7",
		"instance.lost default/api web: 2 at alpha on lost nodes",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestAlarmEvents: an alarm about objects is one event when it begins, and one when it ends.
func TestAlarmEvents(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	for _, c := range []struct {
		text  string
		fresh bool
	}{{"", false}, {"101 are open", true}, {"102 are open", true}, {"102 are open", false}, {"", false}, {"", false}} {
		if fresh := SetObjectAlarm(st, "k", c.text); fresh != c.fresh {
			t.Errorf("%q: new %v", c.text, fresh)
		}
	}
	watch, err := eventlog.NewWatch(t.Context(), st.Events.Window, st.Events, "0", 0)
	if err != nil {
		t.Fatal(err)
	}
	st.Events.Release()
	all, _, err := watch.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range all {
		got = append(got, e.GetType()+" "+e.GetMessage())
	}
	if want := []string{"server.alarm 101 are open", "server.alarm_over 102 are open"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
