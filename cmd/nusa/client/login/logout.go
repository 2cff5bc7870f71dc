package login

import (
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/profile"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// LogoutCommand returns the command `nusa logout`.
func LogoutCommand() *cobra.Command {
	s := &cli.Settings{}
	c := &cobra.Command{
		Use: "logout", Short: "Remove the credentials of nusa login", Args: cli.Positional(),
		Long: `Removes the certificate and the token of the profile of --addr. The server forgets
the token of a login with a provider. The profile keeps the root of the federation,
so the next login needs neither --roots nor --root-hash.`,
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			p := c.Profile()
			switch {
			case p == nil:
				return fmt.Errorf("there is no profile of %s, or --identity or --roots is given: nothing to log out of", c.Addr)
			case p.Temporary != "":
				return fmt.Errorf("%s keeps the profile of %s: end it", p.Temporary, c.Addr)
			}
			if p.Token != "" {
				forget(c)
			}
			if err := profile.Write(c.Servers()[0], profile.Profile{Roots: p.Roots}); err != nil {
				return err
			}
			c.Printf("logged out of %s\n", c.Addr)
			return nil
		}),
	}
	s.Bind(c)
	return c
}

// forget lets the server forget the token. Without an answer the token stays valid until its end.
func forget(c *cli.Session) {
	ctx, cancel := c.WithTimeout()
	defer cancel()
	_, err := nusav1.NewAuthClient(c.Conn).Logout(ctx, &nusav1.LogoutRequest{})
	if err != nil && status.Code(err) != codes.Unauthenticated {
		c.Warn("the server has not revoked the token, which stays valid until its end: %s", term.OneLine(c.Explain(err).Error()))
	}
}
