package login

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/profile"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/oidc"
)

// loginWait bounds the time that a person has for the login at a provider.
const loginWait = 5 * time.Minute

// flow is a login at a provider.
type flow struct {
	c      *cli.Session
	o      *options
	config oauth2.Config
}

// withProvider logs the user in at a provider, and keeps the access token that the server makes.
func withProvider(c *cli.Session, o *options) error {
	roots, err := c.TrustedRoots()
	if err == nil && roots == nil {
		err = errNoRoots
	}
	if err != nil {
		return err
	}
	p, err := findProvider(c, o.provider)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Ctx, loginWait)
	defer cancel()
	provider, ctx, err := oidc.Discover(ctx, p)
	if err != nil {
		return err
	}
	f := &flow{c: c, o: o, config: oauth2.Config{ClientID: p.GetClientId(), Endpoint: provider.Endpoint(), Scopes: append([]string{"openid"}, p.GetScopes()...)}}
	f.config.Endpoint.AuthStyle = oauth2.AuthStyleInParams // a client without a secret
	login := f.browser
	if o.device {
		login = f.device
	}
	idToken, nonce, err := login(ctx)
	switch {
	case ctx.Err() == context.DeadlineExceeded:
		return fmt.Errorf("nobody has logged in at the provider within %s: try again", loginWait)
	case err != nil:
		return fmt.Errorf("login at %s: %w", p.GetIssuer(), err)
	}
	req := &nusav1.LoginRequest{Provider: p.GetName(), IdToken: idToken, Nonce: nonce}
	if o.life > 0 {
		req.Ttl = durationpb.New(o.life)
	}
	call, cancel := c.WithTimeout()
	defer cancel()
	resp, err := nusav1.NewAuthClient(c.Conn).Login(call, req)
	if err != nil {
		return err
	}
	if len(resp.GetRoots()) > 0 {
		roots = resp.GetRoots() // while the federation changes its root, there are two
	}
	err = save(c, func(p *profile.Profile) { p.Roots, p.Token = roots, resp.GetSecret() })
	return done(c, resp.GetToken().GetUser(), resp.GetToken().GetExpires().AsTime(), err)
}

// findProvider asks the server for a provider.
func findProvider(c *cli.Session, name string) (*nusav1.AuthProvider, error) {
	ctx, cancel := c.WithTimeout()
	defer cancel()
	resp, err := nusav1.NewAuthClient(c.Conn).ListProviders(ctx, &nusav1.ListProvidersRequest{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range resp.GetProviders() {
		if p.GetName() == name {
			return p, nil
		}
		names = append(names, term.OneLine(p.GetName()))
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("the federation has no provider %q: `%s auth provider set` adds one", name, c.Program)
	}
	return nil, fmt.Errorf("the federation has no provider %q (it has: %s)", name, strings.Join(names, ", "))
}

// device shows a code, with which the user logs in on any machine. There is no nonce.
func (f *flow) device(ctx context.Context) (idToken, nonce string, err error) {
	if f.config.Endpoint.DeviceAuthURL == "" {
		return "", "", errors.New("the provider has no device flow: log in without --device")
	}
	code, err := f.config.DeviceAuth(ctx)
	if err != nil {
		return "", "", err
	}
	f.c.Warn("open %s in a browser, and enter the code %s", term.OneLine(code.VerificationURI), term.OneLine(code.UserCode))
	token, err := f.config.DeviceAccessToken(ctx, code)
	if err != nil {
		return "", "", err
	}
	idToken, err = idTokenOf(token)
	return idToken, "", err
}

// idTokenOf returns the ID token of a response.
func idTokenOf(token *oauth2.Token) (string, error) {
	text, ok := token.Extra("id_token").(string)
	if !ok || text == "" {
		return "", errors.New("the provider has sent no ID token: is it a provider of OpenID Connect?")
	}
	return text, nil
}
