package serve

import (
	"context"
	"log/slog"
)

// QuietAfter returns a logger for a library that does not know when its user stops. After
// ctx has ended, the library's warnings, for example about closed connections, are logged
// at debug level.
func QuietAfter(ctx context.Context, l *slog.Logger) *slog.Logger {
	return slog.New(endedHandler{Handler: l.Handler(), ended: ctx.Done()})
}

type endedHandler struct {
	slog.Handler
	ended <-chan struct{}
}

// level returns the level at which a record of level l is logged now.
func (q endedHandler) level(l slog.Level) slog.Level {
	select {
	case <-q.ended:
		return min(l, slog.LevelDebug)
	default:
		return l
	}
}

// Enabled implements slog.Handler.
func (q endedHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return q.Handler.Enabled(ctx, q.level(l))
}

// Handle implements slog.Handler.
func (q endedHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = q.level(r.Level)
	if !q.Handler.Enabled(ctx, r.Level) {
		return nil // ctx ended after Enabled was called
	}
	return q.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (q endedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	q.Handler = q.Handler.WithAttrs(attrs)
	return q
}

// WithGroup implements slog.Handler.
func (q endedHandler) WithGroup(name string) slog.Handler {
	q.Handler = q.Handler.WithGroup(name)
	return q
}
