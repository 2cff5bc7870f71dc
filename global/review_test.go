package global

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestReviewIsShown: after a region has returned, its note says that an operator must decide about
// the work that moved away from it.
func TestReviewIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCutter(t, "jakarta", "seoul")
		c.s.submit(testJob("api", 6, inJakarta(7*time.Second), func(j *nusav1.JobSpec) {
			j.Groups["web"].Disconnect.Reconcile = nusav1.Reconcile_RECONCILE_KEEP_REPLACEMENT
		}))
		c.pass(5 * time.Second)
		c.cut["jakarta"] = true
		c.pass(20 * time.Second)
		if got := c.owners("api"); got["seoul"] != "[0,6)" {
			t.Fatalf("after the loss: %v", got)
		}
		var order []string
		c.mu.Lock()
		for _, e := range c.all {
			if e.GetSubject() == "jakarta" && slices.Contains([]string{"region.silent", "region.lost"}, e.GetType()) {
				order = append(order, e.GetType())
			}
		}
		c.mu.Unlock()
		if got := strings.Join(order, " "); got != "region.silent region.lost" { // the session ends at the same time
			t.Errorf("events: %s", got)
		}
		c.regions["jakarta"].leave()
		c.cut["jakarta"] = false
		c.join("jakarta", 2)
		c.pass(10 * time.Second)
		const note = "instances that moved to other regions and wait for `nusa region failback jakarta`: 6"
		if got := c.region("jakarta").GetFailoverMessage(); got != note {
			t.Errorf("after the return: %q", got)
		}
		if got, want := c.jobMessage("api"), "6 of 6 instances wait; 6 could go back to jakarta: nusa region failback jakarta"; got != want {
			t.Errorf("the job says %q, want %q", got, want)
		}
		if _, err := nusav1.NewRegionsClient(c.s.conn).Drain(t.Context(), &nusav1.DrainRegionRequest{Name: "mars", Drain: true}); status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "there are jakarta, seoul") {
			t.Errorf("a drain of an unknown region: %v", err)
		}
	})
}

// jobMessage returns the message of a job's status.
func (c *cutter) jobMessage(name string) string {
	j, err := c.s.jobs().Get(c.s.t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: name}})
	if err != nil {
		c.s.t.Fatal(err)
	}
	return j.GetStatus().GetMessage()
}
