package rights

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
	"github.com/nusa-scheduler/nusa/security/identity"
)

// maxAnswers bounds the cached answers of a Set. When it is reached, the cache is emptied.
const maxAnswers = 4096

// ErrToken is wrapped by the errors about tokens that are not valid.
var ErrToken = errors.New("the access token is not valid")

// Set is one version of who may do what. It never changes, and it is safe for concurrent use.
type Set struct {
	msg    *nusav1.AuthSet
	policy *authz.Policy
	tokens map[string]*nusav1.AccessToken

	mu      sync.RWMutex
	answers map[question]bool
}

// question is an action without the name of its object, which rules do not read.
type question struct{ who, verb, kind, namespace, region string }

// New returns a set. A nil message stands for a federation that has stored nothing. Nobody may
// change the message after that.
func New(msg *nusav1.AuthSet) (*Set, error) {
	if msg == nil {
		msg = &nusav1.AuthSet{}
	}
	s := &Set{msg: msg, policy: policyOf(msg), tokens: map[string]*nusav1.AccessToken{}}
	if err := s.policy.Check(); err != nil {
		return nil, err
	}
	for _, t := range msg.GetTokens() {
		s.tokens[t.GetAccessor()] = t
	}
	return s, nil
}

// Message returns the content of the set. Nobody may change it.
func (s *Set) Message() *nusav1.AuthSet { return s.msg }

// Unbound reports whether the set has no bindings. Then each operator certificate has the role
// admin.
func (s *Set) Unbound() bool { return len(s.msg.GetBindings()) == 0 }

// Operator returns the principal of an operator's certificate.
func (s *Set) Operator(name string) authz.Principal {
	who := authz.Principal{Name: operatorPrefix + name}
	if s.Unbound() {
		who.Roles = []string{"admin"}
	}
	return who
}

const (
	operatorPrefix = "operator/"
	tokenPrefix    = "token/"
	userPrefix     = "user/"
)

// Token returns the principal of a token's text.
func (s *Set) Token(text string, now time.Time) (authz.Principal, *nusav1.AccessToken, error) {
	accessor, hash, err := authz.ParseToken(text)
	if err != nil {
		return authz.Principal{}, nil, fmt.Errorf("%w: %w", ErrToken, err)
	}
	t := s.tokens[accessor]
	switch {
	case t == nil || !hash.Equal(t.GetHash()):
		return authz.Principal{}, nil, fmt.Errorf("%w: token %s %w, has another secret, was revoked, or is of another federation", ErrToken, accessor, ErrUnknown)
	case !now.Before(t.GetExpires().AsTime()):
		return authz.Principal{}, nil, fmt.Errorf("%w: token %s expired at %s: use another one (`nusa auth token create`)", ErrToken, accessor, t.GetExpires().AsTime().Format(time.RFC3339))
	}
	return principalOf(t), t, nil
}

func principalOf(t *nusav1.AccessToken) authz.Principal {
	return authz.Principal{Name: cmp.Or(t.GetUser(), tokenPrefix+t.GetAccessor()), Credential: t.GetAccessor(), Roles: t.GetRoles(), Namespaces: t.GetNamespaces(), Regions: t.GetRegions()}
}

// Principal returns a principal by name: "operator/NAME", "token/ACCESSOR" of a stored token, or
// "user/SUBJECT@PROVIDER" with the roles of the latest login.
func (s *Set) Principal(name string) (authz.Principal, error) {
	if operator, ok := strings.CutPrefix(name, operatorPrefix); ok && identity.ValidName(operator) {
		return s.Operator(operator), nil
	}
	if subject, ok := strings.CutPrefix(name, userPrefix); ok {
		return s.user(name, subject)
	}
	accessor, ok := strings.CutPrefix(name, tokenPrefix)
	if !ok {
		return authz.Principal{}, fmt.Errorf("%q is not a principal: use operator/NAME, token/ACCESSOR or user/SUBJECT@PROVIDER", name)
	}
	t := s.tokens[accessor]
	if t == nil {
		return authz.Principal{}, fmt.Errorf("there is no token %q: `nusa auth token list` shows them", accessor)
	}
	return principalOf(t), nil
}

// user returns the principal of a user, with the roles of the latest login that is stored.
func (s *Set) user(name, subject string) (authz.Principal, error) {
	i := strings.LastIndexByte(subject, '@')
	if i < 1 || s.Provider(subject[i+1:]) == nil {
		return authz.Principal{}, fmt.Errorf("%q names no user of a stored provider: use user/SUBJECT@PROVIDER (`nusa auth provider list`)", name)
	}
	var latest *nusav1.AccessToken
	for _, t := range s.msg.GetTokens() {
		if t.GetUser() == name && (latest == nil || t.GetCreated().AsTime().After(latest.GetCreated().AsTime())) {
			latest = t
		}
	}
	if latest == nil {
		return authz.Principal{Name: name}, nil
	}
	return principalOf(latest), nil
}

// Grants returns where each role of a principal holds.
func (s *Set) Grants(who authz.Principal) []*nusav1.AuthGrant {
	var out []*nusav1.AuthGrant
	for _, role := range who.Roles {
		out = append(out, &nusav1.AuthGrant{Role: role, Namespaces: who.Namespaces, Regions: who.Regions})
	}
	for i := range s.policy.Bindings {
		if b := &s.policy.Bindings[i]; b.Gives(who) {
			out = append(out, &nusav1.AuthGrant{Role: b.Role, Binding: s.msg.GetBindings()[i].GetName(), Namespaces: b.Namespaces, Regions: b.Regions})
		}
	}
	return out
}

// RolesOf returns the names of the roles of a principal, sorted.
func (s *Set) RolesOf(who authz.Principal) []string { return authz.RolesOf(who, s.policy) }

// Decide decides an action. It does not use the cache.
func (s *Set) Decide(who authz.Principal, a authz.Action) authz.Decision {
	return authz.Decide(who, a, s.policy)
}

// Explain decides an action, and returns what each rule did.
func (s *Set) Explain(who authz.Principal, a authz.Action) (authz.Decision, []authz.Step) {
	return authz.Explain(who, a, s.policy)
}

// Allowed decides an action.
func (s *Set) Allowed(who authz.Principal, a authz.Action) bool {
	q := question{cmp.Or(who.Credential, who.Name), a.Verb, a.Kind, a.Namespace, a.Region}
	s.mu.RLock()
	allowed, known := s.answers[q]
	s.mu.RUnlock()
	if known {
		return allowed
	}
	allowed = authz.Decide(who, a, s.policy).Allowed
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answers == nil || len(s.answers) >= maxAnswers {
		s.answers = map[question]bool{}
	}
	// The texts of a question may be parts of a whole message.
	s.answers[question{strings.Clone(q.who), q.verb, q.kind, strings.Clone(q.namespace), strings.Clone(q.region)}] = allowed
	return allowed
}

// Somewhere reports whether a principal may do something in some place of those that the action
// leaves open.
func (s *Set) Somewhere(who authz.Principal, a authz.Action) bool {
	return authz.Somewhere(who, a, s.policy)
}
