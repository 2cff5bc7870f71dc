package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc"
)

// AccessToken is the access token of a client. gRPC sends it with each call, and only over TLS.
type AccessToken string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t AccessToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(t)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (AccessToken) RequireTransportSecurity() bool { return true }

// String returns no part of the token.
func (AccessToken) String() string { return "access token" }

// tokenOption returns the option that sends the access token of the environment or of the profile,
// or nothing.
func tokenOption(c *Session) ([]grpc.DialOption, error) {
	if c.anonymous {
		return nil, nil
	}
	text := os.Getenv("NUSA_TOKEN")
	if path := os.Getenv("NUSA_TOKEN_FILE"); path != "" {
		var err error
		text, err = ReadSecret(c.Cmd, path)
		if err != nil {
			return nil, fmt.Errorf("NUSA_TOKEN_FILE: %w", err)
		}
	}
	text = strings.TrimSpace(text)
	if text == "" && c.profile != nil {
		text = c.profile.Token
	}
	switch {
	case text == "":
		return nil, nil
	case c.Identity == "" && c.RootsFile == "" && c.profile == nil:
		return nil, errors.New("NUSA_TOKEN or NUSA_TOKEN_FILE is set, and a token is sent over TLS only: also give the federation's roots with --roots (or NUSA_ROOTS), or an identity")
	case strings.ContainsAny(text, " \t\r\n"):
		return nil, errors.New("NUSA_TOKEN or NUSA_TOKEN_FILE: not an access token: it has blanks")
	}
	return []grpc.DialOption{grpc.WithPerRPCCredentials(AccessToken(text))}, nil
}
