package term_test

import (
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
)

func TestFitCutsAtTheWidth(t *testing.T) {
	p := term.Palette{On: true}
	line := p.Good("running") + "  2 " + p.Wait("pending") + " waits: " + strings.Repeat("x", 100)
	for _, c := range []struct {
		line  string
		width int
		want  string
	}{
		{line, 20, "running  2 pending…"},
		{line, 200, sample.Strip(line)},
		{line, 1, "…"}, {line, 0, "…"}, {line, -3, "…"},
		{"世界世界", 8, "世界世…"},
		{"世界世界", 9, "世界世界"},
		// Some terminals show this emoji in two columns, some in six.
		{"👨‍👩‍👧xyz", 6, "…"},
		{"e\u0301xyz", 5, "e\u0301xyz"},
	} {
		if got := sample.Strip(term.Fit(c.line, c.width)); got != c.want {
			t.Errorf("%q in %d columns: got %q, want %q", sample.Strip(c.line), c.width, got, c.want)
		}
	}
}

// TestCoresAreExact: even one millicore is shown.
func TestCoresAreExact(t *testing.T) {
	for milli, want := range map[int64]string{0: "0", 1: "0.001", 10: "0.01", 250: "0.25", 1005: "1.005", 64_000: "64", 12_345_678: "12345.678"} {
		if got := term.Cores(milli); got != want {
			t.Errorf("%d: %q, want %q", milli, got, want)
		}
	}
}

// TestWholeCommands: a note ends no line within a command, so that a terminal's user can copy it.
func TestWholeCommands(t *testing.T) {
	command := "nusa job status a-rather-long-name"
	for _, width := range []int{0, 40, 60, 80} {
		var out strings.Builder
		w := &term.Screen{Writer: &out, Width: width}
		w.Note("", "default/a-rather-long-name is stopping; follow it with: "+term.Whole(command))
		if !strings.Contains(out.String(), command) {
			t.Errorf("%d columns: %q", width, out.String())
		}
	}
}
