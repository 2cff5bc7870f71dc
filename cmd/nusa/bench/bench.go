package bench

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/bench/report"
)

// Command is `nusa bench`. execute runs the command line of nusa in this
// process, for the servers that are to write profiles.
func Command(execute func(ctx context.Context, args []string) int) *cobra.Command {
	c := &cobra.Command{
		Use: "bench", Short: "Measure how fast a region and an agent are, and how well round trips are predicted",
		GroupID: "roles", Args: cobra.NoArgs,
	}
	c.AddCommand(regionCommand(), agentCommand(), topologyCommand(), profiledCommand(execute))
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
