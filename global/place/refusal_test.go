package place

import "testing"

// TestRefusalOfOwnedInstances: while every instance has an owner, a region refuses the group only if no node there
// accepts a version that instances have or get. A version that is held back does not count.
func TestRefusalOfOwnedInstances(t *testing.T) {
	stable := Group{Name: "web", Count: 4}
	for name, test := range map[string]struct {
		hold             string
		canaryFrom       int
		present, earlier string
		want             string
	}{
		"the held version is refused":              {"it failed", 0, "new", "", ""},
		"the earlier one is refused":               {"it failed", 0, "", "old", "old"},
		"canaries have the held version":           {"canaries", 3, "new", "", "new"},
		"the version that all get is refused":      {"", 0, "new", "", "new"},
		"nothing has the earlier version":          {"", 0, "", "old", ""},
		"canaries are accepted, the others not":    {"canaries", 3, "", "old", "old"},
		"neither version is refused while it runs": {"", 0, "", "", ""},
	} {
		g := Group{Name: "web", Count: 4, CanaryFrom: test.canaryFrom, UnchangedSince: 2}
		if test.present != "" {
			g.Refused = map[string]string{"osa": test.present}
		}
		if test.earlier != "" {
			g.RefusedStable = map[string]string{"osa": test.earlier}
		}
		j := &Job{Name: "web", Type: Service, Version: 2, RolloutHold: test.hold, Groups: []Group{g}, Stable: &Job{Version: 1, Type: Service, Groups: []Group{stable}}}
		w := &work{job: j, group: &j.Groups[0]}
		if got := w.refusal("osa"); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
