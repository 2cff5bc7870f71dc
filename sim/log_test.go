package sim_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"
)

// lines writes a logger's lines to the test's output.
type lines struct{ t *testing.T }

func (l lines) Write(p []byte) (int, error) {
	fmt.Fprint(l.t.Output(), string(p))
	return len(p), nil
}

// newTestLogger logs with the bubble's virtual time, from its beginning.
func newTestLogger(t *testing.T) *slog.Logger {
	began := time.Now()
	return slog.New(slog.NewTextHandler(lines{t}, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Duration("t", time.Since(began))
			}
			return a
		},
	}))
}
