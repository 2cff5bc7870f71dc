package place

import "testing"

func TestFailedVersionIsRevertedOnce(t *testing.T) {
	for _, c := range []struct {
		name string
		in   Rollout
		want RolloutDecision
		why  string
	}{
		{"nothing is known yet", Rollout{Version: 1}, RolloutWait, ""},
		{"the first version runs", Rollout{Version: 1, AllRunning: true}, RolloutSetHealthy, "every instance runs version 1"},
		{"and goes on", Rollout{Version: 1, Healthy: 1, SameSpec: true, AllRunning: true}, RolloutWait, ""},
		{"the first version fails", Rollout{Version: 1, Failed: true, AutoRevert: true, Why: "exit 3"}, RolloutWait, ""},
		{"a rollout goes on", Rollout{Version: 2, Healthy: 1, AutoRevert: true}, RolloutWait, ""},
		{"a rollout fails", Rollout{Version: 3, Healthy: 1, Failed: true, AutoRevert: true, Why: "exit 3"}, RolloutRevert, "version 3 failed: exit 3"},
		{"only a group fails that does not ask for it", Rollout{Version: 3, Healthy: 1, Failed: true, Why: "exit 3"}, RolloutWait, ""},
		{"what was gone back to fails", Rollout{Version: 4, Healthy: 1, SameSpec: true, Failed: true, AutoRevert: true, Why: "exit 3"}, RolloutForgetHealthy, "version 1, which was healthy, has failed: exit 3"},
		{"it fails after it was healthy", Rollout{Version: 1, Healthy: 1, SameSpec: true, Failed: true, AutoRevert: true, Why: "exit 3"}, RolloutForgetHealthy, "version 1, which was healthy, has failed: exit 3"},
		{"what was gone back to runs", Rollout{Version: 4, Healthy: 1, SameSpec: true, AllRunning: true}, RolloutSetHealthy, "every instance runs version 4"},
	} {
		if got, why := c.in.Decide(); got != c.want || why != c.why {
			t.Errorf("%s: %s (%s), want %s (%s)", c.name, got, why, c.want, c.why)
		}
	}
}
