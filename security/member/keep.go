package member

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/rotation"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// Bounds of the pause after a renewal that failed.
const leastPause, mostPause = time.Second, 5 * time.Minute

// againMost bounds the first pause after a renewal that did not give the member what it should have,
// because the server that answered did not have it yet. Each further pause is twice as long, up to
// mostPause, because a member that was started with keys of its own never has what it should.
const againMost = time.Minute

// look is how often Keep looks whether a renewal is due. It is short, because the machine may
// have slept, and another program may have replaced the certificate.
const look = time.Second

// Renewal is one renewal of a certificate.
type Renewal struct {
	// Has is what the member has, and Want what it should have. Both may be nil.
	Has  *rotation.State
	Want *nusav1.KeyState
	// Early: the certificate is not due.
	Early bool
}

// Keep renews the identity of source in time, until ctx ends. renew returns the next
// credentials.
func Keep(ctx context.Context, source *trust.Source, renew func(context.Context) (pki.Credentials, error), log *slog.Logger) error {
	k := &Renewer{Source: source, Renew: func(ctx context.Context, _ Renewal) (pki.Credentials, error) { return renew(ctx) }, Log: log}
	return k.Run(ctx)
}

// Renewer renews an identity in time, and earlier if the member should have other roots or keys.
type Renewer struct {
	Source *trust.Source
	// Orders are what the member should have. nil: nobody says.
	Orders *Orders
	// Ask lets the member renew once at its start if the federation has given it keys: they may have
	// changed while it was off.
	Ask bool
	// Renew returns the next credentials.
	Renew func(context.Context, Renewal) (pki.Credentials, error)
	Log   *slog.Logger

	// last is the certificate for which point was drawn.
	last  []byte
	point float64
	// notBefore is that of the next attempt.
	notBefore time.Time
	// wanted is the goal that the member noticed at noticed.
	wanted  *nusav1.KeyGoal
	noticed time.Time
	// tries counts the renewals for that goal.
	tries int
}

// pauseAfter returns the pause after a renewal for a goal. tries is how many there were before.
func pauseAfter(spread time.Duration, tries int) time.Duration {
	pause := min(max(spread/10, 2*leastPause), againMost)
	for ; tries > 0 && pause < mostPause; tries-- {
		pause *= 2
	}
	return min(pause, mostPause)
}

// Run keeps the identity until ctx ends.
func (k *Renewer) Run(ctx context.Context) error {
	for range wait.Ticks(ctx, look) {
		chain, err := k.Source.Chain()
		if err != nil {
			return err
		}
		leaf, now := chain[0], time.Now()
		if string(leaf.Raw) != string(k.last) {
			k.last, k.point = leaf.Raw, rand.Float64()
		}
		if now.Before(k.notBefore) {
			continue
		}
		r, due := k.due(leaf.NotBefore, leaf.NotAfter, now)
		if !due {
			continue
		}
		next, err := k.Renew(ctx, r)
		if err == nil {
			err = trust.Write(k.Source.Dir(), next)
		}
		if err == nil && r.Has != nil {
			err = noteReported(k.Source.Dir(), r.Has)
		}
		life := leaf.NotAfter.Sub(leaf.NotBefore) - pki.Backdate
		switch {
		case ctx.Err() != nil:
		case err != nil:
			k.notBefore = now.Add(min(max(life/50, leastPause), mostPause))
			k.Log.Warn("the certificate is not renewed: this program tries again", "folder", k.Source.Dir(), "until", leaf.NotAfter.UTC().Format(time.RFC3339), "error", err)
		case r.Early:
			// The next look reports to the servers what the member has now.
			k.notBefore = now.Add(pauseAfter(k.wanted.GetSpread().AsDuration(), k.tries))
			k.tries++
		}
	}
	return nil
}

// due returns the renewal that is due.
func (k *Renewer) due(notBefore, notAfter, now time.Time) (Renewal, bool) {
	r := Renewal{Early: now.Before(pki.RenewAt(notBefore.Add(pki.Backdate), notAfter, k.point))}
	goal := k.Orders.Goal()
	ask := k.Ask && haveKeys(k.Source.Dir())
	k.Ask = false
	if k.Orders == nil || r.Early && goal == nil && !ask {
		return r, !r.Early
	}
	has, err := k.Orders.Has(k.Source)
	if err != nil {
		k.Log.Warn("cannot say what this program has", "folder", k.Source.Dir(), "error", err)
		return r, !r.Early
	}
	r.Has, r.Want = has, goal.GetWant()
	if !r.Early || ask {
		return r, true
	}
	if rotation.Lacks(enroll.StateOf(goal.GetWant()), has, true) == "" && reported(k.Source.Dir()) == textOf(has) {
		k.wanted, k.tries = nil, 0
		return r, false
	}
	if k.wanted == nil || k.wanted.GetVersion() != goal.GetVersion() {
		k.wanted, k.noticed, k.tries = goal, now, 0
	}
	return r, !now.Before(rotation.RenewAt(k.noticed, goal.GetSpread().AsDuration(), k.point))
}

// Renew returns the function with which a Renewer renews the identity of a member.
func (c *Config) Renew() func(context.Context, Renewal) (pki.Credentials, error) {
	return func(ctx context.Context, r Renewal) (pki.Credentials, error) {
		creds, err := readCredentials(c.Dir)
		if err != nil {
			return pki.Credentials{}, err
		}
		if r.Early { // the own authority of a server cannot give what the member lacks
			return c.renew(ctx, creds, r, false)
		}
		return c.renewOrIssue(ctx, creds, r)
	}
}

// RenewNow asks each server once for the next certificate, and writes it into the folder.
func (c *Config) RenewNow(ctx context.Context) error {
	creds, err := readCredentials(c.Dir)
	if err != nil {
		return err
	}
	next, err := c.renew(ctx, creds, Renewal{}, false)
	if err != nil {
		return err
	}
	return trust.Write(c.Dir, next)
}

// renewOrIssue asks each server once for the next certificate. If none of them answers, the
// authority of a regional server issues it.
func (c *Config) renewOrIssue(ctx context.Context, creds pki.Credentials, r Renewal) (pki.Credentials, error) {
	next, err := c.renew(ctx, creds, r, false)
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
	issuer := &enroll.Issuer{Authority: a, Above: pki.Vouched(creds.Chain)}
	if life > 0 {
		issuer.Lives = map[identity.Kind]time.Duration{id.Kind: life}
	}
	chain, err := issuer.Issue(id, creds.Key.Public())
	if err != nil {
		return pki.Credentials{}, err
	}
	return pki.Credentials{Chain: chain, Key: creds.Key, Roots: creds.Roots}, nil
}
