package main

import (
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
)

// TestHelpFits80Columns: no line of the help of any command is wider than a terminal of 80
// columns.
func TestHelpFits80Columns(t *testing.T) {
	checked := 0
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		if c.Name() == "completion" || c.HasParent() && c.Parent().Name() == "completion" {
			return // the texts of cobra
		}
		checked++
		var out strings.Builder
		c.SetOut(&out)
		c.InitDefaultHelpFlag()
		if err := c.Help(); err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(out.String()) {
			if n := ansi.StringWidth(strings.TrimRight(line, "\n")); n > cli.HelpWidth {
				t.Errorf("%s --help: a line of %d columns: %s", c.CommandPath(), n, line)
			}
		}
		for _, sub := range c.Commands() {
			check(sub)
		}
	}
	check(newRoot())
	if checked < 60 {
		t.Errorf("only %d commands", checked)
	}
}

// TestRoleHasNoOtherCommand: the command tree of a role has only that role, with the same help as in the whole tree.
func TestRoleHasNoOtherCommand(t *testing.T) {
	help := func(root *cobra.Command, role string) string {
		var out strings.Builder
		root.SetOut(&out)
		root.SetArgs([]string{role, "--help"})
		if err := root.ExecuteContext(t.Context()); err != nil {
			t.Error(err)
		}
		return out.String()
	}
	for role := range roles {
		alone := commands([]string{role, "--data-dir", "d"})
		if all := alone.Commands(); len(all) != 1 || all[0].Name() != role {
			t.Errorf("the tree of %s has %d commands", role, len(all))
		}
		if got, want := help(alone, role), help(newRoot(), role); got != want || want == "" {
			t.Errorf("%s --help:\n%s\nwant\n%s", role, got, want)
		}
	}
	for _, args := range [][]string{nil, {"job", "run"}, {"help", "global"}, {"--help", "global"}} {
		if got, want := len(commands(args).Commands()), len(newRoot().Commands()); got != want {
			t.Errorf("%v: %d commands, want %d", args, got, want)
		}
	}
}
