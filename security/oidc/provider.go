package oidc

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds of a provider.
const (
	maxText   = 256
	maxScopes = 16
	maxRules  = 32
	maxRoots  = 16 << 10 // bytes
	// MaxLife is the longest life of the access token of a user, DefaultLife the usual one.
	MaxLife, DefaultLife = 24 * time.Hour, 8 * time.Hour
	minLife              = time.Minute
)

// ErrProvider is wrapped by the errors of Check.
var ErrProvider = errors.New("not a valid provider")

// Check returns an error if a provider cannot be stored. Package rights checks its name and roles.
func Check(p *nusav1.AuthProvider) error {
	if err := checkIssuer(p.GetIssuer()); err != nil {
		return fmt.Errorf("%w: issuer %q: %w", ErrProvider, p.GetIssuer(), err)
	}
	switch {
	case !isWord(p.GetClientId()):
		return fmt.Errorf("%w: client id %q: give the id of Nusa at the provider, 1 to %d bytes without blanks", ErrProvider, p.GetClientId(), maxText)
	case len(p.GetScopes()) > maxScopes:
		return fmt.Errorf("%w: %d scopes, at most %d", ErrProvider, len(p.GetScopes()), maxScopes)
	case p.GetSubjectClaim() != "" && !isWord(p.GetSubjectClaim()):
		return fmt.Errorf("%w: subject claim %q: give the name of a claim, such as email", ErrProvider, p.GetSubjectClaim())
	case len(p.GetRules()) > maxRules:
		return fmt.Errorf("%w: %d rules, at most %d", ErrProvider, len(p.GetRules()), maxRules)
	case p.GetMaxTtl() != nil && (p.GetMaxTtl().AsDuration() < minLife || p.GetMaxTtl().AsDuration() > MaxLife):
		return fmt.Errorf("%w: a life of %s, allowed are %s to %s", ErrProvider, p.GetMaxTtl().AsDuration(), minLife, MaxLife)
	case len(p.GetRoots()) > maxRoots:
		return fmt.Errorf("%w: %d bytes of certificates, at most %d", ErrProvider, len(p.GetRoots()), maxRoots)
	case len(p.GetRoots()) > 0 && !x509.NewCertPool().AppendCertsFromPEM(p.GetRoots()):
		return fmt.Errorf("%w: the roots have no certificate in PEM", ErrProvider)
	}
	for _, scope := range p.GetScopes() {
		if !isWord(scope) {
			return fmt.Errorf("%w: scope %q: a scope has no blanks", ErrProvider, scope)
		}
	}
	for i, rule := range p.GetRules() {
		if _, err := compile(rule.GetCondition()); err != nil {
			return fmt.Errorf("%w: rule %d, role %s: %w", ErrProvider, i+1, rule.GetRole(), err)
		}
	}
	return nil
}

// checkIssuer accepts addresses over which nobody can pose as the provider.
func checkIssuer(issuer string) error {
	u, err := url.Parse(issuer)
	switch {
	case len(issuer) > maxText:
		return fmt.Errorf("%d bytes, at most %d", len(issuer), maxText)
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return errors.New("give the address of the provider, https://HOST/PATH without anything behind it")
	case u.Scheme == "https", u.Scheme == "http" && isLoopback(u.Hostname()):
		return nil
	}
	return errors.New("a provider needs https: over http everybody on the way could pose as the provider")
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// isWord reports whether a text has 1 to maxText printable characters of ASCII, and no blank.
func isWord(text string) bool {
	return text != "" && len(text) <= maxText && strings.IndexFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) < 0
}

// Life returns the life of an access token of a provider's user, who has asked for want, or for
// nothing (0).
func Life(p *nusav1.AuthProvider, want time.Duration) time.Duration {
	longest := DefaultLife
	if p.GetMaxTtl() != nil {
		longest = p.GetMaxTtl().AsDuration()
	}
	if want <= 0 {
		return longest
	}
	return min(max(want, minLife), longest)
}
