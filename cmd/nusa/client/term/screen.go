package term

import (
	"io"
	"os"
	"time"

	"github.com/charmbracelet/x/term"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Screen is where a command prints text for people. It has everything that the text depends
// on, except the message that is printed.
type Screen struct {
	io.Writer
	Palette
	Now time.Time
	// Program is the name of this binary in hints.
	Program string
	// Width is the width of the terminal in columns. It is 0 if there is no terminal.
	Width int
}

// Onto returns a copy of the screen that prints to another writer.
func (w *Screen) Onto(to io.Writer) *Screen {
	other := *w
	other.Writer = to
	return &other
}

// Since returns the age of a server's time stamp, by the clock of this machine.
func (w *Screen) Since(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return Duration(w.Now.Sub(t.AsTime()))
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(f.Fd())
}

// TerminalWidth returns the number of columns of a terminal, or 80 if the number is
// unknown.
func TerminalWidth(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(f.Fd()); err == nil && width > 0 {
			return width
		}
	}
	return 80
}

// TerminalHeight returns the number of lines of a terminal, or 24 if the number is unknown.
func TerminalHeight(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if _, height, err := term.GetSize(f.Fd()); err == nil && height > 0 {
			return height
		}
	}
	return 24
}
