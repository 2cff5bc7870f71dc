package auth

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// listCommand returns a command that asks the service Auth for a list, and writes it.
func listCommand[R proto.Message](s *cli.Settings, short string, ask func(context.Context, nusav1.AuthClient) (R, error), write func(*term.Screen, R)) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: short, Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := ask(ctx, client(c))
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { write(w, resp) })
		}),
	}
}

// dropCommand returns a command that removes one object. done says what happened, such as "role %s is
// removed".
func dropCommand[R proto.Message](s *cli.Settings, verb, argument, short, done string, drop func(ctx context.Context, a nusav1.AuthClient, name string) (R, error)) *cobra.Command {
	return &cobra.Command{
		Use: verb + " " + argument, Aliases: []string{"rm"}, Short: short, Args: cli.Positional(argument),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := drop(ctx, client(c), args[0])
			if err != nil {
				return err
			}
			if b, ok := any(resp).(*nusav1.RemoveBindingResponse); ok && b.GetUnbound() {
				c.Warn("no binding is left, so each operator certificate has the role admin now")
			}
			return c.Print(resp, func(w *term.Screen) { fmt.Fprintf(w, done+"\n", args[0]) })
		}),
	}
}

// bindNarrowing adds the flags that narrow roles to namespaces and regions.
func bindNarrowing(c *cobra.Command, namespaces, regions *[]string) {
	c.Flags().StringArrayVarP(namespaces, "namespace", "n", nil, "only in namespaces of this pattern; give one for each")
	c.Flags().StringArrayVar(regions, "region", nil, "only in regions of this pattern; give one for each")
}
