package ends

import "testing"

func TestOutcome(t *testing.T) {
	steps := func(ends ...string) []Step {
		all := []Step{{Name: "a", When: true}, {Name: "b", Depends: "a.failed", When: true}, {Name: "c", Depends: "a.succeeded && b.skipped || b.succeeded", When: true}, {Name: "x", When: true}}
		for i, end := range ends {
			all[i].End = end
		}
		return all
	}
	for _, c := range []struct {
		ends  []string
		want  string
		wrong bool
	}{
		{[]string{"succeeded", "skipped", "succeeded", "succeeded"}, "succeeded", false},
		{[]string{"succeeded", "skipped", "skipped", "succeeded"}, "succeeded", true},
		{[]string{"failed", "succeeded", "succeeded", "succeeded"}, "succeeded", false},
		{[]string{"failed", "failed", "skipped", "succeeded"}, "failed", false},
		{[]string{"failed", "skipped", "skipped", "succeeded"}, "failed", true},
		{[]string{"succeeded", "skipped", "timed_out", "succeeded"}, "failed", false},
		{[]string{"succeeded", "skipped", "succeeded", "failed"}, "failed", false},
		{[]string{"succeeded", "succeeded", "succeeded", "succeeded"}, "succeeded", true},
	} {
		all := steps(c.ends...)
		if got := Outcome(all, "x"); got != c.want {
			t.Errorf("%v: %s, want %s", c.ends, got, c.want)
		}
		if got := Wrong(all, "x"); (got != "") != c.wrong {
			t.Errorf("%v: %q", c.ends, got)
		}
	}
}
