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

// TestNextStepsOfMistakes: a missing argument and an unknown flag name what the user may have wanted.
func TestNextStepsOfMistakes(t *testing.T) {
	for line, want := range map[string]string{
		"job status":       "JOB is missing; usage: nusa job status JOB; `nusa job list` shows them",
		"bus show":         "NAME is missing; usage: nusa bus show NAME; `nusa bus list` shows them",
		"bus list x":       "\"x\": this command takes no arguments; see nusa bus list --help",
		"bus list --stat":  "unknown flag --stat, did you mean --state?",
		"bus list --x":     "unknown flag --x: see nusa bus list --help",
		"bus list -x":      "unknown flag -x: see nusa bus list --help",
		"bus list --wrong": "unknown flag --wrong: see nusa bus list --help",
	} {
		verb := func(use string, names ...string) *cobra.Command {
			return &cobra.Command{Use: use, Args: Positional(names...), RunE: func(*cobra.Command, []string) error { return nil }}
		}
		list := verb("list")
		list.Flags().String("state", "", "")
		root := &cobra.Command{Use: "nusa", SilenceErrors: true, SilenceUsage: true}
		root.SetFlagErrorFunc(FlagError)
		root.AddCommand(Noun("job", "", verb("status JOB", "JOB")), Noun("bus", "", verb("show NAME", "NAME"), list))
		root.SetArgs(strings.Fields(line))
		if err := root.Execute(); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
}
