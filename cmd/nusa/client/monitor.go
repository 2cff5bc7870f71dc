package client

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func monitorCommand() *cobra.Command {
	s := &cli.Settings{}
	req := &nusav1.MonitorMemberRequest{}
	c := &cobra.Command{
		Use: "monitor", Short: "Follow the log of a server or an agent", Args: cli.Positional(),
		Long: `Prints what a server or an agent logs, from now on, until Ctrl-C. The level does not
depend on the level of the process's own log, so --log-level debug needs no restart.

Without --region and --node it is the log of the server at --addr. --region is the
log of the master of a region, and --node that of an agent.`,
		Example: `  nusa monitor --addr 10.0.0.1:7600
  nusa monitor --region jakarta --log-level debug
  nusa monitor --region jakarta --node rack-4`,
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			if req.GetNode() != "" && req.GetRegion() == "" {
				req.Region = c.RegionOf(c.Ctx)
				if req.GetRegion() == "" {
					return fmt.Errorf("--node %s: add --region, the region of the node; `nusa node list` shows it", req.GetNode())
				}
			}
			r := &cli.Resumed{Session: c, Missed: "what was logged meanwhile is missing"}
			return r.Follow(c.Ctx, func(answered func()) error { return followLog(c, req, answered) })
		}),
	}
	c.Flags().StringVar(&req.Region, "region", "", "the master of this region, or with --node the region of the node")
	c.Flags().StringVar(&req.Node, "node", "", "the agent of this node: id, id prefix or name")
	c.Flags().StringVar(&req.Level, "log-level", "info", "lowest level: debug, info, warn or error")
	s.Bind(c) // after the flags, so that the shell completes them
	return c
}

// followLog prints the records of one stream until the stream ends.
func followLog(c *cli.Session, req *nusav1.MonitorMemberRequest, answered func()) error {
	client := nusav1.NewMonitorClient(c.Conn)
	var next func() (*nusav1.LogRecord, error)
	if req.GetRegion() == "" {
		stream, err := client.Self(c.Ctx, &nusav1.MonitorRequest{Level: req.GetLevel()})
		if err != nil {
			return err
		}
		next = stream.Recv
	} else {
		stream, err := client.Member(c.Ctx, req)
		if err != nil {
			return err
		}
		next = stream.Recv
	}
	for {
		r, err := next()
		if err != nil {
			return err
		}
		answered()
		if err := c.PrintLine(r, func(w *term.Screen) { writeRecord(w, r) }); err != nil {
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
