package token

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/filter"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func listCommand(s *cli.Settings) *cobra.Command {
	var states *cli.States
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the join tokens, without their secrets", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := nusav1.NewTokensClient(c.Conn).List(ctx, &nusav1.ListTokensRequest{Region: c.Region, States: states.Words()})
			if err != nil {
				return err
			}
			c.WarnPartial(resp.GetErrors())
			resp.Tokens = slices.DeleteFunc(resp.Tokens, func(t *nusav1.JoinToken) bool { return !states.Has(filter.Token(t, time.Now())) }) // a server of an earlier version does not select
			return c.Print(resp, func(w *term.Screen) {
				if none := cli.NoneSuch(c.Program, "join tokens", "token list", states, nil); len(resp.GetTokens()) == 0 && none != "" {
					fmt.Fprintln(w, none)
					return
				}
				if len(resp.GetTokens()) == 0 {
					fmt.Fprintf(w, "no join tokens%s; %s token create makes one\n", cli.Incomplete(resp.GetErrors()), c.Program)
					return
				}
				t := term.NewTable("TOKEN", "REGION", "ROLE", "POOL", "NAME", ">USES LEFT", "STATE", "MADE BY")
				for _, r := range resp.GetTokens() {
					t.Row(r.GetId(), term.OrDash(r.GetRegion()), r.GetRole(), term.OrDash(r.GetPool()), r.GetName(), term.Count(r.GetUses()), stateOf(r, time.Now()), term.OrDash(maker(r.GetCreatedBy())))
				}
				t.Narrow(w.Width, "MADE BY", "POOL")
				t.Write(w)
			})
		}),
	}
	s.BindRegion(c, "only tokens of this region")
	states = cli.StateFlag(c, "tokens", filter.TokenStates...)
	return c
}

// maker returns who has made a token, such as operator/jane. Older servers stored the whole SPIFFE ID.
func maker(by string) string {
	if rest, ok := strings.CutPrefix(by, "spiffe://"); ok {
		_, by, _ = strings.Cut(rest, "/")
	}
	return by
}

// stateOf returns whether members may still join with a token.
func stateOf(t *nusav1.JoinToken, now time.Time) string {
	state := filter.Token(t, now)
	if state == "valid" {
		state += " for " + term.Duration(t.GetExpiresAt().AsTime().Sub(now))
	}
	return state
}

func revokeCommand(s *cli.Settings) *cobra.Command {
	c := &cobra.Command{
		Use: "revoke TOKEN", Short: "Let nobody join with a token any more", Args: cli.Positional("TOKEN"),
		Long: `Lets nobody join with a token any more. TOKEN is its id, which token list shows.
Members that have joined with the token stay: see node ban.`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := nusav1.NewTokensClient(c.Conn).Revoke(ctx, &nusav1.RevokeTokenRequest{Id: args[0], Region: c.Region})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { fmt.Fprintf(w, "token %s is revoked\n", resp.GetId()) })
		}),
	}
	s.BindRegion(c, "region of the token")
	return c
}
