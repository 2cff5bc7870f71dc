package node

import (
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
)

// TestRendering shows every table from fixed messages, plain and in colour.
func TestRendering(t *testing.T) {
	sample.Render(t, []sample.Rendering{
		sample.Of("node list", func(w *term.Screen) { writeNodes(w, sample.Nodes(), "") }),
		sample.Of("node status", func(w *term.Screen) { writeNode(w, sample.Nodes()[0]) }),
		sample.Of("node status, lost", func(w *term.Screen) { writeNode(w, sample.Nodes()[1]) }),
	})
}
