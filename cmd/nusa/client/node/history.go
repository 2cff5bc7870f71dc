package node

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/history"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func historyCommand(s *cli.Settings) *cobra.Command {
	var pool string
	var since time.Duration
	c := &cobra.Command{
		Use: "history [NODE]", Short: "Show the use of a node or a pool over time, and when memory or disk runs out", Args: cli.Positional("[NODE]"),
		Long: `Shows the use of a node, or of a pool of nodes: a line over time for each value, from
the least (▁) to the greatest (█), and the trend of memory and disk. "runs out in
about 12 days (9–20)" is when a line through the values reaches the capacity, with
the 99 % confidence interval. If there is no trend, a text says why. Without a node
or a pool the command shows all pools of --region.

Regions retain values of every 5 seconds for an hour, of each minute for a day, and of
each ten minutes for 31 days.`,
		Example: `  nusa node history node-1 --since 24h
  nusa node history --pool default --region japaneast --since 7d
  nusa node history node-1 -o json`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			if len(args) > 0 && pool != "" {
				return errors.New("give either a node or --pool")
			}
			req := history.Request(history.KindPool, c.Region, pool, since)
			req.Trend = true
			if len(args) == 0 {
				if pool == "" && c.Region == "" {
					return fmt.Errorf("name a node (%s node list shows them), or --pool and --region", c.Program)
				}
				return history.Show(c, req, since, []string{"cpu", "memory_used"})
			}
			// This request finds the region and the id of the node, and reports an unknown
			// name.
			ctx, cancel := c.WithTimeout()
			defer cancel()
			n, err := c.Nodes().Get(ctx, &nusav1.GetNodeRequest{Id: args[0], Region: c.Region})
			if err != nil {
				return err
			}
			req.Kind, req.Region, req.Key = history.KindNode, n.GetRegion(), n.GetId()
			return history.Show(c, req, since, []string{"cpu", "memory_used"})
		}),
	}
	s.BindRegion(c, "region of the node or pool")
	c.Flags().StringVar(&pool, "pool", "", "a pool of nodes instead of one node")
	history.SinceFlag(c, &since, "how far back")
	return c
}
