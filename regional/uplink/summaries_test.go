package uplink

import (
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestNoGlobalTierRemembersNoChanges: without a global tier, an uplink records no changes.
func TestNoGlobalTierRemembersNoChanges(t *testing.T) {
	u := New(Config{Definition: &nusav1.RegionDefinition{Name: "alpha"}})
	u.GroupsChanged([]state.GroupKey{{Namespace: "default", Job: "a", Group: "web"}})
	u.ReasonsChanged(map[state.GroupKey]struct{}{{Namespace: "default", Job: "b", Group: "web"}: {}})
	if s := &u.summaries; len(s.dirty)+len(s.withReasons) > 0 {
		t.Errorf("%d jobs and %d groups are remembered", len(s.dirty), len(s.withReasons))
	}
}
