package webhook

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Command returns the command `nusa webhook`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("webhook", "Send events to HTTP endpoints, signed",
		createCommand(s), listCommand(s), showCommand(s), testCommand(s), logCommand(s), replayCommand(s),
		disableCommand(s), enableCommand(s), rotateCommand(s), removeCommand(s))
	s.Bind(c)
	return c
}

func client(c *cli.Session) nusav1.WebhooksClient { return nusav1.NewWebhooksClient(c.Conn) }

func createCommand(s *cli.Settings) *cobra.Command {
	w := &nusav1.Webhook{}
	var secretFile, out string
	var replace bool
	timeout := time.Duration(0)
	c := &cobra.Command{
		Use: "create NAME --url URL", Short: "Send events to an endpoint", Args: cli.Positional("NAME"),
		Long: `Sends the events that happen from now on to an HTTPS endpoint, by the Standard
Webhooks specification: each request has the headers webhook-id, webhook-timestamp
and webhook-signature, and a CloudEvents body in JSON.

The server makes the secret that signs, and shows it only this once: on standard
output, or in the new file of --secret-out, which only its owner can read.
--secret-file gives your own secrets, one a line, or - for standard input.

--replace changes a webhook that exists. It keeps its secrets and its place in the
events.`,
		Example: `  nusa webhook create ops --url https://ops.example.com/nusa \
    --types 'region.*,job.failed' --secret-out ops.secret
  nusa webhook create pay --url https://pay.example.com/hook --namespaces pay \
    --filter 'event.region == "eastus"'`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			w.Name = args[0]
			if timeout != 0 {
				w.Timeout = durationpb.New(timeout)
			}
			req := &nusav1.SetWebhookRequest{Webhook: w, Revision: cli.NewOnly(replace)}
			var err error
			req.Secrets, err = readSecrets(c, secretFile)
			if err != nil {
				return err
			}
			file, err := reserve(out)
			if err != nil {
				return err
			}
			defer file.discard()
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).Set(ctx, req)
			if err != nil {
				return cli.Exists(err, replace)
			}
			return printSecret(c, resp, &resp.Secret, file, fmt.Sprintf("webhook %s is stored (%s webhook test %s sends a test event)", w.GetName(), c.Program, w.GetName()))
		}),
	}
	f := c.Flags()
	f.StringVar(&w.Url, "url", "", "where the events go, https://… (required)")
	f.StringVar(&w.Description, "description", "", "what the webhook is for, at most 256 bytes")
	f.StringSliceVar(&w.Types, "types", nil, "types of events, such as job.submitted or 'region.*' (default: all)")
	f.StringSliceVar(&w.Namespaces, "namespaces", nil, "only events about objects of these namespaces")
	f.StringVar(&w.Filter, "filter", "", `CEL expression over event, such as 'event.region == "eastus"'`)
	f.DurationVar(&timeout, "request-timeout", 0, "time for one request, 1s to 30s (default 15s)")
	f.Int32Var(&w.Parallel, "parallel", 0, "requests at the same time, at most 8 (default 4)")
	f.StringVar(&secretFile, "secret-file", "", "file with your own secrets, whsec_…, one a line; - for standard input")
	f.StringVar(&out, "secret-out", "", "write the secret into this new file (default: print it)")
	f.BoolVar(&replace, "replace", false, "change a webhook that exists")
	return c
}

func listCommand(s *cli.Settings) *cobra.Command {
	var states *cli.States
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the webhooks, and how their delivery goes", Args: cli.Positional(),
		RunE: cli.Call(s, func(ctx context.Context, c *cli.Session, _ string) (*nusav1.ListWebhooksResponse, error) {
			out, err := client(c).List(ctx, &nusav1.ListWebhooksRequest{States: cli.Enums(states, nusav1.WebhookState_WEBHOOK_STATE_UNSPECIFIED)})
			if err == nil { // a server of an earlier version does not select
				out.Webhooks = slices.DeleteFunc(out.Webhooks, func(x *nusav1.Webhook) bool { return !states.Has(term.Word(x.GetStatus().GetState())) })
			}
			return out, err
		}, func(w *term.Screen, out *nusav1.ListWebhooksResponse, _ string) {
			if none := cli.NoneSuch(w.Program, "webhooks", "webhook list", states, nil); len(out.GetWebhooks()) == 0 && none != "" {
				fmt.Fprintln(w, none)
				return
			}
			writeList(w, out.GetWebhooks())
		}),
	}
	states = cli.EnumStateFlag(c, "webhooks", nusav1.WebhookState_WEBHOOK_STATE_UNSPECIFIED)
	return c
}

func writeList(w *term.Screen, all []*nusav1.Webhook) {
	if len(all) == 0 {
		fmt.Fprintf(w, "no webhook; create one with: %s webhook create NAME --url https://…\n", w.Program)
		return
	}
	var notes [][2]string
	t := term.NewTable("NAME", "STATE", ">WAITING", ">DELIVERED", ">GIVEN UP", ">DROPPED", "#URL")
	for _, h := range all {
		st := h.GetStatus()
		t.Row(h.GetName(), w.State(term.Word(st.GetState())), fmt.Sprint(uint64(st.GetPending())+st.GetUnread()),
			fmt.Sprint(st.GetDelivered()), fmt.Sprint(st.GetGivenUp()), fmt.Sprint(st.GetDropped()), term.OneLine(h.GetUrl()))
		notes = append(notes, [2]string{h.GetName(), cmp.Or(h.GetDisabledReason(), st.GetLastError())})
	}
	t.Narrow(w.Width, "DROPPED", "GIVEN UP")
	t.Write(w)
	w.Notes(notes)
}

func showCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show a webhook", Args: cli.Positional("NAME"),
		RunE: cli.Call(s, func(ctx context.Context, c *cli.Session, name string) (*nusav1.Webhook, error) {
			return client(c).Get(ctx, &nusav1.GetWebhookRequest{Name: name})
		}, func(w *term.Screen, out *nusav1.Webhook, _ string) { writeOne(w, out) }),
	}
}

func writeOne(w *term.Screen, h *nusav1.Webhook) {
	st := h.GetStatus()
	term.WriteFields(w, [][2]string{
		{"Name", h.GetName()}, {"URL", h.GetUrl()}, {"Description", h.GetDescription()}, {"State", w.State(term.Word(st.GetState()))},
		{"Why disabled", h.GetDisabledReason()}, {"Types", strings.Join(h.GetTypes(), ", ")}, {"Namespaces", strings.Join(h.GetNamespaces(), ", ")},
		{"Filter", h.GetFilter()}, {"Secrets", fmt.Sprint(h.GetSecrets())}, {"Read up to", fmt.Sprint(st.GetCursor())}, {"Unread", fmt.Sprint(st.GetUnread())},
		{"Pending", fmt.Sprint(st.GetPending())}, {"In flight", fmt.Sprint(st.GetInFlight())}, {"Delivered", fmt.Sprint(st.GetDelivered())}, {"Failed attempts", fmt.Sprint(st.GetFailed())},
		{"Given up", fmt.Sprint(st.GetGivenUp())}, {"Dropped", fmt.Sprint(st.GetDropped())}, {"Last error", st.GetLastError()},
	})
}

// act returns a command that changes one webhook and says so.
func act(s *cli.Settings, use, short, done string, call func(ctx context.Context, c nusav1.WebhooksClient, name string) error) *cobra.Command {
	return &cobra.Command{
		Use: use + " NAME", Short: short, Args: cli.Positional("NAME"),
		RunE: cli.Call(s, func(ctx context.Context, c *cli.Session, name string) (*nusav1.Webhook, error) {
			return &nusav1.Webhook{Name: name}, call(ctx, client(c), name)
		}, cli.Done[*nusav1.Webhook]("webhook", done)),
	}
}

func disableCommand(s *cli.Settings) *cobra.Command {
	return act(s, "disable", "End the delivery; events wait until enable", "disabled", func(ctx context.Context, c nusav1.WebhooksClient, name string) error {
		_, err := c.Disable(ctx, &nusav1.DisableWebhookRequest{Name: name})
		return err
	})
}

func enableCommand(s *cli.Settings) *cobra.Command {
	skip := false
	c := act(s, "enable", "Begin the delivery again, and send what waits at once", "enabled", func(ctx context.Context, c nusav1.WebhooksClient, name string) error {
		_, err := c.Enable(ctx, &nusav1.EnableWebhookRequest{Name: name, Skip: skip})
		return err
	})
	c.Flags().BoolVar(&skip, "skip", false, "do not send the events that happened until now")
	return c
}

func removeCommand(s *cli.Settings) *cobra.Command {
	c := act(s, "remove", "Remove a webhook, and all that waits for it", "removed", func(ctx context.Context, c nusav1.WebhooksClient, name string) error {
		_, err := c.Remove(ctx, &nusav1.RemoveWebhookRequest{Name: name})
		return err
	})
	c.Aliases = []string{"rm"}
	return c
}
