package alloc

import (
	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
)

// Command returns the command `nusa alloc`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("alloc", "Look at instances, stop them, read their logs, run commands in them",
		listCommand(s), statusCommand(s), statsCommand(s), stopCommand(s), logsCommandOfAlloc(s), execCommand(s))
	s.Bind(c)
	s.BindNamespace(c)
	return c
}
