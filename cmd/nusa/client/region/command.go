package region

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Command returns the command `nusa region`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("region", "Define regions, see what they can fit",
		defineCommand(s), listCommand(s), statusCommand(s), verifyCommand(s), rebindCommand(s),
		cordonCommand(s, true), cordonCommand(s, false), drainCommand(s), failbackCommand(s), loseCommand(s), removeCommand(s),
		banCommand(s, false), unbanCommand(s, false), serverCommand(s), joinPolicyCommand(s),
	)
	s.Bind(c)
	return c
}

func removeCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "remove REGION", Aliases: []string{"rm"}, Short: "Remove a region that owns no work", Args: cli.Positional("REGION"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := c.Regions().Remove(ctx, &nusav1.GetRegionRequest{Name: args[0]})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { fmt.Fprintf(w, "region %s is removed\n", args[0]) })
		}),
	}
}

func cordonCommand(s *cli.Settings, cordon bool) *cobra.Command {
	use, short := "cordon REGION", "Give a region no new work; uncordon ends that"
	if !cordon {
		use, short = "uncordon REGION", "Let a region take new work again"
	}
	return &cobra.Command{
		Use: use, Short: short, Args: cli.Positional("REGION"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			r, err := c.Regions().Cordon(ctx, &nusav1.CordonRegionRequest{Name: args[0], Cordon: cordon})
			if err != nil {
				return err
			}
			return c.Print(r, func(w *term.Screen) { w.Note("", "region "+args[0]+" "+workText(r, c.Program)) })
		}),
	}
}

// workText says which work a region accepts.
func workText(r *nusav1.Region, nusa string) string {
	switch {
	case r.GetDraining() && r.GetState() == nusav1.RegionState_REGION_STATE_LOST:
		return fmt.Sprintf("is draining, and takes no new work when it returns; it is lost: %s (%s region drain %s --off ends the drain)",
			cmp.Or(term.OneLine(r.GetFailoverMessage()), "nothing can be given up there now"), nusa, r.GetDefinition().GetName())
	case r.GetDraining():
		_, left, _ := strings.Cut(term.OneLine(r.GetFailoverMessage()), ": ") // the message is, for example, "draining: 4 instances are left; …"
		return fmt.Sprintf("is draining: %s (%s ends that)", cmp.Or(left, "its work moves to other regions"), term.Whole(fmt.Sprintf("%s region drain %s --off", nusa, r.GetDefinition().GetName())))
	case r.GetCordoned():
		return fmt.Sprintf("takes no new work (%s region uncordon %s ends that); its instances keep running", nusa, r.GetDefinition().GetName())
	case Disconnected(r):
		return "is not cordoned, and takes new work when it is connected: now it is " + term.Word(r.GetState())
	}
	return "takes new work"
}
