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
