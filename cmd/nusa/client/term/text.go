package term

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// OneLine returns a text on one line, without characters that could move the cursor. The
// text may come from other programs, which are not trusted.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, strings.Join(strings.Fields(s), " "))
}

// Clip returns a value as one line. On a terminal it cuts a long line.
func Clip(w *Screen, s string) string {
	s = strings.ReplaceAll(strings.TrimSpace(s), "\n", "⏎")
	if r := []rune(s); w.Width > 0 && len(r) > clipped {
		return string(r[:clipped]) + "…"
	}
	return s
}

// clipped is the number of characters after which Clip cuts a line.
const clipped = 80

// LabelText returns the labels as texts KEY=VALUE, sorted.
func LabelText(l map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(l)) {
		parts = append(parts, k+"="+l[k])
	}
	return strings.Join(parts, " ")
}

// Word returns the name of an enumeration's value in words. For example,
// REASON_RTT_TOO_HIGH of Reason is "rtt too high". Word returns "" for an unspecified
// value.
func Word(e protoreflect.Enum) string {
	v := e.Descriptor().Values().ByNumber(e.Number())
	if v == nil {
		return fmt.Sprintf("unknown (%d)", e.Number())
	}
	zero := string(e.Descriptor().Values().ByNumber(0).Name())
	prefix := strings.TrimSuffix(strings.TrimSuffix(zero, "UNSPECIFIED"), "UNKNOWN")
	if e.Number() == 0 && strings.HasSuffix(zero, "UNSPECIFIED") {
		return ""
	}
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix)), "_", " ")
}

// Why joins a reason and its message. It omits the reason if the message contains it.
func Why(r nusav1.Reason, message string) string {
	message = OneLine(message)
	// For example, the message "task t exited with code 7" contains the reason "it exited".
	if text := strings.TrimPrefix(reason.Text(r), "it "); text != "" && strings.Contains(message, text) {
		return message
	}
	return reason.WithMessage(r, message)
}

// Unique returns the texts without repetitions, in the order of their first appearance.
func Unique(all []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, s := range all {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}
