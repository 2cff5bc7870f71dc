package webhook

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func testCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "test NAME", Short: "Send a test event now, and show the response", Args: cli.Positional("NAME"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).Test(ctx, &nusav1.TestWebhookRequest{Name: args[0]})
			if err != nil {
				return err
			}
			err = c.Print(resp, func(w *term.Screen) {
				fmt.Fprintf(w, "%s in %s\n", outcome(resp.GetStatusCode(), resp.GetError()), term.Duration(resp.GetDuration().AsDuration()))
				if resp.GetBody() != "" {
					fmt.Fprintln(w, term.OneLine(resp.GetBody()))
				}
			})
			if err == nil && resp.GetError() != "" {
				err = fmt.Errorf("the endpoint did not accept the test event: %s", term.OneLine(resp.GetError()))
			}
			return err
		}),
	}
}

// outcome says what an endpoint returned.
func outcome(code int32, fault string) string {
	switch {
	case code == 0:
		return "no response: " + term.OneLine(fault)
	case fault != "" && !strings.HasPrefix(fault, fmt.Sprintf("status %d", code)):
		return fmt.Sprintf("status %d: %s", code, term.OneLine(fault))
	}
	return cmp.Or(term.OneLine(fault), fmt.Sprintf("status %d", code))
}

func logCommand(s *cli.Settings) *cobra.Command {
	req := &nusav1.WebhookLogRequest{}
	c := &cobra.Command{
		Use: "log NAME", Short: "Show the latest deliveries", Args: cli.Positional("NAME"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			req.Name = args[0]
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).Log(ctx, req)
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { writeLog(w, resp.GetDeliveries()) })
		}),
	}
	c.Flags().Int32Var(&req.Limit, "limit", 20, "at most so many deliveries, 1 to 100")
	c.Flags().BoolVar(&req.Failed, "failed", false, "only deliveries that failed")
	return c
}

func writeLog(w *term.Screen, all []*nusav1.WebhookDelivery) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no delivery since the active server was elected")
		return
	}
	t := term.NewTable(">EVENT", "TYPE", "STATE", ">TRIES", "#SUBJECT", "#LATEST RESPONSE")
	for _, d := range all {
		latest := ""
		if n := len(d.GetAttempts()); n > 0 {
			latest = outcome(d.GetAttempts()[n-1].GetStatusCode(), d.GetAttempts()[n-1].GetError())
		}
		t.Row(fmt.Sprint(d.GetNumber()), term.OneLine(d.GetType()), w.State(d.GetState()), fmt.Sprint(len(d.GetAttempts())), term.OneLine(d.GetSubject()), latest)
	}
	t.Write(w)
}

func replayCommand(s *cli.Settings) *cobra.Command {
	var id string
	var from uint64
	c := &cobra.Command{
		Use: "replay NAME (--id ID | --from NUMBER)", Short: "Send one event, or all events from a number on, again", Args: cli.Positional("NAME"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			req := &nusav1.ReplayWebhookRequest{Name: args[0]}
			switch {
			case (id == "") == (from == 0):
				return errors.New("give either --id of a delivery (see webhook log -o json) or --from with the number of an event")
			case id != "":
				req.What = &nusav1.ReplayWebhookRequest_Id{Id: id}
			default:
				req.What = &nusav1.ReplayWebhookRequest_From{From: from}
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).Replay(ctx, req)
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { fmt.Fprintf(w, "%d events are read again\n", resp.GetEvents()) })
		}),
	}
	c.Flags().StringVar(&id, "id", "", "webhook-id of one delivery")
	c.Flags().Uint64Var(&from, "from", 0, "number of the first event")
	return c
}
