package auth

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func bindingListCommand(s *cli.Settings) *cobra.Command {
	return listCommand(s, "List who has which role", func(ctx context.Context, a nusav1.AuthClient) (*nusav1.ListBindingsResponse, error) {
		return a.ListBindings(ctx, &nusav1.ListBindingsRequest{})
	}, func(w *term.Screen, r *nusav1.ListBindingsResponse) { writeBindings(w, r.GetBindings()) })
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
access tokens, user/SUBJECT@PROVIDER of people who log in, or patterns of them. With the first binding, operators no longer
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
	bindNarrowing(c, &b.Namespaces, &b.Regions)
	bindForce(c, &force)
	return c
}

func bindingRemoveCommand(s *cli.Settings) *cobra.Command {
	var force bool
	c := dropCommand(s, "remove", "BINDING", "Take a role away from principals", "binding %s is removed",
		func(ctx context.Context, a nusav1.AuthClient, name string) (*nusav1.RemoveBindingResponse, error) {
			return a.RemoveBinding(ctx, &nusav1.RemoveBindingRequest{Name: name, Force: force})
		})
	bindForce(c, &force)
	return c
}
