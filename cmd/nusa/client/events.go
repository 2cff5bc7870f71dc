package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func eventsCommand() *cobra.Command {
	s := &cli.Settings{}
	req := &nusav1.WatchEventsRequest{}
	var since time.Duration
	var after uint64
	c := &cobra.Command{
		Use: "events", Short: "Follow what happens", Args: cli.Positional(),
		Long: `Prints events as they happen, until Ctrl-C. After a broken connection it continues
after the last event, and says when events are missing:

  job          submitted, stopped, purged, taken back to a former version;
               overridden in a region; a batch job complete or failed
  slot         instances offered to a region, accepted, returned, moved,
               revoked, stopped, done
  instance     given up after its last attempt, or lost with its node
  rollout      promoted, paused, resumed, failed; a region done or failed
  schedule     missed, skipped, paused, resumed
  workflow     begun, waits for an approval, ended
  deadletter   created, redriven, dropped
  latency      a bound of a job broken, or kept again
  node         silent or back, cordoned, drained, removed
  region       defined, connected, disconnected, silent, back, lost, refused,
               confirmed, cordoned, draining, failback, removed
  reservation  moved, failed
  spare        provisioning, prepared, notified, lost; released, cancelled,
               failed, expired
  member       joined, banned, unbanned, removed
  server       an alarm, or its end; store: filling, restored, recovered
  failover     paused, because too many regions fell silent together; resumed
  webhook, bus, intake, auth, audit, join_token, key, origins: changed by a
               caller, or something was left out

--instances adds what each attempt of an instance does: placed, starting, running,
restarted, complete, failed, declined, stopped, lost. --region shows the events of that
region's master, which include its own jobs and nodes. --since begins with past events,
as far as they are stored. --after and --token continue after an earlier event, and say
how many are missing (-o json shows numbers and tokens). Events of instances in other
regions always begin now. With --type and --subject the server leaves out other events.`,
		Example: `  nusa events --type job. --subject team-a/
  nusa events --durable --after 1042 -o json`,
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			if c.Cmd.Flags().Changed("after") {
				req.Token = strconv.FormatUint(after, 10)
			}
			if since < 0 || since > 0 && req.GetToken() != "" {
				return errors.New("--since is a time before now, such as 10m, and does not go with --token or --after")
			}
			if since > 0 {
				req.Since = durationpb.New(since)
			}
			r := &cli.Resumed{Session: c, Missed: "a gap shows where events are missing"}
			if req.GetRegion() != "" {
				r.Probe = func(ctx context.Context) error {
					_, err := c.Nodes().Get(ctx, &nusav1.GetNodeRequest{Region: req.GetRegion(), Id: "-"})
					return err // NOT_FOUND means that the region responds
				}
			}
			return r.Follow(c.Ctx, func(answered func()) error {
				defer func() { req.Token = cmp.Or(req.GetToken(), foreignToken) }()
				return followEvents(c, req, answered)
			})
		}),
	}
	s.Bind(c)
	c.Flags().StringVar(&req.Token, "token", "", "continue after the event with this token")
	c.Flags().DurationVar(&since, "since", 0, "begin with the events of this time before now, such as 10m")
	c.Flags().Uint64Var(&after, "after", 0, "continue after the event with this number; 0 begins with the oldest stored event")
	c.MarkFlagsMutuallyExclusive("token", "after")
	c.Flags().StringSliceVar(&req.Types, "type", nil, "only events whose type begins with this, such as job. or region.lost; may be repeated")
	c.Flags().StringVar(&req.SubjectPrefix, "subject", "", "only events whose subject begins with this, such as team-a/")
	c.Flags().BoolVar(&req.Durable, "durable", false, "only events that are stored and have a number")
	c.Flags().StringVar(&req.Region, "region", "", "events of this region's master")
	c.Flags().BoolVar(&req.Instances, "instances", false, "also what each attempt of an instance does")
	return c
}

// foreignToken is a token that no server knows, so that a server reports a gap. It is used
// after a connection that delivered no event. The events between that connection and the
// next one are unknown.
const foreignToken = "none-0"

// followEvents prints the events of one stream until the stream ends. It stores the token
// of the last event in req.
func followEvents(c *cli.Session, req *nusav1.WatchEventsRequest, answered func()) error {
	stream, err := nusav1.NewEventsClient(c.Conn).Watch(c.Ctx, req)
	if err != nil {
		return err
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			return err
		}
		answered()
		req.Token = cmp.Or(e.GetToken(), req.GetToken())
		if err := c.PrintLine(e, func(w *term.Screen) { writeEvent(w, e) }); err != nil {
			return err
		}
	}
}

// writeEvent writes one event as a line. In a terminal that is too narrow for the line, the
// message follows on lines of its own.
func writeEvent(w *term.Screen, e *nusav1.Event) {
	if e.GetReset_() {
		gap := "a gap: older events are gone"
		if e.GetType() == "" && e.GetMessage() != "" {
			gap = term.OneLine(e.GetMessage())
		}
		fmt.Fprintln(w, w.Wait("("+gap+")"))
		if e.GetType() == "" {
			return
		}
	}
	at, message := e.GetTime().AsTime().Local().Format(time.TimeOnly), term.OneLine(e.GetMessage())
	line := strings.TrimRight(fmt.Sprintf("%-20s  %-28s  %s", e.GetType(), e.GetSubject(), message), " ")
	if width := len(at) + len("  ") + utf8.RuneCountInString(line); w.Width == 0 || width < w.Width || message == "" {
		fmt.Fprintf(w, "%s  %s\n", w.Faint(at), line)
		return
	}
	fmt.Fprintf(w, "%s  %s\n", w.Faint(at), strings.TrimRight(fmt.Sprintf("%-20s  %s", e.GetType(), e.GetSubject()), " "))
	w.Note("    ", message)
}
