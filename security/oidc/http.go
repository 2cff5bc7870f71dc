package oidc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// answerLimit bounds the time of a request to a provider, and maxAnswer the bytes of its answer.
	answerLimit = 10 * time.Second
	maxAnswer   = 1 << 20
	maxHops     = 3
)

// Client returns the HTTP client for a provider. A provider with roots must have a certificate of
// one of them.
func Client(p *nusav1.AuthProvider) (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(p.GetRoots()) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(p.GetRoots()) {
			return nil, fmt.Errorf("%w: the roots have no certificate in PEM", ErrProvider)
		}
	}
	// Without idle connections there is nothing to close.
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, DisableKeepAlives: true}
	return &http.Client{Transport: bounded{transport}, CheckRedirect: func(r *http.Request, before []*http.Request) error {
		switch {
		case len(before) >= maxHops:
			return errors.New("the provider redirects too often")
		case r.URL.Scheme != "https" && before[0].URL.Scheme == "https":
			return errors.New("the provider redirects to a connection that is not encrypted")
		}
		return nil
	}}, nil
}

// bounded bounds the time of requests and the bodies of responses. The time of http.Client has a
// goroutine for each body that a library does not close.
type bounded struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), answerLimit)
	resp, err := b.RoundTripper.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Body = &body{io.LimitReader(resp.Body, maxAnswer), resp.Body, cancel}
	return resp, nil
}

// body is the body of a response. Its request ends with the body.
type body struct {
	io.Reader
	io.Closer
	cancel func()
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil {
		b.cancel()
	}
	return n, err
}

// Close implements io.Closer.
func (b *body) Close() error {
	defer b.cancel()
	return b.Closer.Close()
}

// Discover asks a provider for its endpoints. The context that it returns has the HTTP client for
// requests to the provider.
func Discover(ctx context.Context, p *nusav1.AuthProvider) (*oidc.Provider, context.Context, error) {
	client, err := Client(p)
	if err != nil {
		return nil, nil, err
	}
	ctx = oidc.ClientContext(ctx, client)
	out, err := oidc.NewProvider(ctx, p.GetIssuer())
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %s", ErrUnreached, p.GetIssuer(), short(err))
	}
	return out, ctx, nil
}
