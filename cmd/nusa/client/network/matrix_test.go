package network

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
)

// TestMatrixFitsTheTerminal: no line of a matrix or list wraps at any width. Each matrix or list
// says how to see the rest.
func TestMatrixFitsTheTerminal(t *testing.T) {
	for _, regions := range []int{2, 8, 9, 20, 51, 200} {
		for _, width := range []int{60, 80, 120, 300} {
			for _, all := range []bool{false, true} {
				var b strings.Builder
				w := &term.Screen{Writer: &b, Palette: term.Palette{On: true}, Now: sample.Noon, Program: "nusa", Width: width}
				writeMatrix(w, sample.FederationOf(regions), latencyOptions{percentile: 50, all: all})
				text := sample.Strip(b.String())
				for _, line := range strings.Split(text, "\n")[1:] { // the first line is the title
					if n := len([]rune(line)); n > width && !strings.HasPrefix(line, "region-") {
						t.Errorf("%d regions in %d columns: a line of %d: %s", regions, width, n, line)
					}
				}
				if listed := strings.Contains(text, "NEAREST"); listed == all && listed || listed != strings.Contains(text, "--all") {
					t.Errorf("%d regions in %d columns: a list: %v, all: %v", regions, width, listed, all)
				}
				if last := fmt.Sprintf("region-%02d", regions); !strings.Contains(text, last) {
					t.Errorf("%d regions in %d columns: %s is missing", regions, width, last)
				}
			}
		}
	}
}
