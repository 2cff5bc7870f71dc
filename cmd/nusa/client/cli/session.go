package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/client"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/profile"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Session is one call of a command: its connection and its output.
type Session struct {
	*Settings
	Cmd  *cobra.Command
	Ctx  context.Context
	Conn *grpc.ClientConn
	Out  io.Writer
	// Terminal says that Out is a terminal, where lines may be overwritten.
	Terminal bool
	Style    term.Palette
	// WantedJob is the job that the command names. If the job does not exist, the error
	// suggests a similar name.
	WantedJob *nusav1.JobRef
	// client has the connection. addrs are the servers of --addr, which is none for a Unix socket.
	client *client.Client
	addrs  []string
	// creds encrypt the connections. profile has the credentials, unless a flag or the environment
	// names them.
	creds   *clientCredentials
	profile *profile.Profile
	// anonymous: the client shows neither a certificate nor a token. roots are what it then trusts,
	// unless a flag, the environment or a profile says that.
	anonymous bool
	roots     []byte
	// rootHash is the hash of a root that an anonymous client asks the server for.
	rootHash string
	// token sends the access token of the client.
	token []grpc.DialOption
}

// Connect connects the session to the server at addr. If addr names several servers,
// separated by commas, Connect uses the first that can be reached. Nothing is sent before
// the first call.
func (c *Session) Connect(addr string) (closeConn func(), err error) {
	if path, local := socketPath(addr); local {
		return connectSocket(c, path)
	}
	if scheme, rest, found := strings.Cut(addr, "://"); found {
		return nil, fmt.Errorf("--addr %s (or NUSA_ADDR): give host[:port], %s, without %s://", addr, strings.TrimRight(rest, "/"), scheme)
	}
	c.addrs, err = client.Addresses(addr)
	if err != nil {
		return nil, fmt.Errorf("--addr %s: %w", addr, err)
	}
	c.Addr = strings.Join(c.addrs, ",")
	if err := useProfile(c); err != nil {
		return nil, err
	}
	c.creds, err = openCredentials(c)
	if err != nil {
		return nil, err
	}
	c.token, err = tokenOption(c)
	if err != nil {
		return nil, err
	}
	return c.open(client.Options{Addresses: c.addrs})
}

// open opens the connection of the session. Calls are not repeated: the commands say what happens,
// and which of them can be repeated.
func (c *Session) open(o client.Options) (closeConn func(), err error) {
	o.Credentials, o.GRPC, o.Retries = c.creds, c.token, -1
	opened, err := client.Open(o)
	if err != nil {
		return nil, fmt.Errorf("--addr %s: %w", c.Addr, err)
	}
	c.client, c.Conn = opened, opened.Conn()
	return func() { opened.Close() }, nil
}

// noticeAfter is the time after which a line says for which server a call waits.
const noticeAfter = time.Second

// WithTimeout returns the context for one call. On a terminal a slow call prints for which
// server it waits.
func (c *Session) WithTimeout() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(c.Ctx, c.Timeout)
	if !term.IsTerminal(c.Cmd.ErrOrStderr()) {
		return ctx, cancel
	}
	notice := time.AfterFunc(noticeAfter, func() {
		c.Warn("waiting for %s, at most %s (Ctrl-C ends it)", c.Addr, job.FormatDuration(c.Timeout))
	})
	return ctx, func() { notice.Stop(); cancel() }
}

// Servers returns the addresses of the servers, HOST:PORT. There is none for a Unix socket.
func (c *Session) Servers() []string { return c.addrs }

// Profile returns the profile whose credentials the session uses, or nil.
func (c *Session) Profile() *profile.Profile { return c.profile }

// TrustedRoots returns the roots that an anonymous session trusts, in PEM, or nothing.
func (c *Session) TrustedRoots() ([]byte, error) { return rootsOf(c) }

// Interrupted reports whether the user interrupted the command.
func (c *Session) Interrupted() bool { return errors.Is(c.Ctx.Err(), context.Canceled) }

func (c *Session) infoOf(ctx context.Context, addr string) (*nusav1.InfoResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, alarmWait)
	defer cancel()
	conn, err := serve.Dial(network.Host(), addr, append(slices.Clone(c.token), grpc.WithTransportCredentials(c.creds))...)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return nusav1.NewSystemClient(conn).Info(ctx, &nusav1.InfoRequest{})
}

// RegionOf returns the region of a regional server. The own jobs of such a region are named
// NAME@REGION. RegionOf returns "" for a global server, and if the server does not respond.
func (c *Session) RegionOf(ctx context.Context) string {
	info, err := nusav1.NewSystemClient(c.Conn).Info(ctx, &nusav1.InfoRequest{})
	if err != nil || info.GetRole() != "regional" {
		return ""
	}
	return info.GetRegion()
}

// PrintWarnings prints the warnings of a server to standard error.
func PrintWarnings(c *Session, all []string) {
	for _, w := range all {
		fmt.Fprintln(c.Cmd.ErrOrStderr(), c.Style.Wait("warning: ")+WithProgram(term.OneLine(w), c.Program))
	}
}

// alarmWait bounds the request to the active server.
const alarmWait = 2 * time.Second

// PrintAlarms prints the alarms, on which an operator must act, to standard error. It also
// returns them. Only the active server knows the alarms, so another server is asked for the
// address of the active one.
func (c *Session) PrintAlarms(ctx context.Context) []string {
	info, err := nusav1.NewSystemClient(c.Conn).Info(ctx, &nusav1.InfoRequest{})
	if err == nil && info.GetRole() == "global" && !info.GetLeader() && info.GetLeaderAddress() != "" {
		info, err = c.infoOf(ctx, info.GetLeaderAddress())
	}
	if err != nil {
		return nil // the command itself succeeded
	}
	for _, a := range info.GetAlarms() {
		fmt.Fprintln(c.Cmd.ErrOrStderr(), c.Style.Bad("alarm: ")+WithProgram(term.OneLine(a), c.Program))
	}
	return info.GetAlarms()
}

// ReadLine returns the first line of standard input. It returns false if the line is empty.
func (c *Session) ReadLine() (line string, typed bool) {
	in := bufio.NewScanner(c.Cmd.InOrStdin())
	if in.Scan() {
		line = strings.TrimSpace(in.Text())
	}
	return line, line != ""
}

// NamespaceFlag returns the flag --namespace for suggested commands, if the user gave this
// command the flag.
func (c *Session) NamespaceFlag() string {
	if f := c.Cmd.Flag("namespace"); f != nil && f.Changed {
		return " -n " + c.Namespace
	}
	return ""
}

// Jobs returns the client of the service Jobs. The methods below return the clients of the
// other services.
func (c *Session) Jobs() nusav1.JobsClient { return nusav1.NewJobsClient(c.Conn) }

func (c *Session) Allocs() nusav1.AllocationsClient { return nusav1.NewAllocationsClient(c.Conn) }

func (c *Session) Regions() nusav1.RegionsClient { return nusav1.NewRegionsClient(c.Conn) }

func (c *Session) Nodes() nusav1.NodesClient { return nusav1.NewNodesClient(c.Conn) }

func (c *Session) Topology() nusav1.TopologyClient { return nusav1.NewTopologyClient(c.Conn) }

func (c *Session) Audit() nusav1.AuditClient { return nusav1.NewAuditClient(c.Conn) }

func (c *Session) Origins() nusav1.OriginsClient { return nusav1.NewOriginsClient(c.Conn) }

// Warn prints a line to standard error.
func (c *Session) Warn(format string, args ...any) {
	fmt.Fprintf(c.Cmd.ErrOrStderr(), "nusa: "+format+"\n", args...)
}

// Printf prints to standard output.
func (c *Session) Printf(format string, args ...any) { fmt.Fprintf(c.Out, format, args...) }

// Incomplete returns a text that follows "nothing found" if some regions did not respond.
// Else it returns "".
func Incomplete(errs []*nusav1.PartialError) string {
	switch {
	case len(errs) == 0:
		return ""
	case errs[0].GetRegion() == "":
		return " so far"
	}
	return " in the regions that answered"
}

// WarnPartial prints which regions did not respond.
func (c *Session) WarnPartial(errs []*nusav1.PartialError) {
	for _, e := range errs {
		if e.GetRegion() == "" {
			c.Warn("a part is missing: %s", term.OneLine(e.GetMessage()))
			continue
		}
		c.Warn("region %s did not respond, so its part is missing: %s", e.GetRegion(), term.OneLine(e.GetMessage()))
	}
}
