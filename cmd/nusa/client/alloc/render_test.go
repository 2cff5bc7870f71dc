package alloc

import (
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
)

// TestRendering shows every table from fixed messages, plain and in colour.
func TestRendering(t *testing.T) {
	sample.Render(t, []sample.Rendering{
		sample.Of("alloc list", func(w *term.Screen) { Write(w, sample.Allocs(), true) }),
		sample.Of("alloc status", func(w *term.Screen) { writeAlloc(w, sample.Alloc()) }),
	})
}
