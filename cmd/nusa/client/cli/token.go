package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/profile"
)

// accessToken is the access token of a client. gRPC sends it with each call, and only over TLS.
type accessToken string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t accessToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(t)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (accessToken) RequireTransportSecurity() bool { return true }

// String returns no part of the token.
func (accessToken) String() string { return "access token" }

// tokenOption returns the option that sends the access token of the environment or of the profile,
// or nothing.
func tokenOption(identity string, p *profile.Profile) ([]grpc.DialOption, error) {
	text := os.Getenv("NUSA_TOKEN")
	if path := os.Getenv("NUSA_TOKEN_FILE"); path != "" {
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("NUSA_TOKEN_FILE: %w", err)
		}
		text = string(raw)
	}
	text = strings.TrimSpace(text)
	if text == "" && p != nil {
		text = p.Token
	}
	switch {
	case text == "":
		return nil, nil
	case identity == "":
		return nil, errors.New("NUSA_TOKEN or NUSA_TOKEN_FILE is set, and a token is sent over TLS only: also give --identity (or NUSA_IDENTITY)")
	case strings.ContainsAny(text, " \t\r\n"):
		return nil, errors.New("NUSA_TOKEN or NUSA_TOKEN_FILE: not an access token: it has blanks")
	}
	return []grpc.DialOption{grpc.WithPerRPCCredentials(accessToken(text))}, nil
}
