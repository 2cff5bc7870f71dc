package logtap

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"unicode/utf8"
)

// Logger returns a logger that logs as l does, and whose records the followers get, too. If l is nil, only
// the followers get them.
func (t *Tap) Logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	return slog.New(handler{next: l.Handler(), tap: t})
}

// handler passes records on and gives them to the followers.
type handler struct {
	next slog.Handler
	tap  *Tap
	// prefix is the names of the groups, each with a dot.
	prefix     string
	attributes []Attribute
}

// Enabled implements slog.Handler.
func (h handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.tap.wants(level) || h.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if h.tap.wants(r.Level) {
		out := Record{Time: r.Time, Level: r.Level, Message: clip(r.Message), Attributes: slices.Clone(h.attributes)}
		r.Attrs(func(a slog.Attr) bool {
			out.Attributes = add(out.Attributes, h.prefix, a)
			return true
		})
		h.tap.give(out)
	}
	if !h.next.Enabled(ctx, r.Level) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.next = h.next.WithAttrs(attrs)
	h.attributes = slices.Clip(h.attributes)
	for _, a := range attrs {
		h.attributes = add(h.attributes, h.prefix, a)
	}
	return h
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler {
	h.next = h.next.WithGroup(name)
	if name != "" {
		h.prefix += name + "."
	}
	return h
}

// add adds an attribute, or those of a group.
func add(to []Attribute, prefix string, a slog.Attr) []Attribute {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, inner := range v.Group() {
			to = add(to, prefix, inner)
		}
		return to
	}
	if a.Equal(slog.Attr{}) || len(to) >= maxAttributes {
		return to
	}
	return append(to, Attribute{clip(prefix + a.Key), clip(v.String())})
}

// clip returns a text as valid UTF-8 with at most maxText bytes.
func clip(s string) string {
	if len(s) > maxText {
		end := maxText - len("…")
		for end > 0 && !utf8.RuneStart(s[end]) {
			end--
		}
		s = s[:end] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
