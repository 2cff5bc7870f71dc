package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/member"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

const (
	// renewLimit is how long a renewal may delay the end of a command, and reviveLimit how long the
	// renewal of an expired certificate may delay its beginning.
	renewLimit, reviveLimit = 2 * time.Second, 10 * time.Second
	// renewPause is the least time between two attempts.
	renewPause = 10 * time.Minute
	// triedFile of an identity has the time of the latest attempt.
	triedFile = "renewal-tried"
	// servedOperator is the operator whose folder a global server keeps.
	servedOperator = "local"
)

// openIdentity opens the identity of the client. One that has expired is renewed first, because an
// expired certificate may be renewed for some time.
func openIdentity(c *Session) (*trust.Source, error) {
	source, err := trust.Open(trust.Options{Dir: c.Identity})
	if err == nil || !errors.Is(err, pki.ErrExpired) {
		return source, err
	}
	ctx, cancel := context.WithTimeout(c.Ctx, min(reviveLimit, c.Timeout))
	defer cancel()
	if failed := renewal(c).RenewNow(ctx); failed != nil {
		return nil, errors.Join(err, failed)
	}
	return trust.Open(trust.Options{Dir: c.Identity})
}

// renewal returns how the certificate of the client is renewed.
func renewal(c *Session) *member.Config {
	return &member.Config{Dir: c.Identity, ID: identity.ID{Kind: identity.Operator}, Servers: c.addrs, Log: slog.New(slog.DiscardHandler)}
}

// renew renews the certificate of the client while a command runs, if half of its life is over. The
// function that it returns waits for the end of the attempt.
func renew(c *Session) (wait func()) {
	if c.Identity == "" || c.anonymous || len(c.Servers()) == 0 {
		return func() {}
	}
	source, err := trust.Open(trust.Options{Dir: c.Identity})
	if err != nil || source.ID().Kind != identity.Operator || source.ID().Name == servedOperator {
		return func() {}
	}
	chain, err := source.Chain()
	if err != nil || time.Now().Before(pki.RenewAt(chain[0].NotBefore.Add(pki.Backdate), chain[0].NotAfter, 0)) || !mayTry(c.Identity) {
		return func() {}
	}
	ctx, cancel := context.WithTimeout(c.Ctx, renewLimit)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = renewal(c).RenewNow(ctx) // the next command tries again
	}()
	return func() {
		<-done
		cancel()
	}
}

// mayTry reports whether the latest attempt is long ago, and notes a new one. It returns false for a
// folder into which this user may not write.
func mayTry(dir string) bool {
	path := filepath.Join(dir, triedFile)
	info, err := os.Stat(path)
	if err == nil {
		if age := time.Since(info.ModTime()); age >= 0 && age < renewPause {
			return false
		}
	}
	return os.WriteFile(path, nil, 0o600) == nil && os.Chtimes(path, time.Time{}, time.Now()) == nil
}
