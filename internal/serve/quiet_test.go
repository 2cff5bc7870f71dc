package serve_test

import (
	"context"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/internal/serve"
)

// TestWarningsAreQuietAfterTheEnd: warnings are logged as warnings until the context ends,
// also by derived loggers.
func TestWarningsAreQuietAfterTheEnd(t *testing.T) {
	for level, want := range map[string]string{
		"warn":  "WARN before a=1",
		"debug": "WARN before a=1|DEBUG after a=1",
	} {
		var out strings.Builder
		l, err := serve.NewLogger(level, "text", &out)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		l = serve.QuietAfter(ctx, l).With("a", 1)
		l.Warn("before")
		cancel()
		l.Warn("after")
		var got []string
		for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
			_, line, _ = strings.Cut(line, " level=")
			got = append(got, strings.Replace(line, "msg=", "", 1))
		}
		if strings.Join(got, "|") != want {
			t.Errorf("at level %s: %q, want %q", level, got, want)
		}
	}
}
