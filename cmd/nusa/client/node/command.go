package node

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("node", "Look at nodes and their history, drain, cordon and remove them",
		listCommand(s), statusCommand(s), drainCommand(s), cordonCommand(s, true), cordonCommand(s, false), removeCommand(s), historyCommand(s))
	s.Bind(c)
	return c
}

func removeCommand(s *cli.Settings) *cobra.Command {
	c := &cobra.Command{
		Use: "remove NODE", Aliases: []string{"rm"}, Short: "Forget a node that is lost or has left, and will not come back", Args: cli.Positional("NODE"),
		Long: `Forgets a node that is lost or has left: what it is believed to run is lost from
then on, and replaced. Without this a node is forgotten once it is gone for 72
hours, unless it is cordoned or drained, or may run what only it or you can end:
a group with "replace: false" in disconnect.node. If its agent does come back,
it is a new node, and stops what it runs.`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := c.Nodes().Remove(ctx, &nusav1.RemoveNodeRequest{Id: args[0], Region: c.Region})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { fmt.Fprintf(w, "node %s is removed\n", fullName(resp.GetNode())) })
		}),
	}
	s.BindRegion(c, "region of the node, when its name is not unique")
	return c
}
