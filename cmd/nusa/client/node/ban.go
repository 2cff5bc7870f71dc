package node

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// roleAgent is the role of members that are nodes.
const roleAgent = "agent"

var errNoRegion = errors.New("--region is required: the region of the node")

func banCommand(s *cli.Settings) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "ban NODE", Short: "Refuse the agent of a node, and end its connections", Args: cli.Positional("NODE"),
		Long: `Refuses the agent of a node until node unban: each server of the region ends the
agent's connections within two seconds, and gives it no certificate. NODE is the
agent's name (--name), whether it has joined or not. Use it when the key of a node may
be stolen.

The node then counts as lost, and its work moves as the jobs say. What runs on it goes
on running: only the machine itself can stop that.`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			if c.Region == "" {
				return errNoRegion
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := nusav1.NewMembersClient(c.Conn).Ban(ctx, &nusav1.BanRequest{Role: roleAgent, Region: c.Region, Name: args[0], Reason: reason})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) {
				fmt.Fprintf(w, "node %s of region %s is banned (%s node unban %s --region %s ends that)\n", resp.GetName(), resp.GetRegion(), c.Program, resp.GetName(), resp.GetRegion())
			})
		}),
	}
	s.BindRegion(c, "region of the node (required)")
	c.Flags().StringVar(&reason, "reason", "", "why, for people, at most 64 bytes")
	return c
}

func unbanCommand(s *cli.Settings) *cobra.Command {
	c := &cobra.Command{
		Use: "unban NODE", Short: "Let the agent of a node connect again", Args: cli.Positional("NODE"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			if c.Region == "" {
				return errNoRegion
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := nusav1.NewMembersClient(c.Conn).Unban(ctx, &nusav1.UnbanRequest{Role: roleAgent, Region: c.Region, Name: args[0]})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) {
				if !resp.GetRemoved() {
					fmt.Fprintf(w, "node %s of region %s is not banned\n", args[0], c.Region)
					return
				}
				fmt.Fprintf(w, "node %s of region %s may connect again\n", args[0], c.Region)
			})
		}),
	}
	s.BindRegion(c, "region of the node (required)")
	return c
}
