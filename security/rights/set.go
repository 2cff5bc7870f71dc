package rights

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

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
	msg        *nusav1.AuthSet
	policy     *authz.Policy
	tokens     map[string]*nusav1.AccessToken
	namespaces map[string]*nusav1.Namespace
	// awaits: the region of this server has not received a set yet.
	awaits bool

	mu      sync.RWMutex
	answers map[question]answer
}

// answer is a cached decision.
type answer uint8

const (
	unknown answer = iota
	yes
	no
	conditional // it depends on conditions, so it is not the same for each object
)

// question is an action without the name of its object, which only conditions read.
type question struct{ who, verb, kind, namespace, region string }

// New returns a set. A nil message stands for a federation that has stored nothing. Nobody may
// change the message after that.
func New(msg *nusav1.AuthSet) (*Set, error) {
	if msg == nil {
		msg = &nusav1.AuthSet{}
	}
	s := &Set{msg: msg, policy: policyOf(msg), tokens: map[string]*nusav1.AccessToken{}, namespaces: map[string]*nusav1.Namespace{}}
	if err := s.policy.Check(); err != nil {
		return nil, err
	}
	for _, t := range msg.GetTokens() {
		s.tokens[t.GetAccessor()] = t
	}
	for _, n := range msg.GetNamespaces() {
		s.namespaces[n.GetName()] = n
	}
	return s, nil
}

// Message returns the content of the set. Nobody may change it.
func (s *Set) Message() *nusav1.AuthSet { return s.msg }

// Unbound reports whether the set has no bindings. Then each operator certificate has the role
// admin.
func (s *Set) Unbound() bool { return len(s.msg.GetBindings()) == 0 && !s.awaits }

// Socket is the credential of the principal of Root.
const Socket = "socket"

// Root returns the principal of who administers the server's machine: it has the role admin, whatever
// the set contains.
func (s *Set) Root() authz.Principal {
	return authz.Principal{Name: operatorPrefix + "root", Credential: Socket, Roles: []string{"admin"}}
}

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

// RolesOf returns the names of the roles of a principal, sorted.
func (s *Set) RolesOf(who authz.Principal) []string { return authz.RolesOf(who, s.policy) }

// awaited is why a region that has not received a set decides nothing for operators.
const awaited = "this region has not received from the global tier who may do what: wait for the global tier, or use an access token of this region (`nusa auth token create --local` on the machine of a regional server)"

// Decide decides an action. It does not use the cache.
func (s *Set) Decide(who authz.Principal, a authz.Action) authz.Decision {
	d := authz.Decide(who, a, s.policy)
	if s.awaits && !d.Allowed {
		d.Reason += ": " + awaited
	}
	return d
}

// Explain decides an action, and returns what each rule did.
func (s *Set) Explain(who authz.Principal, a authz.Action) (authz.Decision, []authz.Step) {
	_, steps := authz.Explain(who, a, s.policy)
	return s.Decide(who, a), steps
}

// Allowed decides an action.
func (s *Set) Allowed(who authz.Principal, a authz.Action) bool {
	q := question{cmp.Or(who.Credential, who.Name), a.Verb, a.Kind, a.Namespace, a.Region}
	s.mu.RLock()
	known := s.answers[q]
	s.mu.RUnlock()
	if known == unknown {
		known = s.find(who, a, q)
	}
	return known == yes || known == conditional && authz.Decide(who, a, s.policy).Allowed
}

// find finds the answer to a question, and stores it in the cache.
func (s *Set) find(who authz.Principal, a authz.Action, q question) answer {
	out := conditional
	if allowed, known := authz.Unconditional(who, a, s.policy); known {
		out = no
		if allowed {
			out = yes
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answers == nil || len(s.answers) >= maxAnswers {
		s.answers = map[question]answer{}
	}
	// The texts of a question may be parts of a whole message.
	s.answers[question{strings.Clone(q.who), q.verb, q.kind, strings.Clone(q.namespace), strings.Clone(q.region)}] = out
	return out
}

// Somewhere reports whether a principal may do something in some place of those that the action
// leaves open.
func (s *Set) Somewhere(who authz.Principal, a authz.Action) bool {
	return authz.Somewhere(who, a, s.policy)
}

// Object returns the stored object of a kind (role, binding, token, namespace, provider) with a name,
// or nil.
func (s *Set) Object(kind, name string) proto.Message {
	switch kind {
	case "role":
		return named(storedRoles(s.msg), name, (*nusav1.AuthRole).GetName)
	case "binding":
		return named(s.msg.GetBindings(), name, (*nusav1.AuthBinding).GetName)
	case "token":
		return named(s.msg.GetTokens(), name, (*nusav1.AccessToken).GetAccessor)
	case "namespace":
		return named(s.msg.GetNamespaces(), name, (*nusav1.Namespace).GetName)
	case "provider":
		return named(s.msg.GetProviders(), name, (*nusav1.AuthProvider).GetName)
	}
	return nil
}

// named returns the part with a name, or nil.
func named[T proto.Message](list []T, want string, name func(T) string) proto.Message {
	if i := slices.IndexFunc(list, func(x T) bool { return name(x) == want }); i >= 0 {
		return list[i]
	}
	return nil
}
