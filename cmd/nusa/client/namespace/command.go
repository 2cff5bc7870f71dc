// Package namespace has the commands `nusa namespace`: what the jobs of a namespace may ask for.
//
//   - command.go: all commands
package namespace

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Command returns the command `nusa namespace`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("namespace", "Limit what the jobs of a namespace may ask for",
		listCommand(s), showCommand(s), setCommand(s), removeCommand(s))
	s.Bind(c)
	return c
}

func client(c *cli.Session) nusav1.NamespacesClient { return nusav1.NewNamespacesClient(c.Conn) }

func listCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the namespaces with limits", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).List(ctx, &nusav1.ListNamespacesRequest{})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { writeList(w, resp.GetNamespaces()) })
		}),
	}
}

func writeList(w *term.Screen, all []*nusav1.Namespace) {
	if len(all) == 0 {
		fmt.Fprintf(w, "no namespace has limits; set some with: %s namespace set NAME --forbid root,privileged\n", w.Program)
		return
	}
	t := term.NewTable("NAMESPACE", "DRIVERS", "POOLS", "REGIONS", "FORBIDDEN", "#DESCRIPTION")
	for _, n := range all {
		t.Row(n.GetName(), orAll(n.GetDrivers()), orAll(n.GetPools()), orAll(n.GetRegions()), term.OrDash(strings.Join(forbidden(n), ",")), term.OneLine(n.GetDescription()))
	}
	t.Write(w)
}

func orAll(patterns []string) string {
	if len(patterns) == 0 {
		return "all"
	}
	return term.OneLine(strings.Join(patterns, ","))
}

// forbid is a value of --forbid, and its field.
type forbid struct {
	name  string
	field func(*nusav1.Namespace) *bool
}

var forbids = []forbid{
	{"root", func(n *nusav1.Namespace) *bool { return &n.ForbidRoot }},
	{"privileged", func(n *nusav1.Namespace) *bool { return &n.ForbidPrivileged }},
	{"host-volumes", func(n *nusav1.Namespace) *bool { return &n.ForbidHostVolumes }},
}

func forbidden(n *nusav1.Namespace) (out []string) {
	for _, f := range forbids {
		if *f.field(n) {
			out = append(out, f.name)
		}
	}
	return out
}

func showCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show the limits of a namespace", Args: cli.Positional("NAME"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).Get(ctx, &nusav1.GetNamespaceRequest{Name: args[0]})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { writeList(w, []*nusav1.Namespace{resp}) })
		}),
	}
}

func setCommand(s *cli.Settings) *cobra.Command {
	n := &nusav1.Namespace{}
	var forbidden []string
	c := &cobra.Command{
		Use: "set NAME", Short: "Set the limits of a namespace, replacing the earlier ones", Args: cli.Positional("NAME"),
		Long: `Sets what the jobs of a namespace may ask for. What a flag does not name has no
limit. A job that asks for more is refused when it is submitted, also in a region
without the global tier. Jobs that exist are not changed.

--regions needs jobs that name their regions (regions.allow). --forbid root needs
processes that name another user (config.user). --forbid privileged refuses what
an agent runs only with --docker-allow-privileged or --incus-allow-privileged, and
profiles of Incus. --forbid host-volumes refuses all volumes of groups.`,
		Example: `  nusa namespace set pay --regions 'eu-*' --forbid root,privileged
  nusa namespace set lab --description 'experiments' --pools lab`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			n.Name = args[0]
			for _, name := range forbidden {
				i := slices.IndexFunc(forbids, func(f forbid) bool { return f.name == name })
				if i < 0 {
					return fmt.Errorf("--forbid %s: use root, privileged or host-volumes", name)
				}
				*forbids[i].field(n) = true
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).Set(ctx, &nusav1.SetNamespaceRequest{Namespace: n})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { fmt.Fprintf(w, "namespace %s is stored\n", resp.GetName()) })
		}),
	}
	f := c.Flags()
	f.StringVar(&n.Description, "description", "", "what the namespace is for")
	f.StringSliceVar(&n.Drivers, "drivers", nil, "allowed drivers, as patterns")
	f.StringSliceVar(&n.Pools, "pools", nil, "allowed node pools, as patterns")
	f.StringSliceVar(&n.Regions, "regions", nil, "allowed regions, as patterns")
	f.StringSliceVar(&forbidden, "forbid", nil, "what no job may ask for: root, privileged, host-volumes")
	return c
}

func removeCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Aliases: []string{"rm"}, Short: "Remove the limits of a namespace; its jobs stay", Args: cli.Positional("NAME"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).Remove(ctx, &nusav1.RemoveNamespaceRequest{Name: args[0]})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { fmt.Fprintf(w, "the limits of namespace %s are removed\n", args[0]) })
		}),
	}
}
