package job

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/alloc"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/override"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Command returns the command `nusa job`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	commands := append([]*cobra.Command{
		initCommand(s), validateCommand(s), planCommand(s), runCommand(s), statusCommand(s), alloc.JobLogsCommand(s), listCommand(s), exportCommand(s), explainCommand(s), scaleCommand(s), restartCommand(s), waitCommand(s), stopCommand(s), scheduleCommand(s), dispatchCommand(s),
		historyCommand(s), diffCommand(s), tagCommand(s), revertCommand(s), override.Command(s),
	}, steerCommands(s)...)
	c := cli.Noun("job", "Submit jobs, see where they run and why", commands...)
	s.Bind(c)
	s.BindNamespace(c)
	return c
}

// withRef runs a command about one job.
func withRef(s *cli.Settings, do func(context.Context, *cli.Session, *nusav1.JobRef, []string) error) func(*cobra.Command, []string) error {
	return s.Run(func(c *cli.Session, args []string) error {
		ref, err := c.Ref(args[0])
		if err != nil {
			return err
		}
		ctx, cancel := c.WithTimeout()
		defer cancel()
		return do(ctx, c, ref, args[1:])
	})
}
