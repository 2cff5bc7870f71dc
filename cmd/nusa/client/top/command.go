package top

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/overview/model"
	"github.com/nusa-scheduler/nusa/internal/suggest"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Command returns the command.
func Command() *cobra.Command {
	s := &cli.Settings{}
	order := ""
	c := &cobra.Command{
		Use: "top", Short: "Show regions, their use, alarms and due changes as they change", Args: cli.Positional(),
		Long: `Shows the state of the federation, or of a region at one of its servers: alarms,
what will happen unless something changes, and each region with its use. On a terminal
it follows the state until q or Ctrl-C. It continues after a broken connection.

  q        end              s, S     next or previous order
  r        reverse order    ↑ ↓ j k  scroll, also by Page Up, Page Down

Without a terminal, or with -o json or yaml, it prints the state once.`,
		Example: "  nusa top --sort cpu\n  nusa top -o json",
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			p := &page{order: slices.Index(orders, order)}
			if p.order < 0 {
				near := suggest.Nearest(order, orders)
				if near != "" {
					near = ", did you mean " + near + "?"
				}
				return fmt.Errorf("--sort: %q is not one of %s%s", order, strings.Join(orders, ", "), near)
			}
			if !c.Terminal || c.Output != "table" || os.Getenv("TERM") == "dumb" {
				return once(c, p)
			}
			return onTerminal(c, p)
		}),
	}
	s.Bind(c)
	c.Flags().StringVar(&order, "sort", orders[0], "order of the regions: "+strings.Join(orders, ", "))
	_ = c.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(orders, cobra.ShellCompDirectiveNoFileComp)) // fails only without the flag
	return c
}

// Once prints the state once, in the first order.
func Once(c *cli.Session) error { return once(c, &page{title: "nusa status"}) }

// once prints the state when the whole of it has arrived.
func once(c *cli.Session, p *page) error {
	ctx, cancel := c.WithTimeout()
	defer cancel()
	stream, err := nusav1.NewOverviewClient(c.Conn).Watch(ctx, &nusav1.WatchOverviewRequest{})
	if err != nil {
		return err
	}
	whole := &nusav1.OverviewUpdate{}
	for !p.m.Synced || p.m.Counts == nil { // a busy server may read the jobs after the rest
		u, err := stream.Recv()
		if err != nil && p.m.Synced && c.Ctx.Err() == nil {
			break
		}
		if err != nil {
			return err
		}
		p.apply(u, c.Screen().Now)
		if u.GetReset_() {
			whole = &nusav1.OverviewUpdate{}
		}
		proto.Merge(whole, u)
	}
	return c.Print(whole, func(w *term.Screen) { p.write(w, 0) })
}

// alarmsOf returns the alarms of the server.
func alarmsOf(m *model.Model) []string { return m.Head.GetInfo().GetAlarms() }
