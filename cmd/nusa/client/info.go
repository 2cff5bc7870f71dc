package client

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func eventsCommand() *cobra.Command {
	s := &settings{}
	req := &nusav1.WatchEventsRequest{}
	c := &cobra.Command{
		Use: "events", Short: "Follow what happens", Args: takes(),
		Long: `Prints events as they happen, until Ctrl-C. When the connection breaks it goes on
where it was as soon as it can, and says so where something is missing:

  job       submitted, stopped, purged; a batch job complete or failed
  slot      instances offered to a region, accepted, returned, stopped, done
  instance  given up after its last attempt, or lost with its node
  node      silent or back, cordoned, drained, removed
  region    defined, connected, disconnected, cordoned, removed

With --instances also what each attempt of an instance does: running, restarted,
complete, failed, declined, stopped. With --region it is that region's master
that tells, of its own jobs and nodes as well. With --token it goes on after an
earlier event (-o json shows tokens) and says so when that is too long ago;
across regions instances are told of from now on.`,
		RunE: s.run(func(c *caller, _ []string) error {
			return c.goOn(func(answered func()) error {
				defer func() { req.Token = cmp.Or(req.GetToken(), noToken) }()
				return c.followEvents(req, answered)
			})
		}),
	}
	s.bind(c)
	c.Flags().StringVar(&req.Token, "token", "", "go on after the event with this token")
	c.Flags().StringVar(&req.Region, "region", "", "what this region's master tells")
	c.Flags().BoolVar(&req.Instances, "instances", false, "also what each attempt of an instance does")
	return c
}

// noToken is of no server's events, so that one answers with a gap: what happened
// between a connection that told of nothing and the next is not known.
const noToken = "none-0"

// followEvents prints one stream until it ends, and remembers where that was.
func (c *caller) followEvents(req *nusav1.WatchEventsRequest, answered func()) error {
	stream, err := nusav1.NewEventsClient(c.conn).Watch(c.ctx, req)
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
		if err := c.printLine(e, func(w io.Writer) { c.style.event(w, e) }); err != nil {
			return err
		}
	}
}

func (p palette) event(w io.Writer, e *nusav1.Event) {
	if e.GetReset_() {
		fmt.Fprintln(w, p.wait("(a gap: older events are no longer kept)"))
		if e.GetType() == "" {
			return
		}
	}
	line := fmt.Sprintf("%-20s  %-28s  %s", e.GetType(), e.GetSubject(), plain(e.GetMessage()))
	fmt.Fprintf(w, "%s  %s\n", p.faint(e.GetTime().AsTime().Local().Format(time.TimeOnly)), strings.TrimRight(line, " "))
}

func versionCommand() *cobra.Command {
	s := &settings{}
	var server bool
	c := &cobra.Command{
		Use: "version", Short: "Print the version of this binary, and with --server of the server", Args: takes(),
		RunE: s.run(func(c *caller, _ []string) error {
			own := &nusav1.InfoResponse{Role: "client", Version: serve.Version}
			if !server {
				return c.print(own, func(w io.Writer) {
					fmt.Fprintf(w, "nusa %s (%s, %s/%s)\n", serve.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
				})
			}
			ctx, cancel := c.call()
			defer cancel()
			info, err := nusav1.NewSystemClient(c.conn).Info(ctx, &nusav1.InfoRequest{})
			if err != nil {
				return err
			}
			return c.print(info, func(w io.Writer) {
				fmt.Fprintf(w, "client %s\nserver %s  %s\n", serve.Version, info.GetVersion(), strings.Join(strings.Fields(info.GetRole()+" "+info.GetName()+" "+info.GetRegion()), " "))
			})
		}),
	}
	s.bind(c)
	c.Flags().BoolVar(&server, "server", false, "ask the server too")
	return c
}
