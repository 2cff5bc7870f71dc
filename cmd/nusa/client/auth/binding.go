package auth

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func bindingListCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List who has which role", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).ListBindings(ctx, &nusav1.ListBindingsRequest{})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { writeBindings(w, resp.GetBindings()) })
		}),
	}
}

func writeBindings(w *term.Screen, all []*nusav1.AuthBinding) {
	if len(all) == 0 {
		fmt.Fprintf(w, "no bindings, so each operator certificate has the role admin; set one with:\n%s auth binding set admins --role admin --subject operator/NAME\n", w.Program)
		return
	}
	t := term.NewTable("BINDING", "ROLE", "SUBJECTS", "NAMESPACES", "REGIONS")
	for _, b := range all {
		t.Row(b.GetName(), b.GetRole(), term.OneLine(strings.Join(b.GetSubjects(), ", ")), orAll(b.GetNamespaces()), orAll(b.GetRegions()))
	}
	t.Write(w)
}

func orAll(patterns []string) string {
	if len(patterns) == 0 {
		return "all"
	}
	return term.OneLine(strings.Join(patterns, ", "))
}

func bindingSetCommand(s *cli.Settings) *cobra.Command {
	b := &nusav1.AuthBinding{}
	var force bool
	c := &cobra.Command{
		Use: "set BINDING", Short: "Give a role to principals", Args: cli.Positional("BINDING"),
		Long: `Gives a role to principals: operator/NAME of certificates, token/ACCESSOR of
access tokens, or patterns of them. With the first binding, operators no longer
have the role admin by themselves.`,
		Example: `  nusa auth binding set admins --role admin --subject operator/jane
  nusa auth binding set pay --role submitter --subject operator/joe -n pay`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			b.Name = args[0]
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).SetBinding(ctx, &nusav1.SetBindingRequest{Binding: b, Force: force})
			if err != nil {
				return err
			}
			warnWithoutIdentity(ctx, c)
			return c.Print(resp, func(w *term.Screen) { fmt.Fprintf(w, "binding %s is stored\n", resp.GetName()) })
		}),
	}
	f := c.Flags()
	f.StringVar(&b.Role, "role", "", "the role")
	f.StringArrayVar(&b.Subjects, "subject", nil, "a principal or a pattern of principals; give one for each")
	f.StringArrayVarP(&b.Namespaces, "namespace", "n", nil, "only in namespaces of this pattern; give one for each")
	f.StringArrayVar(&b.Regions, "region", nil, "only in regions of this pattern; give one for each")
	bindForce(c, &force)
	return c
}

func bindingRemoveCommand(s *cli.Settings) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "remove BINDING", Aliases: []string{"rm"}, Short: "Take a role away from principals", Args: cli.Positional("BINDING"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).RemoveBinding(ctx, &nusav1.RemoveBindingRequest{Name: args[0], Force: force})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { fmt.Fprintf(w, "binding %s is removed\n", args[0]) })
		}),
	}
	bindForce(c, &force)
	return c
}
