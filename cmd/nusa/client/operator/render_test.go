package operator

import (
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRendering shows what the commands print. The line of members of a partial answer differs from
// that of a complete one, for which scripts wait.
func TestRendering(t *testing.T) {
	all := &nusav1.AuthorityStatus{Version: 1, Phase: "trust", Converged: 3}
	part := &nusav1.AuthorityStatus{Version: 1, Phase: "trust", Converged: 3, Errors: []*nusav1.PartialError{{Region: "jakarta"}}}
	sample.Render(t, []sample.Rendering{
		sample.Of("keys ca status", func(w *term.Screen) { printAuthority(w, "nusa", all) }),
		sample.Of("keys ca status, without a region", func(w *term.Screen) { printAuthority(w, "nusa", part) }),
	})
}
