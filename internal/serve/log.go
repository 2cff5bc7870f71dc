package serve

import (
	"fmt"
	"io"
	"log"
	"log/slog"
)

// NewLogger returns a logger that writes to w. The level is debug, info, warn or error,
// and the format is text or json.
func NewLogger(level, format string, w io.Writer) (*slog.Logger, error) {
	var l slog.Level
	switch level {
	case "debug", "info", "warn", "error":
		if err := l.UnmarshalText([]byte(level)); err != nil {
			return nil, fmt.Errorf("log level %q: %w", level, err)
		}
	default:
		return nil, fmt.Errorf("log level %q: not one of debug, info, warn, error", level)
	}
	opts := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("log format %q: not one of text, json", format)
}

// slogError returns a logger for the errors of package net/http.
func slogError(l *slog.Logger) *log.Logger {
	return slog.NewLogLogger(l.Handler(), slog.LevelWarn)
}
