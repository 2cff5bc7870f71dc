package alloc

import (
	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
)

// Command returns the command `nusa alloc`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("alloc", "Look at instances and their files, stop and restart them, read their logs, run commands",
		listCommand(s), statusCommand(s), statsCommand(s), stopCommand(s), restartCommand(s), signalCommand(s), logsCommandOfAlloc(s), execCommand(s), filesCommand(s))
	s.Bind(c)
	s.BindNamespace(c)
	return c
}
