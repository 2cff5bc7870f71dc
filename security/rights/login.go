package rights

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
	"github.com/nusa-scheduler/nusa/security/identity"
)

// Bounds of logins.
const (
	maxProviders = 16
	// maxUsedLogins bounds the ID tokens that are remembered.
	maxUsedLogins = 1024
	// maxOfUser bounds the access tokens of a user. The next one replaces the oldest.
	maxOfUser = 8
)

// ErrReplayed says that an ID token was used already.
var ErrReplayed = errors.New("the ID token was used already: log in again")

// User returns the principal of a user: "user/SUBJECT@PROVIDER".
func User(subject, provider string) string { return userPrefix + subject + "@" + provider }

// Provider returns a stored provider, or nil.
func (s *Set) Provider(name string) *nusav1.AuthProvider {
	for _, p := range s.msg.GetProviders() {
		if p.GetName() == name {
			return p
		}
	}
	return nil
}

// ListProviders returns the stored providers. secured says that the server knows its callers: then only
// who may read roles gets the rules.
func (s *Set) ListProviders(ctx context.Context, secured bool) *nusav1.ListProvidersResponse {
	call := Of(ctx)
	rules := !secured || call != nil && s.Allowed(call.Who, authz.Action{Verb: "read", Kind: "role"})
	out := &nusav1.ListProvidersResponse{}
	for _, p := range s.msg.GetProviders() {
		if !rules {
			p = proto.CloneOf(p)
			p.Rules = nil
		}
		out.Providers = append(out.Providers, p)
	}
	return out
}

// SetProvider returns the set with a provider, which package oidc has checked. The users of an
// earlier provider of that name must log in again.
func (s *Set) SetProvider(p *nusav1.AuthProvider) (*Set, error) {
	if !identity.ValidRegion(p.GetName()) {
		return nil, fmt.Errorf("%w: %q is not a name of a provider: use 1 to 63 of a-z, 0-9 and -, starting with a letter", ErrInvalid, p.GetName())
	}
	for _, rule := range p.GetRules() {
		if !s.policy.Has(rule.GetRole()) {
			return nil, fmt.Errorf("%w: role %q does not exist: define the role first", ErrInvalid, rule.GetRole())
		}
	}
	next := s.withoutUsers(p.GetName())
	next.Providers = put(next.Providers, proto.CloneOf(p), (*nusav1.AuthProvider).GetName)
	if len(next.GetProviders()) > maxProviders {
		return nil, fmt.Errorf("%w: there are %d providers: remove one", ErrFull, maxProviders)
	}
	return s.changed(next, Change{})
}

// RemoveProvider returns the set without a provider and without the access tokens of its users.
func (s *Set) RemoveProvider(name string) (*Set, error) {
	next := s.withoutUsers(name)
	var found bool
	next.Providers, found = drop(next.Providers, name, (*nusav1.AuthProvider).GetName)
	if !found {
		return nil, fmt.Errorf("provider %q %w: `nusa auth provider list` shows the providers", name, ErrUnknown)
	}
	return s.changed(next, Change{})
}

// withoutUsers returns the message without the access tokens of a provider's users.
func (s *Set) withoutUsers(provider string) *nusav1.AuthSet {
	next := proto.CloneOf(s.msg)
	next.Tokens = slices.DeleteFunc(next.Tokens, func(t *nusav1.AccessToken) bool {
		return strings.HasPrefix(t.GetUser(), userPrefix) && strings.HasSuffix(t.GetUser(), "@"+provider)
	})
	return next
}

// NewLogin is a login of a user whose ID token was verified.
type NewLogin struct {
	// User is the principal, and Roles are what the rules of the provider give.
	User  string
	Roles []string
	// IDToken is the hash of the ID token, which is remembered until Until.
	IDToken []byte
	Until   time.Time
	// Life is the life of the access token.
	Life   time.Duration
	Now    time.Time
	Random [authz.TokenRandom]byte
}

// Login returns the set with an access token for a user, and the token's text.
func (s *Set) Login(n NewLogin) (*Set, *nusav1.AccessToken, string, error) {
	next := proto.CloneOf(s.msg)
	next.UsedLogins = slices.DeleteFunc(next.UsedLogins, func(u *nusav1.UsedLogin) bool { return u.GetUntil().AsTime().Before(n.Now) })
	for _, u := range next.GetUsedLogins() {
		if bytes.Equal(u.GetHash(), n.IDToken) {
			return nil, nil, "", ErrReplayed
		}
	}
	if len(next.GetUsedLogins()) >= maxUsedLogins {
		return nil, nil, "", fmt.Errorf("%w: %d users have logged in within minutes: try again later", ErrFull, maxUsedLogins)
	}
	next.UsedLogins = append(next.UsedLogins, &nusav1.UsedLogin{Hash: n.IDToken, Until: timestamppb.New(n.Until)})
	var oldest *nusav1.AccessToken
	same := 0
	next.Tokens = slices.DeleteFunc(next.Tokens, func(t *nusav1.AccessToken) bool {
		if t.GetUser() == "" {
			return t.GetExpires().AsTime().Add(expiredFor).Before(n.Now)
		}
		if !t.GetExpires().AsTime().After(n.Now) {
			return true
		}
		if t.GetUser() == n.User {
			same++
			if oldest == nil || t.GetCreated().AsTime().Before(oldest.GetCreated().AsTime()) {
				oldest = t
			}
		}
		return false
	})
	if same >= maxOfUser {
		next.Tokens, _ = drop(next.Tokens, oldest.GetAccessor(), (*nusav1.AccessToken).GetAccessor)
	}
	text, accessor, hash := authz.NewToken(n.Random)
	if s.tokens[accessor] != nil {
		return nil, nil, "", fmt.Errorf("%w: accessor %s exists: try again", ErrInvalid, accessor)
	}
	t := &nusav1.AccessToken{
		Accessor: accessor, User: n.User, Roles: n.Roles, Created: timestamppb.New(n.Now), CreatedBy: n.User,
		Expires: timestamppb.New(n.Now.Add(n.Life)), Hash: hash[:],
	}
	next.Tokens = put(next.Tokens, t, (*nusav1.AccessToken).GetAccessor)
	set, err := s.changed(next, Change{})
	if err != nil {
		return nil, nil, "", err
	}
	return set, shown(t), text, nil
}

// shown returns a token without the hash of its secret.
func shown(t *nusav1.AccessToken) *nusav1.AccessToken {
	out := proto.CloneOf(t)
	out.Hash = nil
	return out
}
