package region

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// serverCommand returns the command `nusa region server`.
func serverCommand(s *cli.Settings) *cobra.Command {
	return cli.Noun("server", "Remove and ban regional servers", removeServerCommand(s), banCommand(s, true), unbanCommand(s, true))
}

// ofServer are the argument and the object of a command about a region or about one of its servers.
func ofServer(server bool) (argument, object string) {
	if server {
		return "REGION/SERVER", "regional server"
	}
	return "REGION", "region"
}

// split returns the region and the server of REGION/SERVER.
func split(text string, server bool) (region, name string, err error) {
	if !server {
		return text, "", nil
	}
	region, name, ok := strings.Cut(text, "/")
	if !ok || region == "" || name == "" {
		return "", "", fmt.Errorf("%q is not REGION/SERVER, for example jakarta/jkt-1", text)
	}
	return region, name, nil
}

func banCommand(s *cli.Settings, server bool) *cobra.Command {
	argument, object := ofServer(server)
	var reason string
	c := &cobra.Command{
		Use: "ban " + argument, Short: "Refuse the servers of a region at the global tier, and end their connections", Args: cli.Positional(argument),
		Long: `Refuses the servers of a region until region unban: within two seconds each global
server ends their sessions, and gives them no certificates. Use it when the keys of a
region may be stolen.

The region then counts as cut off, and its work moves as the jobs say. The region
itself goes on as an island: its servers, its agents and what runs there do not stop.`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			region, name, err := split(args[0], server)
			if err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := nusav1.NewMembersClient(c.Conn).BanRegion(ctx, &nusav1.BanRegionRequest{Region: region, Name: name, Reason: reason})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) {
				fmt.Fprintf(w, "%s %s is banned\n", object, args[0])
				unreached(w, region, resp.GetRegionError())
			})
		}),
	}
	if server {
		c.Short = "Refuse a regional server, and end its connections"
		c.Long = `Refuses a regional server by name until region server unban: within two seconds the
global servers and the other servers of its region end its connections. A server that
is cut off from the others learns of the ban once it is back. Use it when the key of
the server may be stolen. The server also had a key that issues identities of the
region: replace the root of the federation, too.

At a server of the region (--addr) the ban holds in the region only.`
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for people, at most 64 bytes")
	return c
}

func unbanCommand(s *cli.Settings, server bool) *cobra.Command {
	argument, object := ofServer(server)
	return &cobra.Command{
		Use: "unban " + argument, Short: "Let a banned " + object + " connect again", Args: cli.Positional(argument),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			region, name, err := split(args[0], server)
			if err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := nusav1.NewMembersClient(c.Conn).UnbanRegion(ctx, &nusav1.UnbanRegionRequest{Region: region, Name: name})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) {
				if !resp.GetRemoved() {
					fmt.Fprintf(w, "%s %s is not banned\n", object, args[0])
					return
				}
				fmt.Fprintf(w, "%s %s may connect again\n", object, args[0])
			})
		}),
	}
}

func removeServerCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "remove REGION/SERVER", Aliases: []string{"rm"}, Short: "Free the name of a regional server that will not come back", Args: cli.Positional("REGION/SERVER"),
		Long: `Frees the name of a regional server whose machine is gone, so that a new machine can
join under that name with a new token. The key of the old machine is refused from then
on. The region replaces the dead server in its Raft group by itself.

A server that lives is not removed: stop it first.`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			region, name, err := split(args[0], true)
			if err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := nusav1.NewMembersClient(c.Conn).RemoveServer(ctx, &nusav1.RemoveServerRequest{Region: region, Name: name})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) {
				fmt.Fprintf(w, "regional server %s is removed: another machine may join under its name\n", args[0])
				unreached(w, region, resp.GetRegionError())
			})
		}),
	}
}

// unreached says that a region does not know of a change yet.
func unreached(w *term.Screen, region, why string) {
	if why != "" {
		fmt.Fprintf(w, "the servers of region %s do not know that yet: %s\n", region, term.OneLine(why))
	}
}
