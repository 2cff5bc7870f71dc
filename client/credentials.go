package client

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// anyServer are the servers that a client accepts: every one of the federation, because the client
// does not know which server is at an address.
var anyServer = identity.Rules{{Kind: identity.Global}, {Kind: identity.Server}}

// maxRoots bounds the certificates of Options.Roots.
const maxRoots = 16

// transport returns the credentials of the connections.
func transport(o *Options) (credentials.TransportCredentials, error) {
	switch {
	case o.Credentials != nil:
		return o.Credentials, nil
	case o.Socket != "":
		return insecure.NewCredentials(), nil
	case o.Insecure && (o.Identity != "" || len(o.Roots) > 0 || o.Token != nil):
		return nil, errors.New("client: Insecure excludes Identity, Roots and Token")
	case o.Insecure:
		return insecure.NewCredentials(), nil
	case o.Identity != "":
		source, err := trust.Open(trust.Options{Dir: o.Identity})
		if err != nil {
			return nil, fmt.Errorf("client: Identity: %w", err)
		}
		return source.Client(anyServer), nil
	case len(o.Roots) > 0:
		certs, err := pki.ParseCertificates(o.Roots, maxRoots)
		if err != nil {
			return nil, fmt.Errorf("client: Roots: %w", err)
		}
		roots, err := pki.NewRoots(certs...)
		if err != nil {
			return nil, fmt.Errorf("client: Roots: %w", err)
		}
		return trust.Anonymous(roots, anyServer), nil
	}
	return nil, errors.New("client: give Identity, or Roots with a Token, or Insecure for a federation without identities")
}

// StaticToken returns the same access token for each call. It is for Options.Token.
func StaticToken(token string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return token, nil }
}

// bearer sends an access token with each call. gRPC sends it only over TLS.
type bearer struct {
	token func(context.Context) (string, error)
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	token, err := b.token(ctx)
	if err != nil {
		return nil, fmt.Errorf("access token: %w", err)
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (bearer) RequireTransportSecurity() bool { return true }

// String returns no part of the token.
func (bearer) String() string { return "access token" }
