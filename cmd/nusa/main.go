// Command nusa is every role of the federation and the client that looks at
// it: `nusa global`, `nusa regional` and `nusa agent` run a tier, `nusa dev`
// runs all of them, everything else talks to a running federation.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/agent/supervise"
	"github.com/nusa-scheduler/nusa/cmd/nusa/bench"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client"
)

func main() {
	// A supervisor is started for every task: it takes the short way, past the
	// command line's machinery.
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		os.Exit(supervise.Main(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// A second signal ends the process at once, should an orderly end hang.
	context.AfterFunc(ctx, stop)
	code := client.Execute(ctx, newRoot())
	stop()
	os.Exit(code)
}

// newRoot is the command tree. client.Execute runs it and turns errors into
// one line and an exit code.
func newRoot() *cobra.Command {
	root := client.Root()
	root.AddCommand(client.Commands()...)
	root.AddCommand(globalCommand(), regionalCommand(), agentCommand(), devCommand(), demoCommand(), configCommand())
	root.AddCommand(bench.Command(func(ctx context.Context, args []string) int { return client.ExecuteArgs(ctx, newRoot(), args) }))
	return root
}
