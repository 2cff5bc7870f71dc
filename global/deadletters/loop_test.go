package deadletters

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
)

// TestRemovedRegionIsForgotten: after a region is removed, nobody asks it, and no result waits for it.
func TestRemovedRegionIsForgotten(t *testing.T) {
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	st.Regions["here"] = &state.Region{Name: "here"}
	k, now := state.JobKey{Namespace: "default", Name: "j"}, time.Now()
	b := &Book{
		st: st, asking: map[string]bool{}, retries: map[string]retry{"gone": {time.Second, now}},
		wanted: map[string]map[state.JobKey]*ask{"here": {k: {mark{}, now}}, "gone": {k: {mark{}, now}}},
	}
	if got := b.due(now); len(got) != 1 || got[0] != "here" {
		t.Errorf("the regions to ask are %v, want only here", got)
	}
	if b.wanted["gone"] != nil || len(b.retries) != 0 {
		t.Errorf("the removed region is kept: %v, %v", b.wanted["gone"], b.retries)
	}
}
