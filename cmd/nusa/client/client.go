package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/alloc"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/audit"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/auth"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/bus"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/deadletter"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/find"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/intake"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/job"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/login"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/namespace"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/network"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/node"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/operator"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/pool"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/region"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/reservation"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/semaphore"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/server"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/service"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/spare"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/task"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/token"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/top"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/webhook"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/workflow"
	"github.com/nusa-scheduler/nusa/internal/serve"
)

// The groups of commands in the help.
const (
	groupWork  = "work"
	groupLook  = "look"
	groupRoles = "roles"
)

// Root returns the command nusa without sub-commands.
func Root() *cobra.Command {
	root := &cobra.Command{
		Use:   "nusa",
		Short: "A federated workload scheduler",
		Long: `Nusa schedules jobs over a federation of regions. It chooses regions by the
measured round trips between them and by their capacity, and explains each choice.

Exit codes: 0 done; 1 error; 2 accepted (or perhaps accepted, when no answer came),
but not running within --timeout; 3 accepted, and the job failed; 4 the new version
failed, and the job was taken back. job plan: 0 no change, 1 changes, 255 error.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       serve.Version,
		Args:          cobra.ArbitraryArgs,
		RunE:          cli.HelpOrUnknown,
	}
	cli.Instead(root, "job run", "run", "submit", "apply")
	cli.Instead(root, "job list", "list", "ls", "ps", "jobs")
	cli.Instead(root, "status", "describe", "find", "get")
	cli.Instead(root, "job stop", "stop", "rm", "delete")
	cli.Instead(root, "alloc logs", "logs")
	cli.Instead(root, "alloc exec", "exec")
	for name, here := range inOtherSchedulers {
		cli.Instead(root, here, name)
	}
	root.SetFlagErrorFunc(cli.FlagError)
	root.SetHelpCommand(helpCommand())
	root.SetHelpFunc(cli.Help)
	root.SetUsageFunc(cli.Usage)
	root.AddGroup(
		&cobra.Group{ID: groupWork, Title: "Jobs and machines:"},
		&cobra.Group{ID: groupLook, Title: "Network and events:"},
		&cobra.Group{ID: groupRoles, Title: "Run Nusa:"},
	)
	return root
}

// inOtherSchedulers are commands of Nomad, Slurm, Kubernetes and Argo, by what does the same here.
var inOtherSchedulers = map[string]string{
	"sbatch": "job run", "srun": "job run", "squeue": "job list", "scancel": "job stop", "sinfo": "node list", "sacct": "task list",
	"deployment": "job status", "rollout": "job status", "cp": "alloc fs cp", "scale": "job scale", "restart": "job restart", "drain": "node drain", "cordon": "node cordon",
	"dispatch": "job dispatch", "promote": "job promote", "revert": "job revert", "plan": "job plan", "validate": "job validate", "init": "job init",
	"nodes": "node list", "regions": "region list", "allocs": "alloc list", "tasks": "task list", "workflows": "workflow list", "schedule": "job schedule", "cron": "job schedule",
	"retry": "workflow retry", "redrive": "deadletter redrive", "dlq": "deadletter list",
}

// Commands returns the commands of the client, which the caller adds to Root.
func Commands() []*cobra.Command {
	all := []*cobra.Command{
		job.Command(), workflow.Command(), semaphore.Command(), deadletter.Command(), task.Command(), alloc.Command(), reservation.Command(), spare.Command(), namespace.Command(), region.Command(), node.Command(), pool.Command(), service.Command(), network.OriginCommand(), server.Command(), auth.Command(), token.Command(), operator.Command(),
		login.Command(), login.LogoutCommand(),
		find.Command(), top.Command(), uiCommand(), network.LatencyCommand(), network.TopologyCommand(), eventsCommand(), monitorCommand(), webhook.Command(), bus.Command(), intake.Command(), audit.Command(), versionCommand(),
	}
	for i, c := range all {
		c.GroupID = groupWork
		if i >= 18 {
			c.GroupID = groupLook
		}
	}
	return all
}

// Execute runs the command that the arguments of this process name, and returns the exit
// code. It prints errors to standard error.
func Execute(ctx context.Context, root *cobra.Command) int {
	cli.SetProgram(root, cli.ProgramName(os.Args[0]))
	return ExecuteArgs(ctx, root, os.Args[1:])
}

// ExecuteArgs does the same as Execute, but for the given arguments.
func ExecuteArgs(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	cmd, err := root, cli.UnknownCommand(root, args)
	if err == nil {
		cmd, err = root.ExecuteContextC(ctx)
	}
	if err == nil {
		return cli.ExitDone
	}
	var exit *cli.ExitError
	if errors.As(err, &exit) && exit.Err == nil {
		return exit.Code
	}
	for _, line := range cli.ErrorLines(err) {
		fmt.Fprintln(root.ErrOrStderr(), "nusa: "+line)
	}
	if exit != nil {
		return exit.Code
	}
	if code, err := strconv.Atoi(cmd.Annotations[cli.ErrorCodeKey]); err == nil {
		return code
	}
	return cli.ExitFail
}

// helpCommand returns a help command like that of cobra. An unknown command is an error.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND…]", Short: "Help about any command",
		ValidArgsFunction: func(c *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
			var out []cobra.Completion
			if of, rest, err := c.Root().Find(args); err == nil && len(rest) == 0 {
				for _, sub := range of.Commands() {
					if sub.IsAvailableCommand() && strings.HasPrefix(sub.Name(), begun) {
						out = append(out, cobra.CompletionWithDesc(sub.Name(), sub.Short))
					}
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			of, rest, err := c.Root().Find(args)
			if err != nil {
				return err
			}
			of.InitDefaultHelpFlag() // cobra adds the help flag only when a command runs
			return cli.HelpOrUnknown(of, rest)
		},
	}
}
