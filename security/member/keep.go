package member

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// Bounds of the pause after a renewal that failed.
const leastPause, mostPause = time.Second, 5 * time.Minute

// look is how often Keep looks whether a renewal is due. It is short, because the machine may
// have slept, and another program may have replaced the certificate.
const look = time.Second

// Keep renews the identity of source in time, until ctx ends. renew returns the next
// credentials.
func Keep(ctx context.Context, source *trust.Source, renew func(context.Context) (pki.Credentials, error), log *slog.Logger) error {
	point := rand.Float64()
	var last []byte
	var notBefore time.Time // of the next attempt
	for range wait.Ticks(ctx, look) {
		chain, err := source.Chain()
		if err != nil {
			return err
		}
		leaf, now := chain[0], time.Now()
		if string(leaf.Raw) != string(last) {
			last, point = leaf.Raw, rand.Float64()
		}
		life := leaf.NotAfter.Sub(leaf.NotBefore) - pki.Backdate
		if now.Before(pki.RenewAt(leaf.NotBefore.Add(pki.Backdate), leaf.NotAfter, point)) || now.Before(notBefore) {
			continue
		}
		next, err := renew(ctx)
		if err == nil {
			err = trust.Write(source.Dir(), next)
		}
		if err != nil && ctx.Err() == nil {
			notBefore = now.Add(min(max(life/50, leastPause), mostPause))
			log.Warn("the certificate is not renewed: this program tries again", "folder", source.Dir(), "until", leaf.NotAfter.UTC().Format(time.RFC3339), "error", err)
		}
	}
	return nil
}

// Renew returns the function with which Keep renews the identity of a member.
func (c *Config) Renew() func(context.Context) (pki.Credentials, error) {
	return func(ctx context.Context) (pki.Credentials, error) {
		creds, err := readCredentials(c.Dir)
		if err != nil {
			return pki.Credentials{}, err
		}
		return c.renewOrIssue(ctx, creds)
	}
}

// RenewNow asks each server once for the next certificate, and writes it into the folder.
func (c *Config) RenewNow(ctx context.Context) error {
	creds, err := readCredentials(c.Dir)
	if err != nil {
		return err
	}
	next, err := c.renew(ctx, creds, false)
	if err != nil {
		return err
	}
	return trust.Write(c.Dir, next)
}

// renewOrIssue asks each server once for the next certificate. If none of them answers, the
// authority of a regional server issues it.
func (c *Config) renewOrIssue(ctx context.Context, creds pki.Credentials) (pki.Credentials, error) {
	next, err := c.renew(ctx, creds, false)
	if err == nil || !unreached(err) {
		return next, err
	}
	own, ownErr := c.issueOwn(creds)
	if ownErr != nil {
		return pki.Credentials{}, err
	}
	c.Log.Info("no global server answers: the own authority of this server renews its certificate", "error", err)
	return own, nil
}

// issueOwn renews the certificate of a regional server by its own authority. So a region that
// has lost the global tier stays able to work.
func (c *Config) issueOwn(creds pki.Credentials) (pki.Credentials, error) {
	a, err := enroll.ReadAuthority(c.Dir)
	if err != nil {
		return pki.Credentials{}, err
	}
	id, err := pki.Owner(pki.EncodeCertificates(creds.Chain[0]))
	if err != nil {
		return pki.Credentials{}, err
	}
	leaf := creds.Chain[0]
	life := leaf.NotAfter.Sub(leaf.NotBefore) - pki.Backdate
	issuer := &enroll.Issuer{Authority: a}
	if life > 0 {
		issuer.Lives = map[identity.Kind]time.Duration{id.Kind: life}
	}
	chain, err := issuer.Issue(id, creds.Key.Public())
	if err != nil {
		return pki.Credentials{}, err
	}
	return pki.Credentials{Chain: chain, Key: creds.Key, Roots: creds.Roots}, nil
}
