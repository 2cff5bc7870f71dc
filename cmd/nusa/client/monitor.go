package client

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func monitorCommand() *cobra.Command {
	s := &cli.Settings{}
	req := &nusav1.MonitorMemberRequest{}
	c := &cobra.Command{
		Use: "monitor", Short: "Follow the log of a server or an agent", Args: cli.Positional(),
		Long: `Prints the latest 50 lines that a server or an agent has logged, from info on, and
then each further line, until Ctrl-C. The level does not depend on the level of the
process's own log, so --log-level debug needs no restart.

Without --region and --node it is the log of the server at --addr. --region is the
log of the master of a region, and --node that of an agent.`,
		Example: `  nusa monitor --addr 10.0.0.1:7600
  nusa monitor --region jakarta --log-level debug
  nusa monitor --region jakarta --node rack-4`,
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			if !slices.Contains(logLevels, req.GetLevel()) {
				return fmt.Errorf("--log-level %.20q: it is one of %s", req.GetLevel(), strings.Join(logLevels, ", "))
			}
			named := req.GetNode()
			if named != "" && req.GetRegion() == "" {
				ctx, cancel := c.WithTimeout()
				n, err := c.Nodes().Get(ctx, &nusav1.GetNodeRequest{Id: req.GetNode()})
				cancel()
				if err != nil {
					return err
				}
				req.Region, req.Node = n.GetRegion(), n.GetId()
			}
			r := &cli.Resumed{Session: c, Missed: "older lines than the latest 50 are missing"}
			log := &follower{Session: c, req: req, node: named}
			return r.Follow(c.Ctx, log.follow)
		}),
	}
	c.Flags().StringVar(&req.Region, "region", "", "the master of this region, or with --node the region of the node, when its name is not unique")
	c.Flags().StringVar(&req.Node, "node", "", "the agent of this node: id, id prefix or name")
	c.Flags().StringVar(&req.Level, "log-level", "info", "lowest level: debug, info, warn or error")
	s.Bind(c) // after the flags, so that the shell completes them
	return c
}

// logLevels are the levels that a log can be followed from.
var logLevels = []string{"debug", "info", "warn", "error"}

// latestRecords is how many records come first in a stream at most.
const latestRecords = 50

// follower prints the log of a server or an agent.
type follower struct {
	*cli.Session
	req *nusav1.MonitorMemberRequest
	// node is the node as the user named it.
	node string
	// began: a stream has begun.
	began bool
	// printed has the latest records that were printed, at most latestRecords, and repeats is how many of the next
	// records may be among them.
	printed []*nusav1.LogRecord
	repeats int
}

// repeated reports whether a record was printed from an earlier stream. It compares records, not times: the next master of a
// region may have a clock that is behind.
func (f *follower) repeated(r *nusav1.LogRecord) bool {
	if f.repeats == 0 {
		return false
	}
	f.repeats--
	return slices.ContainsFunc(f.printed, func(p *nusav1.LogRecord) bool {
		return p.GetTime().AsTime().Equal(r.GetTime().AsTime()) && p.GetMessage() == r.GetMessage() && slices.EqualFunc(p.GetAttributes(), r.GetAttributes(),
			func(a, b *nusav1.LogAttribute) bool { return a.GetKey() == b.GetKey() && a.GetValue() == b.GetValue() })
	})
}

// follow prints the records of one stream until the stream ends. The first ones of a further stream may have been
// printed.
func (f *follower) follow(answered func()) error {
	client := nusav1.NewMonitorClient(f.Conn)
	var stream grpc.ServerStreamingClient[nusav1.LogRecord]
	var err error
	what := "the server at " + f.Addr
	switch {
	case f.req.GetRegion() == "":
		stream, err = client.Self(f.Ctx, &nusav1.MonitorRequest{Level: f.req.GetLevel()})
	case f.req.GetNode() != "":
		what = "the agent of node " + f.node
		stream, err = client.Member(f.Ctx, f.req)
	default:
		what = "the master of region " + f.req.GetRegion()
		stream, err = client.Member(f.Ctx, f.req)
	}
	var header metadata.MD
	if err == nil {
		header, err = stream.Header()
	}
	if err == nil && header == nil { // the server ended the call at once
		_, err = stream.Recv()
	}
	if err != nil {
		return err
	}
	if !f.began && f.Output == "table" {
		f.Warn("the log of %s, from %s on; Ctrl-C ends it", what, f.req.GetLevel())
	}
	if f.began {
		f.repeats = latestRecords
	}
	f.began = true
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		answered()
		if f.repeated(r) {
			continue
		}
		if len(f.printed) == latestRecords {
			f.printed = f.printed[1:]
		}
		f.printed = append(f.printed, r)
		if err := f.PrintLine(r, func(w *term.Screen) { writeRecord(w, r) }); err != nil {
			return err
		}
	}
}

// writeRecord writes a record as a line.
func writeRecord(w *term.Screen, r *nusav1.LogRecord) {
	if n := r.GetDropped(); n > 0 {
		fmt.Fprintln(w, w.Wait(fmt.Sprintf("(a gap: %d records were dropped, because this reader was too slow)", n)))
	}
	level := fmt.Sprintf("%-5s", term.OneLine(r.GetLevel()))
	switch r.GetLevel() {
	case "ERROR":
		level = w.Bad(level)
	case "WARN":
		level = w.Wait(level)
	case "DEBUG":
		level = w.Faint(level)
	}
	var attributes []string
	for _, a := range r.GetAttributes() {
		value := a.GetValue()
		if value == "" || strings.ContainsAny(value, " \t\r\n\"=") {
			value = strconv.Quote(value)
		}
		attributes = append(attributes, term.OneLine(a.GetKey()+"="+value))
	}
	at := r.GetTime().AsTime().Local().Format("15:04:05.000")
	line := fmt.Sprintf("%s  %s  %s  %s", w.Faint(at), level, term.OneLine(r.GetMessage()), w.Faint(strings.Join(attributes, "  ")))
	fmt.Fprintln(w, strings.TrimRight(line, " "))
}
