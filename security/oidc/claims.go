package oidc

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxAge is how old an ID token may be. Until then it is remembered, so it works once.
	maxAge = 10 * time.Minute
	// clockDifference is how far the clocks of two machines may differ.
	clockDifference = 5 * time.Minute
	maxSubject      = 128 // bytes
)

// User is who an ID token names.
type User struct {
	Subject string
	Roles   []string
	// Hash is that of the ID token, which must be remembered until Until.
	Hash  []byte
	Until time.Time
	// Claims are the names of the claims, sorted.
	Claims []string
}

// NonceOf returns the nonce that a client sends to the provider. Only the server that verifies the ID
// token gets the client's secret.
func NonceOf(secret string) string {
	hash := sha256.Sum256([]byte(secret))
	return base64.RawURLEncoding.EncodeToString(hash[:])
}

// checkTimes refuses an ID token that is too old to be that of this login.
func checkTimes(issued, now time.Time) error {
	switch {
	case issued.Unix() <= 0:
		return fmt.Errorf("%w: the ID token does not say when it was issued", ErrRefused)
	case now.Sub(issued) > maxAge:
		return fmt.Errorf("%w: the ID token was issued at %s, and may be used for %s: log in again", ErrRefused, issued.UTC().Format(time.RFC3339), maxAge)
	case issued.Sub(now) > clockDifference:
		return fmt.Errorf("%w: the ID token was issued at %s, and now is %s: check the clocks of the provider and of this server", ErrRefused, issued.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}

// checkNonce refuses an ID token of another login. The device flow has no nonce.
func checkNonce(nonce, secret string) error {
	if nonce == "" && secret == "" || subtle.ConstantTimeCompare([]byte(nonce), []byte(NonceOf(secret))) == 1 {
		return nil
	}
	return fmt.Errorf("%w: the nonce of the ID token is not that of this login: log in again", ErrRefused)
}

// checkParty refuses an ID token that was given to another client.
func checkParty(claims map[string]any, audience []string, client string) error {
	party, said := claims["azp"]
	if said && party != client || !said && len(audience) > 1 {
		return fmt.Errorf("%w: the ID token was given to client %v, not to %q", ErrRefused, party, client)
	}
	return nil
}

// subjectOf returns the name of the user.
func subjectOf(p *nusav1.AuthProvider, claims map[string]any) (string, error) {
	claim := p.GetSubjectClaim()
	if claim == "" {
		claim = "sub"
	}
	subject, _ := claims[claim].(string)
	verified := claims["email_verified"]
	switch {
	case subject == "":
		return "", fmt.Errorf("%w: the ID token has no claim %q, which names the user: add a scope to the provider %s, or another subject claim", ErrRefused, claim, p.GetName())
	case len(subject) > maxSubject || !isWord(subject) || strings.ContainsAny(subject, `*?"'\`):
		return "", fmt.Errorf("%w: claim %q has a text that cannot name a user (1 to %d letters, digits and signs without blanks, quotes, * and ?)", ErrRefused, claim, maxSubject)
	case claim == "email" && verified != true && verified != "true":
		return "", fmt.Errorf("%w: the provider has not verified the address %s", ErrRefused, subject)
	}
	return subject, nil
}

// rolesOf returns the roles that the rules of a provider give, sorted.
func rolesOf(p *nusav1.AuthProvider, claims map[string]any) ([]string, error) {
	var out []string
	for i, rule := range p.GetRules() {
		c, err := compile(rule.GetCondition())
		if err != nil {
			return nil, fmt.Errorf("rule %d of provider %s: %w", i+1, p.GetName(), err)
		}
		if c.holds(claims) {
			out = append(out, rule.GetRole())
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
