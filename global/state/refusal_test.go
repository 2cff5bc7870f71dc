package state

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRegionsAreBounded: a region beyond the bound is refused, also when another region of the same transaction takes
// the last place. A region that is known already can change.
func TestRegionsAreBounded(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	for i := range maxRegions - 1 {
		name := fmt.Sprintf("region-%d", i)
		st.Regions[name] = &Region{Name: name, Record: &nusav1.Region{}}
	}
	tx := NewTx(st)
	for _, c := range []struct {
		name string
		want error
	}{{"last", nil}, {"region-7", nil}, {"beyond", ErrTooManyRegions}, {"last", nil}} {
		if err := tx.PutRegion(c.name, &nusav1.Region{}); !errors.Is(err, c.want) {
			t.Errorf("region %s: %v, want %v", c.name, err, c.want)
		}
	}
}

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
