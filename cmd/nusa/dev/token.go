package dev

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/client"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// tokenName is the file of the operator's access token in the data directory.
	tokenName = "operator.token"
	// tokenLife is the life of the token. It is replaced at the first start after half of its life.
	tokenLife = 30 * 24 * time.Hour
	// tokenWait bounds the calls that make the token, because a start does not depend on them.
	tokenWait = 10 * time.Second
)

// token returns the file with an access token of the operator, for the web page and for programs. It
// returns "" without identities, or if there can be no token.
func (f *federation) token(ctx context.Context, addr string) string {
	if f.ids == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, tokenWait)
	defer cancel()
	file := filepath.Join(f.DataDir, tokenName)
	if err := f.ensureToken(ctx, addr, file); err != nil {
		f.Logger.Warn("no access token for the web page: make one with `nusa auth token create`", "error", err)
		return ""
	}
	return file
}

// ensureToken makes a new token, unless the file has one that holds.
func (f *federation) ensureToken(ctx context.Context, addr, file string) error {
	if f.tokenHolds(ctx, addr, file) {
		return nil
	}
	c, err := client.Open(client.Options{Addresses: []string{addr}, Identity: f.ids.operator()})
	if err != nil {
		return err
	}
	defer c.Close()
	made, err := c.Auth().CreateAccessToken(ctx, &nusav1.CreateAccessTokenRequest{
		Description: "made by nusa dev", Roles: []string{"admin"}, Ttl: durationpb.New(tokenLife),
	})
	if err != nil {
		return err
	}
	// The file never has a secret that others can read, so an earlier file is replaced.
	part := file + ".new"
	if err := os.RemoveAll(part); err != nil {
		return fmt.Errorf("access token: %w", err)
	}
	if err := os.WriteFile(part, []byte(made.GetSecret()+"\n"), 0o600); err != nil {
		return fmt.Errorf("access token: %w", err)
	}
	return os.Rename(part, file)
}

// tokenHolds reports whether the token in a file can be used for a while.
func (f *federation) tokenHolds(ctx context.Context, addr, file string) bool {
	info, err := os.Stat(file)
	if err != nil || time.Since(info.ModTime()) > tokenLife/2 {
		return false
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	c, err := client.Open(client.Options{Addresses: []string{addr}, Identity: f.ids.operator(), Token: client.StaticToken(strings.TrimSpace(string(text)))})
	if err != nil {
		return false
	}
	defer c.Close()
	_, err = c.Auth().WhoAmI(ctx, &nusav1.WhoAmIRequest{})
	return err == nil
}
