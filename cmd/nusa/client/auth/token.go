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
)

func tokenListCommand(s *cli.Settings) *cobra.Command {
	return listCommand(s, "List the access tokens, without their secrets", func(ctx context.Context, a nusav1.AuthClient) (*nusav1.ListAccessTokensResponse, error) {
		return a.ListAccessTokens(ctx, &nusav1.ListAccessTokensRequest{})
	}, func(w *term.Screen, r *nusav1.ListAccessTokensResponse) { writeTokens(w, r.GetTokens()) })
}

func writeTokens(w *term.Screen, all []*nusav1.AccessToken) {
	if len(all) == 0 {
		fmt.Fprintf(w, "no tokens; make one with: %s auth token create --role viewer --out FILE\n", w.Program)
		return
	}
	t := term.NewTable("ACCESSOR", "ROLES", "NAMESPACES", "REGIONS", "EXPIRES", "CREATED BY", "#DESCRIPTION")
	for _, x := range all {
		expires := w.Bad("expired")
		if left := x.GetExpires().AsTime().Sub(w.Now); left > 0 {
			expires = "in " + term.Age(durationpb.New(left))
		}
		t.Row(x.GetAccessor(), orNone(x.GetRoles()), orAll(x.GetNamespaces()), orAll(x.GetRegions()), expires, term.OneLine(x.GetCreatedBy()), term.OneLine(descriptionOf(x)))
	}
	t.Narrow(w.Width, "CREATED BY", "REGIONS", "NAMESPACES")
	t.Write(w)
}

func descriptionOf(t *nusav1.AccessToken) string {
	if t.GetLocal() {
		return strings.TrimSpace("of this region alone " + t.GetDescription())
	}
	return t.GetDescription()
}

func tokenCreateCommand(s *cli.Settings) *cobra.Command {
	req := &nusav1.CreateAccessTokenRequest{}
	life := 30 * cli.Day
	out := ""
	c := &cobra.Command{
		Use: "create", Short: "Make an access token, whose secret is shown once", Args: cli.Positional(),
		Long: `Makes an access token. Programs give it to nusa by the environment, NUSA_TOKEN_FILE
(a file) or NUSA_TOKEN. It is sent over TLS only. A token with roles needs the
right to set roles. One without roles has only those of bindings.

With --local a regional server (--addr) makes a token that holds only in its
region, for up to 90 days, also while the global tier is away.`,
		Example: `  nusa auth token create --role submitter -n pay --ttl 90d --out pay.token
  NUSA_TOKEN_FILE=pay.token nusa job list`,
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			req.Ttl = durationpb.New(life)
			ctx, cancel := c.WithTimeout()
			defer cancel()
			var file *os.File
			if out != "" {
				var err error
				file, err = os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
				if err != nil {
					return fmt.Errorf("--out: %w", err)
				}
				defer file.Close()
			}
			resp, err := client(c).CreateAccessToken(ctx, req)
			if err != nil {
				if file != nil {
					if failed := os.Remove(out); failed != nil {
						return errors.Join(err, failed)
					}
				}
				return err
			}
			if file != nil {
				if _, err := fmt.Fprintln(file, resp.GetSecret()); err != nil {
					return fmt.Errorf("--out: %w: revoke token %s", err, resp.GetToken().GetAccessor())
				}
				resp.Secret = ""
			}
			warnWithoutIdentity(ctx, c)
			return c.Print(resp, func(w *term.Screen) { writeNewToken(w, resp, out) })
		}),
	}
	f := c.Flags()
	f.StringArrayVar(&req.Roles, "role", nil, "a role of the token; give one for each")
	bindNarrowing(c, &req.Namespaces, &req.Regions)
	f.StringVar(&req.Description, "description", "", "what the token is for")
	f.BoolVar(&req.Local, "local", false, "the token holds only in the region of the server, which stores it")
	f.Var(cli.NewDuration(&life, func(d time.Duration) error {
		if d < time.Minute {
			return errors.New("is less than 1m")
		}
		return nil
	}), "ttl", "life of the token, such as 12h or 90d")
	f.StringVar(&out, "out", "", "write the secret to this new file (mode 0600) and do not print it")
	return c
}

func writeNewToken(w *term.Screen, r *nusav1.CreateAccessTokenResponse, out string) {
	t := r.GetToken()
	fmt.Fprintf(w, "token %s is made; it expires in %s\n", t.GetAccessor(), term.Age(durationpb.New(t.GetExpires().AsTime().Sub(t.GetCreated().AsTime()))))
	if out != "" {
		fmt.Fprintf(w, "its secret is in %s: NUSA_TOKEN_FILE=%s\n", out, out)
		return
	}
	fmt.Fprintf(w, "its secret is shown only now:\n%s\n", r.GetSecret())
}

func tokenRevokeCommand(s *cli.Settings) *cobra.Command {
	return dropCommand(s, "revoke", "ACCESSOR", "Make an access token useless", "token %s is revoked",
		func(ctx context.Context, a nusav1.AuthClient, name string) (*nusav1.RevokeAccessTokenResponse, error) {
			return a.RevokeAccessToken(ctx, &nusav1.RevokeAccessTokenRequest{Accessor: name})
		})
}
