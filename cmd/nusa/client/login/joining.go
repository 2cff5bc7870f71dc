package login

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/profile"
	"github.com/nusa-scheduler/nusa/security/identity"
	tokens "github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/member"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// joiningSuffix is the end of the folder in which a key waits for its certificate.
const joiningSuffix = ".joining"

// join makes this user an operator, by the token of a file.
func join(c *cli.Session, o *options) error {
	text, err := cli.ReadSecret(c.Cmd, o.joinToken)
	if err != nil {
		return fmt.Errorf("--join-token-file: %w", err)
	}
	token, err := tokens.Parse(text)
	if err != nil {
		return fmt.Errorf("--join-token-file: %w", err)
	}
	dir, err := profile.Path(c.Servers()[0])
	if err != nil {
		return err
	}
	dir += joiningSuffix
	if member.Exists(dir) { // of a login that was interrupted at its end
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(c.Ctx, c.Timeout)
	defer cancel()
	err = member.Ensure(ctx, member.Config{
		Dir: dir, ID: identity.ID{Kind: identity.Operator, Name: "unnamed"}, NameOfToken: true, Servers: c.Servers(),
		Token: func() (tokens.Token, error) { return token, nil }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	source, err := trust.Open(trust.Options{Dir: dir})
	if err != nil {
		return err
	}
	chain, err := source.Chain()
	if err != nil {
		return err
	}
	var files [3][]byte
	for i, name := range []string{trust.RootsFile, trust.CertFile, trust.KeyFile} {
		files[i], err = os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
	}
	err = save(c, func(p *profile.Profile) { p.Roots, p.Cert, p.Key, p.Token = files[0], files[1], files[2], "" })
	if err == nil {
		err = os.RemoveAll(dir)
	}
	return done(c, "operator/"+source.ID().Name, chain[0].NotAfter, errors.Join(err))
}
