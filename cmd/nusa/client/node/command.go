package node

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Command returns the command `nusa node`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("node", "Look at nodes and their history, drain, cordon, register, remove and ban them",
		listCommand(s), statusCommand(s), drainCommand(s), cordonCommand(s, true), cordonCommand(s, false), removeCommand(s), historyCommand(s), banCommand(s), unbanCommand(s), membersCommand(s), registerCommand(s), unregisterCommand(s))
	s.Bind(c)
	return c
}

func removeCommand(s *cli.Settings) *cobra.Command {
	c := &cobra.Command{
		Use: "remove NODE", Aliases: []string{"rm"}, Short: "Remove a node that is lost or has left, and will not come back", Args: cli.Positional("NODE"),
		Long: `Removes a node that is lost or has left. Its instances count as lost and are replaced.
Its name is free: another machine may join under the name with a new token. The key of
the old machine is refused. That machine, too, comes back with a new token only.

An agent that has joined and has no node is removed with --region.

Without this command a node is removed after 72 hours, with two exceptions. It is not
removed while it is cordoned or drained. It is not removed while it may still run
instances of a group with "replace: false" in disconnect.node, because only the node
itself or an operator can end such instances. If the agent comes back later, it
registers as a new node and stops its running tasks.`,
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
