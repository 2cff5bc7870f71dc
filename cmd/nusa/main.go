package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/agent/supervise"
	"github.com/nusa-scheduler/nusa/cmd/nusa/bench"
	"github.com/nusa-scheduler/nusa/cmd/nusa/ca"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client"
)

func main() {
	// Only `nusa bench profiled` writes heap profiles, and sets the rate again. Without profiles, the stacks of
	// allocations take no memory.
	runtime.MemProfileRate = 0
	// A supervisor is started for every task, so it does not wait for the set-up of the
	// commands.
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		os.Exit(supervise.Main(os.Args[2:]))
	}
	// The master makes an id for every instance that it places, so the random bytes of
	// several ids are read at once.
	uuid.EnableRandPool()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// A second signal ends the process at once, in case the regular end hangs.
	context.AfterFunc(ctx, stop)
	code := client.Execute(ctx, commands(os.Args[1:]))
	stop()
	os.Exit(code)
}

// roles are the commands of the servers and of the agent, by name.
var roles = map[string]func() *cobra.Command{
	"global": globalCommand, "agent": agentCommand,
	"regional": func() *cobra.Command {
		c := regionalCommand()
		c.AddCommand(restoreCommand())
		return c
	},
}

// commands returns the command tree for arguments. A role runs for months, so the tree of a role has no other
// command: all commands take two megabytes.
func commands(args []string) *cobra.Command {
	if len(args) > 0 && roles[args[0]] != nil {
		root := client.Root()
		root.AddCommand(roles[args[0]]())
		return root
	}
	return newRoot()
}

// newRoot returns the command tree. client.Execute runs the tree and prints
// errors.
func newRoot() *cobra.Command {
	root := client.Root()
	root.AddCommand(client.Commands()...)
	authority := ca.Command()
	authority.GroupID = rolesGroup
	root.AddCommand(roles["global"](), roles["regional"](), roles["agent"](), devCommand(), demoCommand(), configCommand(), authority)
	root.AddCommand(bench.Command(func(ctx context.Context, args []string) int { return client.ExecuteArgs(ctx, commands(args), args) }))
	return root
}
