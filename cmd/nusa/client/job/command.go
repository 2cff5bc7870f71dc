package job

import (
	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/alloc"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
)

// Command returns the command `nusa job`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	commands := append([]*cobra.Command{
		initCommand(s), validateCommand(s), planCommand(s), runCommand(s), statusCommand(s), alloc.JobLogsCommand(s), listCommand(s), exportCommand(s), explainCommand(s), scaleCommand(s), restartCommand(s), waitCommand(s), stopCommand(s), adoptCommand(s), scheduleCommand(s), dispatchCommand(s),
		historyCommand(s), diffCommand(s), tagCommand(s), revertCommand(s),
	}, steerCommands(s)...)
	c := cli.Noun("job", "Submit jobs, see where they run and why", commands...)
	s.Bind(c)
	s.BindNamespace(c)
	return c
}
