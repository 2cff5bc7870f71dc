package global

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
)

// TestDeclinedIsTheJobsOwn: a region whose agents declined one job is not
// closed to another that asks for as much; one that lacked memory is.
func TestDeclinedIsTheJobsOwn(t *testing.T) {
	for reason, ask := range map[string]uint64{reasonDeclined: 0, "insufficient_memory": 7} {
		r := &Region{}
		r.addRefusal(Refusal{Times: 1, Returned: place.Returned{Job: "a", Reason: reason, Ask: 7}}, 5*time.Second)
		got := r.Refusals[0].ForPlacer(time.Second)
		if held := reason == reasonDeclined; got.Ask != ask || (got.Backoff > 0) != held {
			t.Errorf("%s: ask %d, held for %s", reason, got.Ask, got.Backoff)
		}
	}
}
