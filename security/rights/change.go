package rights

import (
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

// Bounds of a set, and of the life of a token.
const (
	maxBytes       = 250 << 10 // with its version, a document of a region has at most 256 KiB
	maxTokens      = 1024
	maxDescription = 128
	minLife        = time.Minute
	maxLife        = 10 * 365 * 24 * time.Hour
	defaultLife    = 30 * 24 * time.Hour
	// expiredFor is how long the list shows a token that has expired.
	expiredFor = 7 * 24 * time.Hour
)

// Errors of changes.
var (
	// ErrInvalid says that a request is wrong.
	ErrInvalid = errors.New("not a valid change")
	// ErrFull says that a bound of the set is reached.
	ErrFull = errors.New("too many roles, bindings and tokens")
	// ErrUnknown says that the named object does not exist.
	ErrUnknown = errors.New("does not exist")
	// ErrLockout says that the caller would lose the right to change roles.
	ErrLockout = errors.New("the caller could not change roles any more")
	// ErrInUse says that something still has the role.
	ErrInUse = errors.New("the role is in use")
	// ErrLast says that no binding would be left.
	ErrLast = errors.New("no binding would be left")
)

// Change is a change of a set by a caller.
type Change struct {
	// By is the caller's principal. It is empty if the server has no identity: then nobody is locked
	// out.
	By string
	// Force makes the change even if it fails with ErrLockout or ErrLast.
	Force bool
}

// put adds a part to a list that is sorted by name, or replaces the part with the same name.
func put[T any](list []T, next T, name func(T) string) []T {
	i, found := slices.BinarySearchFunc(list, name(next), func(x T, n string) int { return strings.Compare(name(x), n) })
	if found {
		list[i] = next
		return list
	}
	return slices.Insert(list, i, next)
}

// drop removes the part with a name. It reports whether there was one.
func drop[T any](list []T, gone string, name func(T) string) ([]T, bool) {
	n := len(list)
	list = slices.DeleteFunc(list, func(x T) bool { return name(x) == gone })
	return list, len(list) < n
}

// SetRole returns the set with a role.
func (s *Set) SetRole(role *nusav1.AuthRole, c Change) (*Set, error) {
	if role == nil {
		return nil, fmt.Errorf("%w: the request has no role", ErrInvalid)
	}
	if err := checkConditions(role); err != nil {
		return nil, fmt.Errorf("%w: role %s, %w", ErrInvalid, role.GetName(), err)
	}
	next := proto.CloneOf(s.msg)
	role = proto.CloneOf(role)
	role.BuiltIn = false
	dropRole(next, role.GetName())
	list := &next.Roles
	if hasCondition(role) {
		list = &next.ConditionalRoles
	}
	*list = put(*list, role, (*nusav1.AuthRole).GetName)
	if n := countConditions(next); n > maxConditions {
		return nil, fmt.Errorf("%w: %d rules with conditions, at most %d", ErrFull, n, maxConditions)
	}
	return s.changed(next, c)
}

func dropRole(msg *nusav1.AuthSet, name string) (found bool) {
	var plain, conditional bool
	msg.Roles, plain = drop(msg.Roles, name, (*nusav1.AuthRole).GetName)
	msg.ConditionalRoles, conditional = drop(msg.ConditionalRoles, name, (*nusav1.AuthRole).GetName)
	return plain || conditional
}

// RemoveRole returns the set without a role.
func (s *Set) RemoveRole(name string) (*Set, error) {
	for _, b := range s.msg.GetBindings() {
		if b.GetRole() == name {
			return nil, fmt.Errorf("%w: binding %s gives role %s: remove the binding first", ErrInUse, b.GetName(), name)
		}
	}
	for _, t := range s.msg.GetTokens() {
		if slices.Contains(t.GetRoles(), name) {
			return nil, fmt.Errorf("%w: token %s has role %s: revoke the token first", ErrInUse, t.GetAccessor(), name)
		}
	}
	for _, p := range s.msg.GetProviders() {
		if slices.ContainsFunc(p.GetRules(), func(r *nusav1.ProviderRule) bool { return r.GetRole() == name }) {
			return nil, fmt.Errorf("%w: provider %s gives role %s: change the provider first", ErrInUse, p.GetName(), name)
		}
	}
	return s.without(Change{}, func(next *nusav1.AuthSet) error {
		return known(dropRole(next, name), "role %q %w, or is built in: `nusa auth role list` shows the roles", name)
	})
}

// without returns the set after a removal.
func (s *Set) without(c Change, remove func(next *nusav1.AuthSet) error) (*Set, error) {
	next := proto.CloneOf(s.msg)
	if err := remove(next); err != nil {
		return nil, err
	}
	return s.changed(next, c)
}

// known returns ErrUnknown with a text, unless the object was found.
func known(found bool, format, name string) error {
	if found {
		return nil
	}
	return fmt.Errorf(format, name, ErrUnknown)
}

// SetBinding returns the set with a binding.
func (s *Set) SetBinding(b *nusav1.AuthBinding, c Change) (*Set, error) {
	if !identity.ValidRegion(b.GetName()) {
		return nil, fmt.Errorf("%w: %q is not a name of a binding: use 1 to 63 of a-z, 0-9 and -, starting with a letter", ErrInvalid, b.GetName())
	}
	for _, subject := range b.GetSubjects() {
		if !mayMatch(subject) {
			return nil, fmt.Errorf("%w: subject %q is no principal: use operator/NAME, token/ACCESSOR or user/SUBJECT@PROVIDER, or a pattern of them", ErrInvalid, subject)
		}
	}
	next := proto.CloneOf(s.msg)
	next.Bindings = put(next.Bindings, proto.CloneOf(b), (*nusav1.AuthBinding).GetName)
	return s.changed(next, c)
}

// mayMatch reports whether a pattern of principals can match one.
func mayMatch(pattern string) bool {
	wild := strings.IndexAny(pattern, "*?")
	for _, prefix := range []string{operatorPrefix, tokenPrefix, userPrefix} {
		if strings.HasPrefix(pattern, prefix) && pattern != prefix || wild >= 0 && strings.HasPrefix(prefix, pattern[:wild]) {
			return true
		}
	}
	return false
}

// RemoveBinding returns the set without a binding.
func (s *Set) RemoveBinding(name string, c Change) (*Set, error) {
	return s.without(c, func(next *nusav1.AuthSet) error {
		var found bool
		next.Bindings, found = drop(next.Bindings, name, (*nusav1.AuthBinding).GetName)
		if found && len(next.GetBindings()) == 0 && !c.Force {
			return fmt.Errorf("%w, so each operator certificate would have the role admin: use --force if that is meant", ErrLast)
		}
		return known(found, "binding %q %w: `nusa auth binding list` shows the bindings", name)
	})
}

// NewToken describes a token to make.
type NewToken struct {
	Request *nusav1.CreateAccessTokenRequest
	By      string
	Now     time.Time
	Random  [authz.TokenRandom]byte
}

// CreateToken returns the set with a new token, and the token's text.
func (s *Set) CreateToken(n NewToken) (*Set, *nusav1.AccessToken, string, error) {
	req := n.Request
	life := defaultLife
	if req.GetTtl() != nil {
		life = req.GetTtl().AsDuration()
	}
	switch {
	case life < minLife || life > maxLife:
		return nil, nil, "", fmt.Errorf("%w: a life of %s, allowed are %s to %s", ErrInvalid, life, minLife, maxLife)
	case len(req.GetDescription()) > maxDescription:
		return nil, nil, "", fmt.Errorf("%w: the description has %d bytes, at most %d", ErrInvalid, len(req.GetDescription()), maxDescription)
	}
	text, accessor, hash := authz.NewToken(n.Random)
	t := &nusav1.AccessToken{
		Accessor: accessor, Description: req.GetDescription(), Roles: req.GetRoles(), Namespaces: req.GetNamespaces(), Regions: req.GetRegions(),
		Created: timestamppb.New(n.Now), CreatedBy: n.By, Expires: timestamppb.New(n.Now.Add(life)), Hash: hash[:],
	}
	// A binding with the same fields is valid for the same roles and patterns.
	for _, role := range t.GetRoles() {
		if !s.policy.Has(role) {
			return nil, nil, "", fmt.Errorf("%w: role %q does not exist: `nusa auth role list` shows the roles", ErrInvalid, role)
		}
		probe := &authz.Policy{Roles: s.policy.Roles, Bindings: []authz.Binding{{Role: role, Subjects: []string{"x"}, Namespaces: t.GetNamespaces(), Regions: t.GetRegions()}}}
		if err := probe.Check(); err != nil {
			return nil, nil, "", fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	if len(t.GetRoles()) > authz.MaxList {
		return nil, nil, "", fmt.Errorf("%w: %d roles, at most %d", ErrInvalid, len(t.GetRoles()), authz.MaxList)
	}
	if s.tokens[accessor] != nil {
		return nil, nil, "", fmt.Errorf("%w: accessor %s exists: try again", ErrInvalid, accessor)
	}
	next := proto.CloneOf(s.msg)
	next.Tokens = slices.DeleteFunc(next.Tokens, func(t *nusav1.AccessToken) bool {
		return t.GetExpires().AsTime().Add(expiredFor).Before(n.Now)
	})
	next.Tokens = put(next.Tokens, t, (*nusav1.AccessToken).GetAccessor)
	set, err := s.changed(next, Change{})
	if err != nil {
		return nil, nil, "", err
	}
	return set, shown(t), text, nil
}

// RevokeToken returns the set without a token.
func (s *Set) RevokeToken(accessor string) (*Set, error) {
	return s.without(Change{}, func(next *nusav1.AuthSet) error {
		var found bool
		next.Tokens, found = drop(next.Tokens, accessor, (*nusav1.AccessToken).GetAccessor)
		return known(found, "token %q %w: `nusa auth token list` shows the tokens", accessor)
	})
}

// changed returns the set of a changed message.
func (s *Set) changed(msg *nusav1.AuthSet, c Change) (*Set, error) {
	next, err := New(msg)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	case proto.Size(msg) > maxBytes:
		return nil, fmt.Errorf("%w: they would take %d bytes, at most %d: remove some", ErrFull, proto.Size(msg), maxBytes)
	case len(msg.GetTokens()) > maxTokens:
		return nil, fmt.Errorf("%w: there are %d tokens: revoke some", ErrFull, maxTokens)
	case c.By == "" || c.Force:
		return next, nil
	}
	who, err := next.Principal(c.By)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLockout, err)
	}
	if d := next.Decide(who, authz.Action{Verb: "set", Kind: "role"}); !d.Allowed {
		return nil, fmt.Errorf("%w: %s: bind the role admin first, or use --force", ErrLockout, d.Reason)
	}
	return next, nil
}
