package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/bench/report"
)

// Command returns the command `nusa bench`. execute runs a command line of nusa in this
// process. bench uses it to start the servers that it profiles.
func Command(execute func(ctx context.Context, args []string) int) *cobra.Command {
	c := &cobra.Command{
		Use: "bench", Short: "Measure a region, a federation, an agent, failover, and the prediction of round trips",
		GroupID: "roles", Args: cobra.NoArgs,
	}
	c.AddCommand(regionCommand(), reservationsCommand(), agentCommand(), topologyCommand(), failoverCommand(), failoverTaskCommand(), failoverMovesCommand(), failoverCostCommand(),
		federationCommand(), workflowsCommand(), federationEtcdCommand(), federationPartsCommand(), profiledCommand(execute))
	return c
}

// measure runs a measurement and prints its result. On a terminal it also shows a line of
// progress.
func measure[R interface {
	comparable
	Table(io.Writer) error
}](cmd *cobra.Command, out report.Output, progress *func(string), run func() (R, error)) error {
	if term.IsTerminal(os.Stderr.Fd()) {
		*progress = func(s string) { fmt.Fprintf(os.Stderr, "\r\x1b[K%s", s) } // overwrites the line
	}
	r, err := run()
	if *progress != nil {
		(*progress)("")
	}
	var none R
	if r != none { // the result may come with an error
		err = errors.Join(out.Print(cmd.OutOrStdout(), r, r.Table), err)
	}
	return err
}

// bindOutput defines the flag --output.
func bindOutput(cmd *cobra.Command, out *report.Output) {
	cmd.Flags().StringVarP((*string)(out), "output", "o", "table", "table, json or yaml")
}
