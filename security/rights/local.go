package rights

import (
	"errors"
	"fmt"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
)

// Bounds of the local tokens of a region.
const (
	maxLocalTokens = 64
	maxLocalLife   = 90 * 24 * time.Hour
)

// Region is what a region has in its log about who may do what.
type Region struct {
	// Stored is the copy of the federation's set, or nil.
	Stored *nusav1.AuthSet
	// Local has the tokens of this region alone, or nil.
	Local *nusav1.AuthSet
	// Awaits: the region has a global tier, and has not received a set yet. Then operators with
	// certificates have no roles.
	Awaits bool
}

// OfRegion returns the set by which a region decides.
func OfRegion(r Region) (*Set, error) {
	s, err := New(r.Stored)
	if err != nil {
		return nil, err
	}
	s.awaits = r.Awaits
	for _, t := range r.Local.GetTokens() {
		if s.tokens[t.GetAccessor()] == nil {
			s.tokens[t.GetAccessor()] = t
		}
	}
	return s, nil
}

// CreateLocalToken returns the local tokens of a region with a new one, and the token's text. s has the
// roles of the federation.
func CreateLocalToken(s *Set, local *nusav1.AuthSet, n NewToken) (*nusav1.AuthSet, *nusav1.AccessToken, string, error) {
	if n.Request.GetTtl().AsDuration() > maxLocalLife {
		return nil, nil, "", fmt.Errorf("%w: a life of %s, a token of one region may have %s", ErrInvalid, n.Request.GetTtl().AsDuration(), maxLocalLife)
	}
	of, err := New(local)
	if err != nil {
		return nil, nil, "", err
	}
	of.policy = &authz.Policy{Roles: s.policy.Roles}
	next, shown, text, err := of.CreateToken(n)
	if err != nil {
		return nil, nil, "", err
	}
	out := next.Message()
	if len(out.GetTokens()) > maxLocalTokens {
		return nil, nil, "", fmt.Errorf("%w: there are %d tokens of this region alone: revoke some", ErrFull, maxLocalTokens)
	}
	for _, t := range out.GetTokens() {
		t.Local = true
	}
	shown.Local = true
	return out, shown, text, nil
}

// errNotLocal says that a token is not one of the region alone.
var errNotLocal = errors.New("is not a token of this region alone")

// RevokeLocalToken returns the local tokens of a region without one.
func RevokeLocalToken(local *nusav1.AuthSet, accessor string) (*nusav1.AuthSet, error) {
	of, err := New(local)
	if err != nil {
		return nil, err
	}
	next, err := of.RevokeToken(accessor)
	if errors.Is(err, ErrUnknown) {
		return nil, fmt.Errorf("token %q %w: revoke it at the global tier: %w", accessor, errNotLocal, ErrUnknown)
	}
	if err != nil {
		return nil, err
	}
	return next.Message(), nil
}
