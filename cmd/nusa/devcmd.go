package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/cmd/nusa/dev"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology/wan"
)

// devRun holds the flags that `nusa dev` and `nusa demo` share.
type devRun struct {
	dev.Options
	logLevel string
	list     bool
}

// wanHelp explains --wan in the help of both commands.
const wanHelp = `
The round trips between the regions are those of a measured table: --wan azure
(51 regions), none (those of loopback), or a CSV file of your own: the first row
and the first column are the regions' names, a row is where a round trip starts,
the cells are milliseconds; a blank cell or - means no connection and # begins a
comment. The regions of such a file are the default of --regions.

  from,jakarta,tokyo
  jakarta,,80.5
  tokyo,81,

To try a worse network, edit the file while the federation runs. Within two seconds the
new round trips apply, and a pair with a blank cell is cut.

The global server is at the place of the first region. If a region is cut off from the
first region, it is also cut off from the global tier, and continues alone. To cut
regions off only from each other, leave the first region connected to all regions.

Pairs without traffic are probed every 30 seconds. p99 shows a change after the next
probe. p50 shows it when half of the samples are new.
`

// bind adds the flags. logLevel is the default of --log-level.
func (d *devRun) bind(cmd *cobra.Command, logLevel string) {
	f := cmd.Flags()
	f.StringSliceVar(&d.Regions, "regions", nil, "regions of the round-trip table (default "+strings.Join(dev.DefaultRegions, ", ")+", or those of --wan)")
	f.IntVar(&d.Servers, "servers", 1, "regional servers in each region, 1..5")
	f.IntVar(&d.Agents, "agents", 3, "agents in each region, 1..50")
	f.StringVar(&d.WAN, "wan", "azure", "round trips between the regions: azure, none, or a CSV matrix FILE in ms")
	f.BoolVar(&d.list, "list-regions", false, "print the regions of the round-trip table and start nothing")
	f.IntVar(&d.Port, "port", 7600, "first port; the global server and each region use a hundred")
	f.BoolVar(&d.Insecure, "insecure", false, "encrypt nothing, and let every process of this machine use the federation")
	f.StringVar(&d.logLevel, "log-level", logLevel, "log level of the roles, on standard error: debug, info, warn or error")
	cmd.Args = noArguments
}

func devCommand() *cobra.Command {
	var d devRun
	cmd := &cobra.Command{
		Use:     "dev",
		Short:   "Run a whole federation in this process: try Nusa on one machine",
		GroupID: rolesGroup,
		Long: `Runs one global server with embedded etcd and, for each region, its servers and
agents, over real sockets on loopback. Ctrl-C stops everything, tasks included.

Connections are encrypted, and each part has an identity: the folder ca of the data
directory has the federation's authority (see nusa ca). Other commands of your user find
an operator's identity by themselves, while the federation runs. --insecure turns that
off.

With --data-dir the next start has the same jobs, and their tasks start again. The
regions and servers of a data directory must not change; the number of agents may
change. Agents that are missing count as silent at first: they are lost after 15 s, and
their instances are placed elsewhere 30 s after the start, or after the time in the
job's disconnect.node.after. node list shows them until node remove, or for 72 h.
` + wanHelp,
		Example: "  nusa dev\n  nusa dev --regions southeastasia,westeurope --servers 3 --data-dir ./dev",
	}
	d.bind(cmd, "warn")
	cmd.Flags().StringVar(&d.DataDir, "data-dir", "", "directory of jobs and nodes, for the next start (default: a temporary directory)")
	cmd.Flags().StringToStringVar(&d.Plugins, "plugin", nil, "a further driver on every node, NAME=PATH of its executable; repeat for more")
	engines(cmd.Flags(), &d.DockerHost, &d.Incus)
	cmd.Flags().StringVar(&d.SecretsDir, "secrets-dir", "", "secrets that jobs may have, as NAMESPACE/NAME, readable by you alone (default: none)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if d.SecretsDir != "" {
			d.SecretsDir, err = filepath.Abs(d.SecretsDir)
			if err != nil {
				return fmt.Errorf("--secrets-dir: %w", err)
			}
		}
		err = executables(d.Plugins)
		if err != nil {
			return err
		}
		d.Ready = func(f dev.Federation) { announce(cmd, f, true) }
		ctx, done := whileRead(cmd.Context(), os.Stdout)
		defer done()
		return d.run(ctx, cmd)
	}
	return cmd
}

// executables refuses plugins that cannot be started. An agent would try again and again,
// because the file may come later. Here a person sees the error at once.
func executables(plugins map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(plugins)) {
		if _, err := exec.LookPath(plugins[name]); err != nil {
			// %v and not %w: an error that wraps a file error is printed without the flag.
			return fmt.Errorf("--plugin %s: %v", name, driver.StartFault(plugins[name], err))
		}
	}
	return nil
}

// run starts the federation, or lists the regions of the table.
func (d *devRun) run(ctx context.Context, cmd *cobra.Command) (err error) {
	if d.list {
		return listRegions(cmd.OutOrStdout(), d.WAN)
	}
	d.Logger, err = serve.NewLogger(d.logLevel, "text", os.Stderr)
	if err != nil {
		return fmt.Errorf("--log-level: %w", err)
	}
	d.Regions, err = trimList(cmd.Flags(), "regions", d.Regions)
	if err != nil {
		return err
	}
	// In Options 0 means the default. As the value of a flag 0 is an error.
	for flag, value := range map[string]*int{"servers": &d.Servers, "agents": &d.Agents, "port": &d.Port} {
		switch {
		case !cmd.Flags().Changed(flag):
			*value = 0
		case *value == 0:
			return fmt.Errorf("--%s: must be at least 1", flag)
		}
	}
	// Each server, and etcd, has two preallocated log files. Here each has 8 MB instead of
	// 64 MB.
	wal.SegmentSizeBytes = 8 << 20
	say := func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), text) }
	d.Waiting, d.Changed = say, say
	d.Version = serve.Version
	ready, written := d.Ready, profiles(nil)
	d.Ready = func(f dev.Federation) {
		written = writeProfiles(f, say)
		ready(f)
	}
	err = dev.Run(ctx, d.Options)
	written.remove(say)
	if err == nil && errors.Is(context.Cause(ctx), errNoReader) {
		return errNoReader
	}
	return err
}

func listRegions(w io.Writer, name string) error {
	table, err := dev.Table(name)
	if err != nil {
		return err
	}
	if table == nil {
		return fmt.Errorf("--wan %s: has no table, regions may have any names", name)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, region := range table.Regions() {
		place := ""
		if r, ok := wan.AzureRegion(region); ok {
			place = "\t" + r.Location.Name + ", " + r.Labels["continent"]
		}
		fmt.Fprintf(t, "%s%s\n", region, place)
	}
	return t.Flush()
}

// announce prints that the federation is ready, in a single write. If the federation stays,
// announce also suggests commands for another terminal.
func announce(cmd *cobra.Command, f dev.Federation, stays bool) {
	var b strings.Builder
	fmt.Fprintf(&b, "Nusa federation ready in %s: %d regions, %d servers, %d agents, round trips: %s\n",
		f.Started.Round(10*time.Millisecond), len(f.Regions), f.Servers, f.Agents, f.WAN)
	fmt.Fprintf(&b, "  API   %[1]s\n  page  http://%[2]s/ui/\n  HTTP  http://%[2]s/docs/ and /metrics\n  data  %[3]s\n", f.Addr, f.HTTP, f.DataDir)
	if f.Identity != "" {
		fmt.Fprintf(&b, "  TLS   the commands of your user are those of an operator: %s\n", f.Identity)
	}
	if stays {
		fmt.Fprintf(&b, "\nIn another terminal:\n%s%s  %s\n  %s latency\n\nCtrl-C stops everything.\n",
			address(f), tokenLine(f, term.IsTerminal(cmd.OutOrStdout())), firstJob(f, program(cmd)), program(cmd))
	}
	fmt.Fprint(cmd.OutOrStdout(), b.String())
}

// helloFile is an example that needs the regions of dev.DefaultRegions.
const helloFile = "examples/hello.yaml"

// firstJob returns a command line that runs a job in this federation.
func firstJob(f dev.Federation, nusa string) string {
	if missesDefaultRegions(f) {
		return nusa + " job init - | " + nusa + " job run -"
	}
	return nusa + " job run " + helloFile
}

// missesDefaultRegions reports whether the federation lacks one of the regions that the
// example needs.
func missesDefaultRegions(f dev.Federation) bool {
	return slices.ContainsFunc(dev.DefaultRegions, func(r string) bool { return !slices.Contains(f.Names, r) })
}

// demoJob returns the file and the name of the demo's job. In a checkout the file is the
// example. Otherwise the file is a job that runs in any federation, which demoJob writes
// into the federation's folder.
func demoJob(f dev.Federation) (file, name string, err error) {
	if _, missing := os.Stat(helloFile); missing == nil && !missesDefaultRegions(f) {
		name, err = jobName(helloFile)
		return helloFile, name, err
	}
	text, err := job.Sample("hello", nusav1.JobType_JOB_TYPE_SERVICE)
	if err != nil {
		return "", "", err
	}
	file = filepath.Join(f.DataDir, "hello.yaml")
	return file, "hello", os.WriteFile(file, []byte(text), 0o600)
}

// program returns the name by which hints call this binary.
func program(cmd *cobra.Command) string { return cmd.Root().CommandPath() }

// address returns the line that sets NUSA_ADDR, unless the federation has the
// default address.
func address(f dev.Federation) string {
	if f.Addr == cli.DefaultAddr {
		return ""
	}
	return "  export NUSA_ADDR=" + f.Addr + "\n"
}

// tokenLine returns the line that sets NUSA_TOKEN, for the web page and for programs. Only a terminal gets
// the token itself, because other output often ends in a file that others read.
func tokenLine(f dev.Federation, terminal bool) string {
	if f.TokenFile == "" {
		return ""
	}
	secret, err := os.ReadFile(f.TokenFile)
	if !terminal || err != nil {
		return "  export NUSA_TOKEN=$(cat " + f.TokenFile + ")\n"
	}
	return "  export NUSA_TOKEN=" + strings.TrimSpace(string(secret)) + "   # the page asks for it, too\n"
}

func demoCommand() *cobra.Command {
	var d devRun
	var file string
	var failover bool
	cmd := &cobra.Command{
		Use:     "demo",
		Short:   "Show a federation at work: start one, run a job, explain it",
		GroupID: rolesGroup,
		Long: `Starts what 'nusa dev' starts, with a temporary data directory, runs a job in it,
and runs the commands that show its state.
On a terminal the federation then stays until Ctrl-C.

With --failover the demo then cuts a region off, shows its instances running elsewhere,
connects the region again, and shows that its instances never stopped.
` + wanHelp,
	}
	d.bind(cmd, "error") // the demo cuts regions off, which the log would warn about
	cmd.Flags().StringVar(&file, "file", "", "job file to run (default "+helloFile+", or a simple job when that file or its regions are missing)")
	cmd.Flags().BoolVar(&failover, "failover", false, "cut a region off and show its work running elsewhere")
	cmd.MarkFlagsMutuallyExclusive("failover", "file")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if d.list {
			return d.run(cmd.Context(), cmd)
		}
		name := ""
		if cmd.Flags().Changed("file") {
			var err error
			name, err = jobName(file)
			if err != nil {
				return err
			}
		}
		ctx, done := whileRead(cmd.Context(), os.Stdout)
		defer done()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var show errgroup.Group
		d.Ready = func(f dev.Federation) {
			announce(cmd, f, term.IsTerminal(os.Stdout))
			show.Go(func() error {
				defer cancel()
				if name != "" {
					return demonstrate(ctx, cmd, f, file, name, failover)
				}
				file, name, err := demoJob(f)
				if err != nil {
					return err
				}
				return demonstrate(ctx, cmd, f, file, name, failover)
			})
		}
		err := d.run(ctx, cmd)
		cancel()
		if shown := show.Wait(); err == nil {
			return shown
		}
		return err
	}
	return cmd
}

// jobName reads the name of the job in a file, so that errors of the file are found before
// anything starts.
func jobName(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return "", fmt.Errorf("--file %s: %w: name a job file", file, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, job.MaxSize+1))
	if err != nil {
		return "", fmt.Errorf("--file: %w", err)
	}
	spec, err := job.Parse(text, file)
	return spec.GetName(), err
}

// demonstrate runs the commands that a typical operator would run, and the steps of
// --failover if asked to. On a terminal it then waits until ctx ends.
func demonstrate(ctx context.Context, cmd *cobra.Command, f dev.Federation, file, name string, failover bool) error {
	first, nusa := f.Names[0], program(cmd)
	steps := []struct {
		why  string
		args []string
	}{
		{"Submit a job and watch it become running processes", []string{"job", "run", file}},
		{"Why those regions?", []string{"job", "explain", name}},
		{"And why those nodes of one of them?", []string{"job", "explain", name, "--region", first}},
		{"The nodes", []string{"node", "list"}},
		{"The measured round trips", []string{"latency"}},
	}
	for _, s := range steps {
		if err := show(ctx, cmd, f, s.why, s.args...); err != nil {
			return ignoreEnd(ctx, err)
		}
	}
	if failover {
		d := failoverDemo{w: cmd.OutOrStdout(), f: f, show: func(ctx context.Context, why string, args ...string) error {
			return show(ctx, cmd, f, why, args...)
		}}
		if err := d.run(ctx); err != nil {
			return ignoreEnd(ctx, err)
		}
	}
	return stay(ctx, cmd, tryNext(f, nusa, name))
}

// show prints a comment and a command line, and runs the command in this process.
func show(ctx context.Context, cmd *cobra.Command, f dev.Federation, why string, args ...string) error {
	nusa := program(cmd)
	line := nusa + " " + strings.Join(args, " ")
	fmt.Fprintf(cmd.OutOrStdout(), "\n# %s\n$ %s\n", why, line)
	root := newRoot()
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: nusa}
	more := []string{"--addr", f.Addr}
	if f.Identity != "" {
		more = append(more, "--identity", f.Identity)
	}
	if code := client.ExecuteArgs(ctx, root, append(args, more...)); code != 0 {
		return fmt.Errorf("%s ended with exit code %d", line, code)
	}
	return nil
}

// ignoreEnd returns nil if ctx has ended, because the error then only says that the user
// ended the demo.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// stay waits until ctx ends, if standard output is a terminal.
func stay(ctx context.Context, cmd *cobra.Command, next string) error {
	w := cmd.OutOrStdout()
	if !term.IsTerminal(os.Stdout) {
		fmt.Fprintf(w, "\nThe federation ends, because standard output is no terminal. %s dev starts one that stays.\n", program(cmd))
		return nil
	}
	fmt.Fprint(w, next)
	fmt.Fprintln(w, "\nThe federation stays up. Ctrl-C stops everything.")
	<-ctx.Done()
	return nil
}

// tryNext lists commands to try after the demo.
func tryNext(f dev.Federation, nusa, job string) string {
	return fmt.Sprintf(`
# Try next, in another terminal
%[1]s  %[2]s alloc list
  %[2]s job logs %[4]s --tail 5
  %[2]s job plan examples/batch.yaml     # what a submit would do
  %[2]s topology nearest %[3]s
  %[2]s job stop %[4]s
`, address(f), nusa, f.Names[0], job)
}
