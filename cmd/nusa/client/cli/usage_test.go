package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestNearestCommandsAreSuggested: only the commands that are nearest to what was typed are suggested.
func TestNearestCommandsAreSuggested(t *testing.T) {
	root := &cobra.Command{Use: "nusa"}
	for _, name := range []string{"job", "ca", "node", "region", "regional", "events", "alloc"} {
		root.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	for typed, want := range map[string]string{
		"jb": "job", "jbo": "job", "jab": "job", "JOBS": "job", "jobb": "job", "nde": "node", "evnt": "events", "re": "region regional", "regoin": "region",
		"ac": "ca", "x": "", "xy": "", "namespace": "", "": "",
	} {
		if got := strings.Join(nearCommands(root, typed), " "); got != want {
			t.Errorf("%q: %q, want %q", typed, got, want)
		}
	}
}
