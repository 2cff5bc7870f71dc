package schedules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const everyHour = `name: %s
labels: {team: %s}
schedule: {every: 1h}
groups: {main: {tasks: {main: {driver: process, config: {command: sleep}}}}}
type: batch
`

// TestListSelects: a list has the schedules with the states and labels of the request, and each page is full.
func TestListSelects(t *testing.T) {
	t.Parallel()
	s, b := newService(t, fmt.Sprintf(everyHour, "a", "sea"))
	storeJob(t, b, fmt.Sprintf(everyHour, "b", "land"))
	storeJob(t, b, fmt.Sprintf(everyHour, "c", "sea"))
	storeJob(t, b, fmt.Sprintf(everyHour, "d", "land"))
	storeJob(t, b, "name: flow\nschedule: {every: 1h}\nworkflow: {steps: {gate: {approval: true}}}\n")
	b.st.Lock()
	for _, name := range []string{"a", "b", "c", "d", "flow"} {
		b.entryOf(state.JobKey{Namespace: "default", Name: name})
	}
	b.st.Unlock()
	for _, name := range []string{"b", "c"} {
		if _, err := s.Pause(t.Context(), &nusav1.PauseScheduleRequest{Job: &nusav1.JobRef{Namespace: "default", Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	b.st.Lock()
	b.byJob[state.JobKey{Namespace: "default", Name: "c"}].active["c.1"] = struct{}{}
	b.st.Unlock()
	sea := map[string]string{"team": "sea"}
	for _, c := range []struct {
		req  *nusav1.ListSchedulesRequest
		want string
	}{
		{&nusav1.ListSchedulesRequest{}, "a b c d flow"},
		{&nusav1.ListSchedulesRequest{States: []string{"paused"}}, "b c"},
		{&nusav1.ListSchedulesRequest{Paused: true}, "b c"},
		{&nusav1.ListSchedulesRequest{Paused: true, States: []string{"running"}}, "c"},
		{&nusav1.ListSchedulesRequest{States: []string{"idle"}}, "a d flow"},
		{&nusav1.ListSchedulesRequest{States: []string{"idle", "running"}}, "a c d flow"},
		{&nusav1.ListSchedulesRequest{States: []string{"failing"}}, ""},
		{&nusav1.ListSchedulesRequest{Labels: sea}, "a c"},
		{&nusav1.ListSchedulesRequest{Labels: sea, States: []string{"paused"}}, "c"},
	} {
		for limit := range int32(4) {
			c.req.Limit, c.req.PageToken = limit, ""
			var got []string
			more := true
			for more {
				page, err := s.List(t.Context(), c.req)
				if err != nil {
					t.Fatal(err)
				}
				more = page.GetNextPageToken() != ""
				if more && len(page.GetSchedules()) != int(limit) {
					t.Errorf("%v: a page has %d", c.req, len(page.GetSchedules()))
				}
				for _, st := range page.GetSchedules() {
					got = append(got, strings.TrimPrefix(st.GetJob(), "default/"))
					if st.GetWorkflow() != (st.GetJob() == "default/flow") {
						t.Errorf("%s: a workflow: %v", st.GetJob(), st.GetWorkflow())
					}
				}
				c.req.PageToken = page.GetNextPageToken()
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%v: %v, want %s", c.req, got, c.want)
			}
		}
	}
	if _, err := s.List(t.Context(), &nusav1.ListSchedulesRequest{States: []string{"asleep"}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an unknown state: %v", err)
	}
}

// TestNextRunIsInTheZoneOfTheSchedule: the message of a job shows its next run in the time zone of its schedule.
func TestNextRunIsInTheZoneOfTheSchedule(t *testing.T) {
	for zone, want := range map[string]string{
		"Europe/Berlin": "next run 2026-11-30T02:30:00+01:00", "": "next run 2026-11-30T02:30:00Z", "No/Where": "no time follows",
	} {
		e := &entry{submitted: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC), spec: &nusav1.JobSpec{Schedule: &nusav1.Schedule{Cron: []string{"30 2 * * *"}, TimeZone: zone}}}
		e.rule, e.hash = ruleOf(state.JobKey{Namespace: "default", Name: "tick"}, e.spec)
		e.zone = zoneOf(e.spec.GetSchedule())
		if got := (&Book{}).line(e, 0); got != want {
			t.Errorf("zone %q: %q, want %q", zone, got, want)
		}
	}
}
