package region

import (
	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func drainCommand(s *cli.Settings) *cobra.Command {
	var off bool
	c := &cobra.Command{
		Use: "drain REGION", Short: "Move the work of a region to others; --off ends the drain", Args: cli.Positional("REGION"),
		Long: `Moves the work of a region to other regions, at most update.max_parallel instances of a
group at a time: this region gives up an instance, and only then another region starts
it. Instances stay if no other region has room for them. The region gets no new work.
region list and region status show how much is left, and why it stays.`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			r, err := c.Regions().Drain(ctx, &nusav1.DrainRegionRequest{Name: args[0], Drain: !off})
			if err != nil {
				return err
			}
			return c.Print(r, func(w *term.Screen) { w.Note("", "region "+args[0]+" "+workText(r, c.Program)) })
		}),
	}
	c.Flags().BoolVar(&off, "off", false, "end the drain")
	return c
}
