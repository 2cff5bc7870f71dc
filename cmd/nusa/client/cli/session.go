package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
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
	// Terminal means that Out is a terminal, where lines may be overwritten.
	Terminal bool
	Style    term.Palette
	// WantedJob is the job that the command names. If that job does not exist, the error
	// suggests a similar name.
	WantedJob *nusav1.JobRef
	// dialer knows why there is no connection.
	dialer  *rpcerr.Dialer
	servers *servers
}

// Connect connects the session to the server at addr, or to the first that can be reached of
// several, separated by commas. Nothing is sent before the first call.
func (c *Session) Connect(addr string) (closeConn func(), err error) {
	if scheme, rest, found := strings.Cut(addr, "://"); found {
		return nil, fmt.Errorf("--addr %s (or NUSA_ADDR): give host[:port], %s, without %s://", addr, strings.TrimRight(rest, "/"), scheme)
	}
	c.servers, err = parseServers(addr)
	if err != nil {
		return nil, fmt.Errorf("--addr %s: %w", addr, err)
	}
	c.Addr = c.servers.String()
	c.dialer = &rpcerr.Dialer{Dial: c.servers.dial}
	conn, err := serve.Dial(network.Host(), c.servers.addrs[0], grpc.WithContextDialer(c.dialer.DialContext))
	if err != nil {
		return nil, fmt.Errorf("--addr %s: %w", addr, err)
	}
	c.Conn = conn
	return func() { conn.Close() }, nil
}

// withDefaultPort adds the port of a global server to a host, a name, or an IPv6
// address without one.
func withDefaultPort(addr string) string {
	if ip, err := netip.ParseAddr(strings.Trim(addr, "[]")); err == nil {
		return netip.AddrPortFrom(ip, defaultPort).String()
	}
	if !strings.Contains(addr, ":") {
		return net.JoinHostPort(addr, strconv.Itoa(defaultPort))
	}
	return addr
}

// noticeAfter is the time after which a line says which server a call waits for.
const noticeAfter = time.Second

// WithTimeout returns the context of one call. On a terminal a slow call prints
// which server it waits for.
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

// Interrupted reports whether the user ended the command.
func (c *Session) Interrupted() bool { return errors.Is(c.Ctx.Err(), context.Canceled) }

func infoOf(ctx context.Context, addr string) (*nusav1.InfoResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, alarmWait)
	defer cancel()
	conn, err := serve.Dial(network.Host(), addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return nusav1.NewSystemClient(conn).Info(ctx, &nusav1.InfoRequest{})
}

// RegionOf returns the region of a regional server, whose own jobs are named NAME@REGION. It
// returns "" for a global server, and when the server does not answer.
func (c *Session) RegionOf(ctx context.Context) string {
	info, err := nusav1.NewSystemClient(c.Conn).Info(ctx, &nusav1.InfoRequest{})
	if err != nil || info.GetRole() != "regional" {
		return ""
	}
	return info.GetRegion()
}

// PrintWarnings prints warnings of a server to standard error.
func PrintWarnings(c *Session, all []string) {
	for _, w := range all {
		fmt.Fprintln(c.Cmd.ErrOrStderr(), c.Style.Wait("warning: ")+WithProgram(term.OneLine(w), c.Program))
	}
}

// alarmWait bounds the question to the active server.
const alarmWait = 2 * time.Second

// PrintAlarms prints to standard error what an operator has to act on, and returns that. Only
// the active server knows it; another one knows the address of the active one.
func (c *Session) PrintAlarms(ctx context.Context) []string {
	info, err := nusav1.NewSystemClient(c.Conn).Info(ctx, &nusav1.InfoRequest{})
	if err == nil && info.GetRole() == "global" && !info.GetLeader() && info.GetLeaderAddress() != "" {
		info, err = infoOf(ctx, info.GetLeaderAddress())
	}
	if err != nil {
		return nil // the command answers all the same
	}
	for _, a := range info.GetAlarms() {
		fmt.Fprintln(c.Cmd.ErrOrStderr(), c.Style.Bad("alarm: ")+WithProgram(term.OneLine(a), c.Program))
	}
	return info.GetAlarms()
}

// ReadLine returns the first line of standard input; false if nothing is typed.
func (c *Session) ReadLine() (line string, typed bool) {
	in := bufio.NewScanner(c.Cmd.InOrStdin())
	if in.Scan() {
		line = strings.TrimSpace(in.Text())
	}
	return line, line != ""
}

// NamespaceFlag returns the flag for suggested commands, if this command was given the flag.
func (c *Session) NamespaceFlag() string {
	if f := c.Cmd.Flag("namespace"); f != nil && f.Changed {
		return " -n " + c.Namespace
	}
	return ""
}

// Jobs returns the client of the service Jobs; the methods below return the other clients.
func (c *Session) Jobs() nusav1.JobsClient { return nusav1.NewJobsClient(c.Conn) }

func (c *Session) Allocs() nusav1.AllocationsClient { return nusav1.NewAllocationsClient(c.Conn) }

func (c *Session) Regions() nusav1.RegionsClient { return nusav1.NewRegionsClient(c.Conn) }

func (c *Session) Nodes() nusav1.NodesClient { return nusav1.NewNodesClient(c.Conn) }

func (c *Session) Topology() nusav1.TopologyClient { return nusav1.NewTopologyClient(c.Conn) }

func (c *Session) Origins() nusav1.OriginsClient { return nusav1.NewOriginsClient(c.Conn) }

// Warn prints a line to standard error.
func (c *Session) Warn(format string, args ...any) {
	fmt.Fprintf(c.Cmd.ErrOrStderr(), "nusa: "+format+"\n", args...)
}

// Printf prints to standard output.
func (c *Session) Printf(format string, args ...any) { fmt.Fprintf(c.Out, format, args...) }

// Incomplete follows "nothing found" when some regions did not answer.
func Incomplete(errs []*nusav1.PartialError) string {
	if len(errs) == 0 {
		return ""
	}
	return " in the regions that answered"
}

// WarnPartial prints which regions did not answer.
func (c *Session) WarnPartial(errs []*nusav1.PartialError) {
	for _, e := range errs {
		c.Warn("region %s did not answer, its part is missing: %s", e.GetRegion(), term.OneLine(e.GetMessage()))
	}
}
