package server

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func recoverCommand(s *cli.Settings) *cobra.Command {
	var federation string
	c := &cobra.Command{
		Use: "recover", Short: "Continue after the store was restored from an old copy", Args: cli.Positional(),
		Long: `Continues after the etcd of the federation was restored from an old copy. Since the
active server noticed this, nothing is placed, ordered or stored. It notices it by the
log of the store, or by a region that knows a later revision than the store.

First let all regions connect: an alarm names what they know. The recovery makes all
later revisions greater than those that the regions know, so that no work is confused
with other work. Then the regions run what the restored store says. Work that was
submitted after the copy was made stops. The command lists this work first, as far as
the regions have reported it. Jobs that were stopped after the copy was made run again:
the command lists them, too.

After the recovery no region gets a lease, and nothing moves to another region, until
every region has confirmed what it runs. For a region that will never return, run "nusa
region lose NAME".

The confirmation is the id of the federation: type it at the prompt, or give it with
--federation.`,
		Example: "  nusa server recover",
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			if err := showStops(c); err != nil {
				return err
			}
			if federation == "" {
				var err error
				federation, err = typedFederation(c)
				if err != nil {
					return err
				}
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := nusav1.NewSystemClient(c.Conn).Recover(ctx, &nusav1.RecoverRequest{FederationId: federation})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) {
				fmt.Fprintf(w, "the store is recovered: revisions continue at %d, and the regions connect again\n", resp.GetRevision())
			})
		}),
	}
	c.Flags().StringVar(&federation, "federation", "", "id of the federation, instead of the prompt")
	return c
}

// showStops shows what the recovery would stop.
func showStops(c *cli.Session) error {
	ctx, cancel := c.WithTimeout()
	defer cancel()
	c.PrintAlarms(ctx)
	would, err := nusav1.NewSystemClient(c.Conn).Recover(ctx, &nusav1.RecoverRequest{DryRun: true})
	switch {
	case status.Code(err) == codes.InvalidArgument: // the server is too old for a dry run
		c.Warn("Work that was submitted after the copy was made is going to be stopped.")
	case err != nil:
		return err
	}
	for _, line := range whatStops(would) {
		c.Warn("%s", line)
	}
	return nil
}

// typedFederation returns the id of the federation that the user types.
func typedFederation(c *cli.Session) (string, error) {
	ctx, cancel := c.WithTimeout()
	defer cancel()
	info, err := nusav1.NewSystemClient(c.Conn).Info(ctx, &nusav1.InfoRequest{})
	if err != nil {
		return "", err
	}
	c.Warn("Type the id of the federation, %s, to continue with the restored store:", info.GetFederationId())
	line, typed := c.ReadLine()
	if !typed {
		return "", errors.New("nothing was typed, and nothing has changed: type the id of the federation, or give it with --federation")
	}
	return line, nil
}

// whatStops returns lines about what the recovery would stop, as far as the regions have
// reported what they run.
func whatStops(would *nusav1.RecoverResponse) []string {
	if would == nil {
		return nil
	}
	var out []string
	for _, l := range would.GetLost() {
		what := term.Plural(l.GetInstances(), "instance") + " would stop"
		switch {
		case l.GetStoredVersion() == 0:
			what += ": the store does not have the job"
		case l.GetInstances() == 0:
			what = fmt.Sprintf("version %d would return to version %d", l.GetJobVersion(), l.GetStoredVersion())
		}
		out = append(out, fmt.Sprintf("  %s/%s group %s in %s: %s", l.GetNamespace(), l.GetJob(), l.GetGroup(), l.GetRegion(), what))
	}
	if n := would.GetLeftOut(); n > 0 {
		out = append(out, fmt.Sprintf("  perhaps more: the regions have not named %s", term.Plural(n, "slot")))
	}
	if len(out) > 0 {
		out = append([]string{"What the regions run and the restored store does not know:"}, out...)
	}
	if starts := would.GetStarts(); len(starts) > 0 {
		out = append(out, "What the restored store has and the regions do not run, for example because it was stopped since:")
		for _, l := range starts {
			out = append(out, fmt.Sprintf("  %s/%s group %s in %s: %s would start", l.GetNamespace(), l.GetJob(), l.GetGroup(), l.GetRegion(), term.Plural(l.GetInstances(), "instance")))
		}
	}
	switch silent := would.GetSilent(); {
	case len(silent) > 0:
		out = append(out, "These regions have not reported yet what they run: "+strings.Join(silent, ", "),
			"After the recovery no region gets a lease until these regions have confirmed it, or `nusa region lose` was run for them.")
	case len(out) == 0:
		out = append(out, "The regions run nothing that the restored store does not know.")
	}
	return out
}
