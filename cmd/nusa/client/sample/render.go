package sample

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/golden"
)

// Rendering is a text for people. Its name is the command that shows the text.
type Rendering struct {
	Name string
	Show func(w *term.Screen)
}

// Of returns a Rendering.
func Of(name string, show func(w *term.Screen)) Rendering { return Rendering{Name: name, Show: show} }

// colourScale is the legend below round trips. Only output with colours has it.
const colourScale = "< 30  < 80  < 150  < 250  ≥ 250\n"

// Render compares all renderings with testdata/render.txt, and the renderings with colours
// with testdata/render.colour.txt. The time is Noon, and the width is unlimited. Colours
// must not change the text.
func Render(t *testing.T, all []Rendering) {
	t.Helper()
	plain, colour := render(all, false), render(all, true)
	if strings.Contains(plain, "\x1b") || !strings.Contains(colour, "\x1b") {
		t.Error("there are colours where none were asked for, or none where they were")
	}
	if text := strings.ReplaceAll(Strip(colour), colourScale, ""); text != plain {
		t.Errorf("colours change the text:\n%s", golden.Diff(plain, text))
	}
	golden.File(t, "testdata/render.txt", plain)
	golden.File(t, "testdata/render.colour.txt", strings.ReplaceAll(colour, "\x1b", "␛"))
}

func render(all []Rendering, colour bool) string {
	var b strings.Builder
	for _, r := range all {
		fmt.Fprintf(&b, "=== %s\n", r.Name)
		r.Show(Screen(&b, colour, 0))
	}
	return b.String()
}

// Screen returns a screen at Noon with a number of columns. 0 means that there is no
// terminal.
func Screen(b *strings.Builder, colour bool, columns int) *term.Screen {
	return &term.Screen{Writer: b, Palette: term.Palette{On: colour}, Now: Noon, Program: "nusa", Width: columns}
}

// Strip removes the colours of a text.
func Strip(s string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, "\x1b[")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		_, s, _ = strings.Cut(after, "m")
	}
}
