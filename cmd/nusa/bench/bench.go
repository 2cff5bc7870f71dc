package bench

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/bench/report"
)

// Command returns `nusa bench`. execute runs a command line of nusa in this process; the
// profiled servers need it.
func Command(execute func(ctx context.Context, args []string) int) *cobra.Command {
	c := &cobra.Command{
		Use: "bench", Short: "Measure a region, a federation, an agent, failover, and the prediction of round trips",
		GroupID: "roles", Args: cobra.NoArgs,
	}
	c.AddCommand(regionCommand(), agentCommand(), topologyCommand(), failoverCommand(), failoverTaskCommand(),
		federationCommand(), federationEtcdCommand(), profiledCommand(execute))
	return c
}

// progressLine overwrites one line of a terminal.
func progressLine(w io.Writer) func(string) {
	return func(s string) { fmt.Fprintf(w, "\r\x1b[K%s", s) }
}

// bindOutput defines the flag --output.
func bindOutput(cmd *cobra.Command, out *report.Output) {
	cmd.Flags().StringVarP((*string)(out), "output", "o", "table", "table, json or yaml")
}
