package webhook

import "testing"

// TestOutcome: a status is printed once.
func TestOutcome(t *testing.T) {
	for _, c := range []struct {
		code        int32
		fault, want string
	}{
		{200, "", "status 200"},
		{410, "status 410 Gone", "status 410 Gone"},
		{302, "status 302: redirects are not followed", "status 302: redirects are not followed"},
		{200, "the body ended early", "status 200: the body ended early"},
		{0, "connection refused", "no response: connection refused"},
	} {
		if got := outcome(c.code, c.fault); got != c.want {
			t.Errorf("outcome(%d, %q) = %q, want %q", c.code, c.fault, got, c.want)
		}
	}
}
