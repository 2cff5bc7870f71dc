package client

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// defaultTimeout of a call.
const defaultTimeout = 30 * time.Second

// settings are the flags that the commands of one noun share.
type settings struct {
	addr      string
	namespace string
	region    string
	output    string
	timeout   time.Duration
	// nusa is how hints name this binary.
	nusa string
	// master is of which region the server is that is talked to, "" unless it
	// was looked up.
	master string
}

// bind adds the flags to a noun, for all of its verbs. more are forms of output
// besides those that every command has.
func (s *settings) bind(cmd *cobra.Command, more ...string) {
	formats := append([]string{"table", "json", "yaml"}, more...)
	f := cmd.PersistentFlags()
	f.StringVar(&s.addr, "addr", envOr("NUSA_ADDR", DefaultAddr), "server to talk to, host:port (NUSA_ADDR)")
	f.DurationVar(&s.timeout, "timeout", defaultTimeout, "how long to wait for an answer")
	f.StringVarP(&s.output, "output", "o", "table", strings.Join(formats[:len(formats)-1], ", ")+" or "+formats[len(formats)-1])
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error {
		if !slices.Contains(formats, s.output) {
			return fmt.Errorf("--output: %q is not one of %s", s.output, strings.Join(formats, ", "))
		}
		if s.namespace != "" && !job.ValidName(s.namespace) {
			return fmt.Errorf("--namespace: %q is not a name: 1 to 63 of a-z, 0-9 and -, starting with a letter", s.namespace)
		}
		if s.timeout <= 0 {
			return fmt.Errorf("--timeout: %s is not more than 0", s.timeout)
		}
		return nil
	}
}

func (s *settings) bindNamespace(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVarP(&s.namespace, "namespace", "n", envOr("NUSA_NAMESPACE", ""), "namespace of jobs (NUSA_NAMESPACE, else "+job.DefaultNamespace+"; lists: else every one)")
}

// bindRegion adds --region to one verb; its meaning differs.
func (s *settings) bindRegion(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVar(&s.region, "region", envOr("NUSA_REGION", ""), usage+" (NUSA_REGION)")
}

func envOr(key, otherwise string) string {
	if v := os.Getenv(key); v != "" {
		return v
	}
	return otherwise
}

// caller is one command's run: its connection and where it prints.
type caller struct {
	*settings
	cmd  *cobra.Command
	ctx  context.Context
	conn *grpc.ClientConn
	out  io.Writer
	// terminal says that out is one: lines may be drawn over.
	terminal bool
	style    palette
	// sought and soughtNode are what the command is about, for what to say when
	// that is not there.
	sought     *nusav1.JobRef
	soughtNode string
}

// run makes a cobra function of f; errors of calls become lines that name the
// server and the next step.
func (s *settings) run(f func(c *caller, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c := &caller{settings: s, cmd: cmd, ctx: cmd.Context(), out: cmd.OutOrStdout()}
		s.nusa = Program(cmd)
		c.terminal = isTerminal(c.out)
		c.style = palette{on: c.terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
		conn, err := dial(s.addr)
		if err != nil {
			return err
		}
		defer conn.Close()
		c.conn = conn
		return s.readable(c.hint(f(c, args)))
	}
}

func dial(addr string) (*grpc.ClientConn, error) {
	if !strings.Contains(addr, ":") {
		return nil, fmt.Errorf("--addr: %q is not host:port, such as %s", addr, DefaultAddr)
	}
	conn, err := serve.Dial(network.Host(), addr)
	if err != nil {
		return nil, fmt.Errorf("--addr %s: %w", addr, err)
	}
	return conn, nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(f.Fd())
}

// terminalWidth is in columns, 80 when it is not known.
func terminalWidth(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(f.Fd()); err == nil && width > 0 {
			return width
		}
	}
	return 80
}

// terminalHeight is in lines, 24 when it is not known.
func terminalHeight(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if _, height, err := term.GetSize(f.Fd()); err == nil && height > 0 {
			return height
		}
	}
	return 24
}

// patience is how long a call may take before a person is told what it waits
// for.
const patience = time.Second

// call is the context of one call with an answer. On a terminal a call that
// takes long says whom it waits for.
func (c *caller) call() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(c.ctx, c.timeout)
	if !isTerminal(c.cmd.ErrOrStderr()) {
		return ctx, cancel
	}
	notice := time.AfterFunc(patience, func() {
		c.warn("waiting for %s, at most %s (Ctrl-C ends it)", c.addr, job.FormatDuration(c.timeout))
	})
	return ctx, func() { notice.Stop(); cancel() }
}

// namespaceFlag repeats --namespace, if it was given, in a hint.
func (c *caller) namespaceFlag() string {
	if f := c.cmd.Flag("namespace"); f != nil && f.Changed {
		return " -n " + c.namespace
	}
	return ""
}

func (c *caller) jobs() nusav1.JobsClient          { return nusav1.NewJobsClient(c.conn) }
func (c *caller) allocs() nusav1.AllocationsClient { return nusav1.NewAllocationsClient(c.conn) }
func (c *caller) regions() nusav1.RegionsClient    { return nusav1.NewRegionsClient(c.conn) }
func (c *caller) nodes() nusav1.NodesClient        { return nusav1.NewNodesClient(c.conn) }
func (c *caller) topology() nusav1.TopologyClient  { return nusav1.NewTopologyClient(c.conn) }
func (c *caller) origins() nusav1.OriginsClient    { return nusav1.NewOriginsClient(c.conn) }
func (c *caller) warn(format string, args ...any) {
	fmt.Fprintf(c.cmd.ErrOrStderr(), "nusa: "+format+"\n", args...)
}
func (c *caller) printf(format string, args ...any) { fmt.Fprintf(c.out, format, args...) }

// unseen is what to add to "nothing there" when not everything was seen.
func unseen(errs []*nusav1.PartialError) string {
	if len(errs) == 0 {
		return ""
	}
	return " where an answer came from"
}

// partial tells which regions did not answer.
func (c *caller) partial(errs []*nusav1.PartialError) {
	for _, e := range errs {
		c.warn("region %s did not answer, its part is missing: %s", e.GetRegion(), plain(e.GetMessage()))
	}
}

// ref reads NAME or NAME@REGION, and remembers it for the hint when there is none.
func (c *caller) ref(arg string) (ref *nusav1.JobRef, err error) {
	defer func() { c.sought = ref }()
	name, region, own := strings.Cut(arg, "@")
	if ns, rest, ok := strings.Cut(name, "/"); ok {
		if c.namespace != "" && c.namespace != ns {
			return nil, fmt.Errorf("%q: another namespace than --namespace %s", arg, c.namespace)
		}
		return refOf(ns, rest, region, arg, own)
	}
	ns := c.namespace
	if ns == "" {
		ns = job.DefaultNamespace
	}
	return refOf(ns, name, region, arg, own)
}

func refOf(namespace, name, region, arg string, own bool) (*nusav1.JobRef, error) {
	if !job.ValidName(name) || !job.ValidName(namespace) || own && !job.ValidName(region) {
		return nil, fmt.Errorf("%q is not a job: write NAME, NAMESPACE/NAME or NAME@REGION", arg)
	}
	return &nusav1.JobRef{Namespace: namespace, Name: name, Region: region}, nil
}

// readFile reads a file, or standard input for "-", of at most a job's size
// and one byte, so that what is too long is seen.
func (c *caller) readFile(name string) ([]byte, error) { return readFile(c.cmd, name) }

func readFile(cmd *cobra.Command, name string) ([]byte, error) {
	in := cmd.InOrStdin()
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, job.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return data, nil
}
