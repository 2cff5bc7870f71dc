package state

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
)

// TestDeclinedJobsDoNotBlockOthers: a region whose agents declined one job stays open to another
// job of the same size. A region that lacked memory does not.
func TestDeclinedJobsDoNotBlockOthers(t *testing.T) {
	for reason, ask := range map[string]uint64{reasonDeclined: 0, "insufficient_memory": 7} {
		r := &Region{}
		r.addRefusal(Refusal{times: 1, Returned: place.Returned{Job: "a", Reason: reason, Ask: 7}}, 5*time.Second)
		got := r.Refusals[0].ToPlace(time.Second)
		if held := reason == reasonDeclined; got.Ask != ask || (got.Backoff > 0) != held {
			t.Errorf("%s: ask %d, held for %s", reason, got.Ask, got.Backoff)
		}
	}
}
