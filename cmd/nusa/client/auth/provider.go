package auth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/oidc"
)

func providerListCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the OpenID Connect providers whose users may log in", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).ListProviders(ctx, &nusav1.ListProvidersRequest{})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { writeProviders(w, resp.GetProviders(), c.Addr, cli.RootHash(c)) })
		}),
	}
}

// writeProviders writes providers, and how a user without the roots logs in. hash is that of the root.
func writeProviders(w *term.Screen, all []*nusav1.AuthProvider, addr, hash string) {
	if len(all) == 0 {
		fmt.Fprintf(w, "no providers; %s auth provider set adds one\n", w.Program)
		return
	}
	t := term.NewTable("PROVIDER", "ISSUER", "CLIENT", "LIFE", "ROLE", "IF")
	for _, p := range all {
		row := []string{p.GetName(), term.OneLine(p.GetIssuer()), term.OneLine(p.GetClientId()), term.Duration(oidc.Life(p, 0))}
		for _, r := range p.GetRules() {
			t.Row(append(row, term.OneLine(r.GetRole()), term.OneLine(r.GetCondition()))...)
			row = []string{"", "", "", ""}
		}
		if len(p.GetRules()) == 0 {
			t.Row(append(row, "-", "-")...)
		}
	}
	t.Write(w)
	if hash != "" {
		fmt.Fprintf(w, "\nusers log in with:\n%s login --addr %s --provider %s --root-hash %s\n", w.Program, addr, all[0].GetName(), hash)
	}
}

func providerSetCommand(s *cli.Settings) *cobra.Command {
	p := &nusav1.AuthProvider{}
	life := oidc.DefaultLife
	var rules []string
	roots := ""
	c := &cobra.Command{
		Use: "set PROVIDER", Short: "Let the users of an OpenID Connect provider log in", Args: cli.Positional("PROVIDER"),
		Long: `Lets the users of an OpenID Connect provider log in with nusa login --provider.
Register Nusa there as a native client (public, without a secret, with PKCE) that
may redirect to http://127.0.0.1 with any port and the path /callback, and that
may use the device flow.

--rule gives a role to the users whose claims fit: ROLE=CONDITION, in CEL over
claims. The principal of a user is user/SUBJECT@PROVIDER, and bindings may name it.
A change logs out all users of the provider.`,
		Example: `  nusa auth provider set corp --issuer https://id.example.com \
    --client-id nusa --scope email --scope groups --subject-claim email \
    --rule 'submitter="dev" in claims.groups' \
    --rule 'admin="ops" in claims.groups'`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			p.Name, p.MaxTtl, p.Rules = args[0], durationpb.New(life), nil
			for _, text := range rules {
				role, condition, ok := strings.Cut(text, "=")
				if !ok {
					return fmt.Errorf("--rule %q: write ROLE=CONDITION", text)
				}
				p.Rules = append(p.Rules, &nusav1.ProviderRule{Role: role, Condition: condition})
			}
			if roots != "" {
				var err error
				p.Roots, err = os.ReadFile(roots)
				if err != nil {
					return fmt.Errorf("--ca-cert: %w", err)
				}
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).SetProvider(ctx, &nusav1.SetProviderRequest{Provider: p})
			if err != nil {
				return err
			}
			warnWithoutIdentity(ctx, c)
			return c.Print(resp, func(w *term.Screen) { fmt.Fprintf(w, "provider %s is stored\n", resp.GetName()) })
		}),
	}
	f := c.Flags()
	f.StringVar(&p.Issuer, "issuer", "", "address of the provider, https://HOST/PATH (required)")
	f.StringVar(&p.ClientId, "client-id", "", "id of Nusa at the provider (required)")
	f.StringArrayVar(&p.Scopes, "scope", nil, "a scope to ask for besides openid; give one for each")
	f.StringVar(&p.SubjectClaim, "subject-claim", "", "claim with the name of the user, such as email (default sub)")
	f.StringArrayVar(&rules, "rule", nil, "ROLE=CONDITION: a role of users whose claims fit; give one for each")
	f.Var(cli.NewDuration(&life, func(d time.Duration) error {
		if d < time.Minute || d > oidc.MaxLife {
			return errors.New("is not between 1m and 24h")
		}
		return nil
	}), "ttl", "longest time for which a user stays logged in")
	f.StringVar(&roots, "ca-cert", "", "file with the certificates of the provider's own authority (default: those of the machine)")
	return c
}

func providerRemoveCommand(s *cli.Settings) *cobra.Command {
	return dropCommand(s, "remove", "PROVIDER", "Remove a provider, and log out its users", "provider %s is removed, and its users are logged out",
		func(ctx context.Context, a nusav1.AuthClient, name string) (*nusav1.RemoveProviderResponse, error) {
			return a.RemoveProvider(ctx, &nusav1.RemoveProviderRequest{Name: name})
		})
}
