package quorum

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

func TestLoggerFormatsLate(t *testing.T) {
	var out bytes.Buffer
	log := newLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	log.With("term", 3).Info("initial configuration", "servers", hclog.Fmt("%+v", []struct{ ID string }{{"a"}}))
	if line := out.String(); !strings.Contains(line, `term=3 servers=[{ID:a}]`) {
		t.Errorf("%s", line)
	}
}
