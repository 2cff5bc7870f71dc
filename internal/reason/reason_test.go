package reason

import (
	"strings"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestEveryReasonHasWords: every reason has a text, so that users do not see the names of
// enumeration values.
func TestEveryReasonHasWords(t *testing.T) {
	for n, name := range nusav1.Reason_name {
		r := nusav1.Reason(n)
		if r == nusav1.Reason_REASON_UNSPECIFIED {
			continue
		}
		if words[r] == "" {
			t.Errorf("%s has no words", name)
		}
		if strings.Contains(strings.ReplaceAll(Text(r), "max_runtime", ""), "_") {
			t.Errorf("%s is said as %q", name, Text(r))
		}
	}
}

func TestWith(t *testing.T) {
	cpu := nusav1.Reason_REASON_INSUFFICIENT_CPU
	for _, c := range []struct {
		reason        nusav1.Reason
		message, want string
	}{
		{0, "", ""},
		{0, "because", "because"},
		{cpu, "", "not enough cpu"},
		{cpu, "needs 4 cores", "not enough cpu: needs 4 cores"},
		{cpu, "not enough cpu: needs 4 cores", "not enough cpu: needs 4 cores"},
		{999, "", "999"},
	} {
		if got := WithMessage(c.reason, c.message); got != c.want {
			t.Errorf("With(%v, %q) = %q, want %q", c.reason, c.message, got, c.want)
		}
	}
}

func TestMessageMayBeginWithAReason(t *testing.T) {
	for message, want := range map[string]bool{
		"": false, "not enough cpu": true, "not enough cpu: needs 64": true, "not enough cpus": false,
		"a driver that it needs is missing: has no driver docker": true, "none of its nodes has room for one more": false,
	} {
		if Begins(message) != want {
			t.Errorf("%q: %v, want %v", message, !want, want)
		}
	}
}
