package login

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/profile"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// options are the flags of login.
type options struct {
	joinToken, accessToken, provider string
	rootHash                         string
	device, noBrowser                bool
	port                             uint16
	life                             time.Duration
}

// Command returns the command `nusa login`.
func Command() *cobra.Command {
	s, o := &cli.Settings{}, &options{}
	c := &cobra.Command{
		Use: "login", Short: "Log in at a server, for this and later commands", Args: cli.Positional(),
		Long: `Logs in at the server of --addr, and keeps the credentials in a profile of that
address, below $XDG_CONFIG_HOME/nusa. Later commands for the address use them.

--join-token-file makes this user an operator with a certificate, which renews
itself (nusa token create --role operator). --provider logs a person in at an OpenID
Connect provider (nusa auth provider list), in a browser on this machine, or with
--device in a browser elsewhere. --token-file keeps an access token.

The client must know the root of the federation: by a join token, by an earlier
profile, by --roots (the file roots.pem of any member), or by --root-hash.`,
		Example: `  nusa login --addr g1.example.com --join-token-file jane.token
  nusa login --addr g1.example.com --provider corp --roots roots.pem
  nusa login --provider corp --device`,
	}
	c.RunE = s.RunAnonymous(&o.rootHash, func(c *cli.Session, _ []string) error {
		switch given := o.given(); {
		case len(c.Servers()) == 0:
			return errors.New("--addr: the administrator of the machine needs no login for the Unix socket: name a server, HOST[:PORT]")
		case given != 1:
			return errors.New("give one of --join-token-file, --provider and --token-file")
		case o.joinToken != "":
			return join(c, o)
		case o.provider != "":
			return withProvider(c, o)
		}
		return withToken(c, o)
	})
	s.Bind(c)
	f := c.Flags()
	f.StringVar(&o.joinToken, "join-token-file", "", "file with a join token for an operator, - for standard input")
	f.StringVar(&o.provider, "provider", "", "name of the OpenID Connect provider")
	f.StringVar(&o.accessToken, "token-file", "", "file with an access token, - for standard input")
	f.StringVar(&o.rootHash, "root-hash", "", "hash of the federation's root, if this client has no roots yet")
	f.BoolVar(&o.device, "device", false, "with --provider: show a code for a browser on another machine")
	f.BoolVar(&o.noBrowser, "no-browser", false, "with --provider: only print the address, and open no browser")
	f.Uint16Var(&o.port, "callback-port", 0, "with --provider: port of 127.0.0.1 for the answer of the browser (default any)")
	f.Var(cli.NewDuration(&o.life, func(d time.Duration) error {
		if d < time.Minute {
			return errors.New("is less than 1m")
		}
		return nil
	}), "ttl", "with --provider: how long to stay logged in (default as long as the provider allows)")
	return c
}

// given returns how many ways to log in are given.
func (o *options) given() int {
	n := 0
	for _, text := range []string{o.joinToken, o.provider, o.accessToken} {
		if text != "" {
			n++
		}
	}
	return n
}

// errNoRoots says that the client cannot know whether a server is one of the federation.
var errNoRoots = errors.New("this client does not know the root of the federation: give --roots (the file roots.pem of any member) or --root-hash")

// save writes the profile of the server's address.
func save(c *cli.Session, change func(*profile.Profile)) error {
	addr := c.Servers()[0]
	p, err := profile.Read(addr)
	if err != nil {
		return err
	}
	if p == nil {
		p = &profile.Profile{}
	}
	if p.Temporary != "" {
		return fmt.Errorf("%s has written the profile of %s: end it first, or name the server with another address", p.Temporary, addr)
	}
	change(p)
	return profile.Write(addr, *p)
}

// withToken keeps an access token, after a call that shows that the token is valid.
func withToken(c *cli.Session, o *options) error {
	roots, err := c.TrustedRoots()
	if err == nil && roots == nil {
		err = errNoRoots
	}
	if err != nil {
		return err
	}
	text, err := cli.ReadSecret(c.Cmd, o.accessToken)
	if err != nil {
		return fmt.Errorf("--token-file: %w", err)
	}
	ctx, cancel := c.WithTimeout()
	defer cancel()
	me, err := nusav1.NewAuthClient(c.Conn).WhoAmI(ctx, &nusav1.WhoAmIRequest{}, grpc.PerRPCCredentials(cli.AccessToken(text)))
	if err != nil {
		return err
	}
	return done(c, me.GetPrincipal(), me.GetExpires().AsTime(), save(c, func(p *profile.Profile) { p.Roots, p.Token = roots, text }))
}

// done says who is logged in, unless the profile was not written.
func done(c *cli.Session, who string, until time.Time, err error) error {
	if err != nil {
		return err
	}
	w := c.Screen()
	fmt.Fprintf(w, "logged in at %s as %s, for %s\n", c.Servers()[0], term.OneLine(who), term.Age(durationpb.New(until.Sub(w.Now))))
	if c.Addr != cli.DefaultAddr && c.Addr != os.Getenv("NUSA_ADDR") {
		fmt.Fprintf(w, "so that later commands use this server: export NUSA_ADDR=%s\n", term.OneLine(c.Addr))
	}
	return nil
}
