package region

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func rebindCommand(s *cli.Settings) *cobra.Command {
	var federation string
	c := &cobra.Command{
		Use: "rebind", Short: "Let a region join another federation", Args: cli.Positional(),
		Long: "Allows the region of the called server to join the federation with the given id, and no other.\n" +
			"A region refuses every federation but its own, because an empty or foreign one would stop its work.\n" +
			"After the rebind the region runs what that federation orders, and stops its former federation's jobs.\n" +
			"The region's own jobs (NAME@REGION) continue.",
		Example: "  nusa region rebind --addr 10.0.0.2:7610 \\\n    --federation 2VIP6IXGENHFRLURL3E6LPWTHP",
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			if federation == "" {
				return errors.New("--federation is missing: give the id of the federation that the region may join; its global servers and the region's refusal name it")
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := c.Regions().Rebind(ctx, &nusav1.RebindRegionRequest{FederationId: federation})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { fmt.Fprintf(w, "the region may join federation %s\n", federation) })
		}),
	}
	c.Flags().StringVar(&federation, "federation", "", "id of the federation (required)")
	return c
}
