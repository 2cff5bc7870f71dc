package place

import "testing"

func TestJudgeRollouts(t *testing.T) {
	for _, c := range []struct {
		name string
		in   Rollout
		want Verdict
		why  string
	}{
		{"nothing is known yet", Rollout{Version: 1}, Keep, ""},
		{"the first version runs", Rollout{Version: 1, Whole: true}, Remember, "every instance runs version 1"},
		{"and goes on", Rollout{Version: 1, Healthy: 1, Same: true, Whole: true}, Keep, ""},
		{"the first version fails", Rollout{Version: 1, Failed: true, AutoRevert: true, Why: "exit 3"}, Keep, ""},
		{"a rollout goes on", Rollout{Version: 2, Healthy: 1, AutoRevert: true}, Keep, ""},
		{"a rollout fails", Rollout{Version: 3, Healthy: 1, Failed: true, AutoRevert: true, Why: "exit 3"}, Revert, "version 3 failed: exit 3"},
		{"only a group fails that does not ask for it", Rollout{Version: 3, Healthy: 1, Failed: true, Why: "exit 3"}, Keep, ""},
		{"what was gone back to fails", Rollout{Version: 4, Healthy: 1, Same: true, Failed: true, AutoRevert: true, Why: "exit 3"}, Forget, "version 1, which was healthy, has failed: exit 3"},
		{"it fails after it was healthy", Rollout{Version: 1, Healthy: 1, Same: true, Failed: true, AutoRevert: true, Why: "exit 3"}, Forget, "version 1, which was healthy, has failed: exit 3"},
		{"what was gone back to runs", Rollout{Version: 4, Healthy: 1, Same: true, Whole: true}, Remember, "every instance runs version 4"},
	} {
		if got, why := c.in.Judge(); got != c.want || why != c.why {
			t.Errorf("%s: %s (%s), want %s (%s)", c.name, got, why, c.want, c.why)
		}
	}
}
