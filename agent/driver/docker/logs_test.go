package docker

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestLineEnds: the last lines begin at the same place whether the stream is read in pieces
// or as a whole.
func TestLineEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.SampledFrom([]rune("ab\n")), 0, 40, -1).Draw(t, "text")
		lines := rapid.IntRange(1, 12).Draw(t, "lines")
		var l lineEnds
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			l.add([]byte(rest[:n]), lines)
			rest = rest[n:]
		}
		all := strings.SplitAfter(text, "\n")
		if all[len(all)-1] == "" {
			all = all[:len(all)-1]
		}
		want := strings.Join(all[max(0, len(all)-lines):], "")
		if got := text[l.start(lines):]; got != want {
			t.Fatalf("the last %d lines of %q: got %q, want %q", lines, text, got, want)
		}
		if len(l.ends) > lines+1 {
			t.Fatalf("%d places are kept for %d lines", len(l.ends), lines)
		}
	})
}
