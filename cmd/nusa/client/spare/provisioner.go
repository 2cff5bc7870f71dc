package spare

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func provisionerSetCommand(s *cli.Settings) *cobra.Command {
	var hook, gitlab, ref, awx, program, secretFile string
	var timeout, join time.Duration
	c := &cobra.Command{
		Use: "set NAME", Short: "Store a provisioner, and replace an earlier one", Args: cli.Positional("NAME"),
		Long: `Stores who makes hosts that are missing: an endpoint that gets a signed request, a
pipeline of GitLab, a job template of Ansible AWX, or a program that each global server
allows with --spare-command. Its hosts must join the pool of the request by themselves.

--secret-file has the secret that signs (whsec_…), the trigger token of GitLab or the
OAuth token of AWX. Without it, a provisioner that exists keeps its secret.`,
		Example: `  nusa spare provisioner set lab --webhook https://lab.example.com/hosts \
    --secret-file lab.secret
  nusa spare provisioner set metal --ref main --secret-file token \
    --gitlab https://git.example.com/api/v4/projects/7/trigger/pipeline
  nusa spare provisioner set local --command add-host --join-timeout 5m`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			p := &nusav1.Provisioner{Name: args[0]}
			kinds := 0
			for _, k := range []struct {
				given string
				set   func()
			}{
				{hook, func() { p.Kind = &nusav1.Provisioner_Webhook{Webhook: &nusav1.WebhookProvisioner{Url: hook}} }},
				{gitlab, func() { p.Kind = &nusav1.Provisioner_Gitlab{Gitlab: &nusav1.GitlabProvisioner{Url: gitlab, Ref: ref}} }},
				{awx, func() { p.Kind = &nusav1.Provisioner_Awx{Awx: &nusav1.AwxProvisioner{Url: awx}} }},
				{program, func() { p.Kind = &nusav1.Provisioner_Command{Command: &nusav1.CommandProvisioner{Program: program}} }},
			} {
				if k.given != "" {
					kinds++
					k.set()
				}
			}
			if kinds != 1 {
				return fmt.Errorf("give one of --webhook, --gitlab, --awx and --command")
			}
			if timeout != 0 {
				p.Timeout = durationpb.New(timeout)
			}
			if join != 0 {
				p.JoinTimeout = durationpb.New(join)
			}
			req := &nusav1.SetProvisionerRequest{Provisioner: p}
			if secretFile != "" {
				text, err := cli.ReadSecret(c.Cmd, secretFile)
				if err != nil {
					return fmt.Errorf("--secret-file: %w", err)
				}
				req.Secret = strings.TrimSpace(text)
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			out, err := client(c).SetProvisioner(ctx, req)
			if err != nil {
				return err
			}
			return c.Print(out, func(w *term.Screen) { fmt.Fprintf(w, "provisioner %s is stored\n", out.GetName()) })
		}),
	}
	f := c.Flags()
	f.StringVar(&hook, "webhook", "", "URL of an endpoint that gets a signed request, https://…")
	f.StringVar(&gitlab, "gitlab", "", "URL of a pipeline trigger, https://HOST/…/trigger/pipeline")
	f.StringVar(&ref, "ref", "main", "branch or tag of the pipeline")
	f.StringVar(&awx, "awx", "", "URL of a job template, https://HOST/…/ID/launch/")
	f.StringVar(&program, "command", "", "name of a program that the global servers allow")
	f.StringVar(&secretFile, "secret-file", "", "file with the secret or the token; - for standard input")
	f.DurationVar(&timeout, "request-timeout", 0, "time for one request, 1s to 5m (default 15s)")
	f.DurationVar(&join, "join-timeout", 0, "time that the hosts have to join (default 15m)")
	return c
}

// kindOf returns the kind of a provisioner, and what it calls.
func kindOf(p *nusav1.Provisioner) (kind, calls string) {
	switch k := p.GetKind().(type) {
	case *nusav1.Provisioner_Webhook:
		return "webhook", k.Webhook.GetUrl()
	case *nusav1.Provisioner_Gitlab:
		return "gitlab", k.Gitlab.GetUrl()
	case *nusav1.Provisioner_Awx:
		return "awx", k.Awx.GetUrl()
	case *nusav1.Provisioner_Command:
		return "command", k.Command.GetProgram()
	}
	return "", ""
}

func provisionerListCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the provisioners", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			out, err := client(c).ListProvisioners(ctx, &nusav1.ListProvisionersRequest{})
			if err != nil {
				return err
			}
			return c.Print(out, func(w *term.Screen) {
				if len(out.GetProvisioners()) == 0 {
					fmt.Fprintf(w, "no provisioners; add one with: %s spare provisioner set NAME --webhook https://…\n", w.Program)
					return
				}
				t := term.NewTable("NAME", "KIND", "JOIN TIMEOUT", "#CALLS")
				for _, p := range out.GetProvisioners() {
					kind, calls := kindOf(p)
					t.Row(p.GetName(), kind, job.FormatDuration(p.GetJoinTimeout().AsDuration()), term.OneLine(calls))
				}
				t.Write(w)
			})
		}),
	}
}

func provisionerRemoveCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Aliases: []string{"rm"}, Short: "Remove a provisioner", Args: cli.Positional("NAME"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			out, err := client(c).RemoveProvisioner(ctx, &nusav1.RemoveProvisionerRequest{Name: args[0]})
			if err != nil {
				return err
			}
			return c.Print(out, func(w *term.Screen) { fmt.Fprintf(w, "provisioner %s is removed\n", args[0]) })
		}),
	}
}
