package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client"
	"github.com/nusa-scheduler/nusa/cmd/nusa/dev"
	"github.com/nusa-scheduler/nusa/internal/serve"
)

// devFlags binds what `nusa dev` and `nusa demo` share.
func devFlags(cmd *cobra.Command, o *dev.Options, logLevel *string) {
	f := cmd.Flags()
	f.StringSliceVar(&o.Regions, "regions", dev.DefaultRegions, "regions, by the names of the round-trip table")
	f.IntVar(&o.Servers, "servers", 1, "regional servers in each region, 1..5")
	f.IntVar(&o.Agents, "agents", 3, "agents in each region, 1..50")
	f.StringVar(&o.WAN, "wan", "azure", "round trips between the regions: azure, none, or a CSV matrix FILE in ms")
	f.IntVar(&o.Port, "port", 7600, "first port; a hundred are used for the global server and for each region")
	f.StringVar(logLevel, "log-level", "warn", "of the roles, on standard error: debug, info, warn or error")
	cmd.Args = cobra.NoArgs
}

func devCommand() *cobra.Command {
	var o dev.Options
	var logLevel string
	cmd := &cobra.Command{
		Use:     "dev",
		Short:   "Run a whole federation in this process: try Nusa on one machine",
		GroupID: rolesGroup,
		Long: `Runs one global server with embedded etcd and, for each region, its servers and
agents, over real sockets on loopback. The round trips between the regions are
those of a measured table (--wan). Ctrl-C ends everything, tasks included.`,
		Example: "  nusa dev\n  nusa dev --regions southeastasia,westeurope --servers 3 --data-dir ./federation",
	}
	devFlags(cmd, &o, &logLevel)
	cmd.Flags().StringVar(&o.DataDir, "data-dir", "", "keep jobs and nodes here for the next start (default: a temporary directory)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		out := cmd.OutOrStdout()
		o.Ready = func(f dev.Federation) { announce(out, o, f) }
		return runDev(cmd.Context(), o, logLevel)
	}
	return cmd
}

func runDev(ctx context.Context, o dev.Options, logLevel string) (err error) {
	if o.Logger, err = serve.NewLogger(logLevel, "text", os.Stderr); err != nil {
		return fmt.Errorf("--log-level: %w", err)
	}
	// Options read a zero as "the default"; a flag that says zero means it.
	for flag, value := range map[string]int{"--servers": o.Servers, "--agents": o.Agents, "--port": o.Port} {
		if value == 0 {
			return fmt.Errorf("%s: must be at least 1", flag)
		}
	}
	o.Version = serve.Version
	return dev.Run(ctx, o)
}

func announce(w io.Writer, o dev.Options, f dev.Federation) {
	fmt.Fprintf(w, "Nusa federation ready in %s: %d regions, %d servers, %d agents, round trips: %s\n",
		f.Started.Round(10*time.Millisecond), len(o.Regions), len(o.Regions)*o.Servers, len(o.Regions)*o.Agents, f.WAN)
	fmt.Fprintf(w, "  API   %s\n  HTTP  http://%s/metrics\n  data  %s\n\nIn another terminal:\n", f.Addr, f.HTTP, f.DataDir)
	prefix := ""
	if f.Addr != client.DefaultAddr {
		prefix = "export NUSA_ADDR=" + f.Addr + "\n  "
	}
	fmt.Fprintf(w, "  %snusa job run examples/hello.yaml\n  nusa latency\n\nCtrl-C stops everything.\n", prefix)
}

func demoCommand() *cobra.Command {
	var o dev.Options
	var logLevel, file string
	cmd := &cobra.Command{
		Use:     "demo",
		Short:   "Show a federation at work: start one, run a job, explain it",
		GroupID: rolesGroup,
		Long: `Starts what 'nusa dev' starts, with a temporary data directory, runs a job in it
and shows what an operator would look at, each with the command that shows it.
On a terminal the federation then stays until Ctrl-C.`,
	}
	devFlags(cmd, &o, &logLevel)
	cmd.Flags().StringVar(&file, "file", "examples/hello.yaml", "job file to run")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("--file: %w: run this in a checkout or name a job file", err)
		}
		ctx, cancel := context.WithCancel(cmd.Context())
		defer cancel()
		out := cmd.OutOrStdout()
		shown := make(chan error, 1)
		o.Ready = func(f dev.Federation) {
			announce(out, o, f)
			go func() {
				defer cancel()
				shown <- show(ctx, out, f, o.Regions[0], file)
			}()
		}
		if err := runDev(ctx, o, logLevel); err != nil {
			return err
		}
		select {
		case err := <-shown:
			return err
		default:
			return nil // ended before the federation was ready
		}
	}
	return cmd
}

// show runs the commands an operator would and, on a terminal, waits for the
// end of ctx.
func show(ctx context.Context, w io.Writer, f dev.Federation, region, file string) error {
	steps := []struct{ why, line string }{
		{"Submit a job and watch it become running processes", "job run " + file},
		{"Why those regions?", "job explain hello"},
		{"And why those nodes of one of them?", "job explain hello --region " + region},
		{"The nodes", "node list"},
		{"The measured round trips", "latency"},
	}
	for _, s := range steps {
		fmt.Fprintf(w, "\n# %s\n$ nusa %s\n", s.why, s.line)
		args := append(strings.Fields(s.line), "--addr", f.Addr)
		if code := client.ExecuteArgs(ctx, newRoot(), args); code != 0 {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("nusa %s ended with exit code %d", s.line, code)
		}
	}
	fmt.Fprintf(w, `
# Try next, in another terminal
  bin/nusa alloc list                       # then: bin/nusa alloc logs -f ID
  bin/nusa job plan examples/batch.yaml     # what a submit would do
  bin/nusa topology nearest westeurope
  bin/nusa job stop hello
`)
	if !term.IsTerminal(os.Stdout.Fd()) {
		return nil
	}
	fmt.Fprintln(w, "\nThe federation stays up. Ctrl-C stops everything.")
	<-ctx.Done()
	return nil
}
