package job

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func adoptCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "adopt NAME@REGION", Short: "Give a region's own job to the global tier", Args: cli.Positional("NAME@REGION"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ref, err := c.Ref(args[0])
			if err != nil {
				return err
			}
			if ref.GetRegion() == "" {
				return fmt.Errorf("%q names no region: write NAME@REGION", args[0])
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := c.Jobs().Adopt(ctx, &nusav1.AdoptRequest{Namespace: ref.GetNamespace(), Name: ref.GetName(), Region: ref.GetRegion()})
			if err != nil {
				return err
			}
			cli.PrintWarnings(c, resp.GetWarnings())
			return c.Print(resp, func(w *term.Screen) {
				fmt.Fprintf(w, "%s is now %s, version %d\n", cli.RefName(ref), cli.JobName(ref.GetNamespace(), ref.GetName(), ""), resp.GetVersion())
			})
		}),
	}
}
