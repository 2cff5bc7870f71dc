package join

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/roster"
)

// DefaultGrace is how long after its end a certificate may still be renewed.
const DefaultGrace = 30 * 24 * time.Hour

// Policy says what an agent needs to join. A server always needs a token. A token that an agent
// shows without need must be valid, too.
type Policy uint8

// The policies. The zero Policy is WithToken.
const (
	WithToken Policy = iota
	// Registered: the name must be registered.
	Registered
	// RegisteredWithToken: the name must be registered, and the agent needs a token.
	RegisteredWithToken
	// Open: every agent may join.
	Open
)

var policies = []string{"token", "registered", "token+registered", "open"}

// String returns the text that ParsePolicy reads.
func (p Policy) String() string {
	if int(p) < len(policies) {
		return policies[p]
	}
	return fmt.Sprintf("policy %d", p)
}

// ParsePolicy reads the text of a policy.
func ParsePolicy(text string) (Policy, error) {
	i := slices.Index(policies, text)
	if i < 0 {
		return WithToken, fmt.Errorf("join policy %q does not exist: use one of %q", text, policies)
	}
	return Policy(i), nil
}

func (p Policy) needsToken() bool { return p != Registered && p != Open }

func (p Policy) needsNode() bool { return p == Registered || p == RegisteredWithToken }

// Snapshot is what the deciding server knows about one request.
type Snapshot struct {
	Federation string
	// Region is that of the server, or empty at the global tier, which decides for all.
	Region string
	Policy Policy
	// Grace is how long after its end a certificate may be renewed, or 0 for never.
	Grace time.Duration
	// Token is the record with the id of the request's token, Node the registration of the
	// name, and Member the present owner of the name. Each is nil if there is none.
	Token  *Record
	Node   *roster.Node
	Member *Member
	// Banned is why the name is banned, or empty.
	Banned string
	// Removed is when an operator has removed the member with this key, or the zero time.
	Removed time.Time
	// Admits is the compiled Condition of the operator about the inventory. Both are empty if
	// there is no condition.
	Condition string
	Admits    func(*Request) (bool, error)
}

// Member is who has a name: the key, and the end of the last certificate.
type Member struct {
	Key      Hash
	NotAfter time.Time
}

// Over reports whether the member can no longer renew its certificate, so that nobody needs its
// record any more.
func (m *Member) Over(grace time.Duration, now time.Time) bool {
	return now.After(m.NotAfter.Add(grace))
}

// RefusedUntil returns until when the key of a removed member is refused.
func (m *Member) RefusedUntil(grace time.Duration) time.Time {
	return m.NotAfter.Add(max(grace, DefaultGrace))
}

// Request is what a new member asks for. Its sender has proven to have the key.
type Request struct {
	Token Token
	ID    identity.ID
	Key   Hash
	// Pool is what the agent's operator chose, or empty.
	Pool    string
	Address netip.Addr
	// Inventory is what the condition reads. This package does not.
	Inventory any
}

// Grant is a join that is allowed.
type Grant struct {
	ID   identity.ID
	Pool string       // or empty if nobody chose one
	Node *roster.Node // the registration, or nil
	// Token is the record to store before the certificate is issued, in place of the one that
	// Decide read, or nil if no token was shown. If that record has changed meanwhile, the
	// server asks Decide again.
	Token *Record
}

// Cause is why a request is refused, for metrics.
type Cause string

// The causes.
const (
	BadName       Cause = "bad_name"
	OtherRegion   Cause = "other_region"
	NoToken       Cause = "no_token"
	UnknownToken  Cause = "unknown_token"
	Revoked       Cause = "revoked"
	Expired       Cause = "expired"
	UsedUp        Cause = "used_up"
	Clock         Cause = "clock"
	OtherRole     Cause = "other_role"
	OtherName     Cause = "other_name"
	OtherPool     Cause = "other_pool"
	OtherAddress  Cause = "other_address"
	NotRegistered Cause = "not_registered"
	Banned        Cause = "banned"
	Removed       Cause = "removed"
	NameTaken     Cause = "name_taken"
	NotAdmitted   Cause = "not_admitted"
)

// Refusal is why a member gets no certificate. Its text says what to do.
type Refusal struct {
	Cause Cause
	text  string
}

// Error implements error.
func (r *Refusal) Error() string { return r.text }

func refuse(c Cause, format string, args ...any) *Refusal {
	return &Refusal{Cause: c, text: fmt.Sprintf(format, args...)}
}

// Decide returns what a new member gets, or why the member may not join. A sender who does not
// know the secret of a token learns nothing about the token, nor about bans and members if
// the policy needs a token.
func Decide(s *Snapshot, r *Request, now time.Time) (Grant, *Refusal) {
	if refusal := s.place(r.ID); refusal != nil {
		return Grant{}, refusal
	}
	agent := r.ID.Kind == identity.Agent
	var after *Record
	switch {
	case !r.Token.IsZero():
		if refusal := checkToken(s.Token, r, now); refusal != nil {
			return Grant{}, refusal
		}
		after = s.Token.used(Use{Name: r.ID.Name, Key: r.Key})
	case !agent || s.Policy.needsToken():
		return Grant{}, refuse(NoToken, "%s needs a join token: make one with 'nusa token create', and give it by file, environment or standard input", r.ID.Describe())
	}
	node := s.Node
	switch {
	case !agent:
		node = nil
	case node == nil && s.Policy.needsNode():
		return Grant{}, refuse(NotRegistered, "%s is not registered, and the join policy is %s: register the node, or change the policy", r.ID.Describe(), s.Policy)
	}
	pool, refusal := poolOf(s.Token, node, r)
	if refusal != nil {
		return Grant{}, refusal
	}
	if node != nil && node.Address.IsValid() && node.Address != r.Address.Unmap() {
		return Grant{}, refuse(OtherAddress, "%s joins from %s, and is registered with %s: correct the registration, or join from that address", r.ID.Describe(), r.Address, node.Address)
	}
	if r.ID.Kind == identity.Operator {
		s.Member = nil // a token for a person replaces that person's earlier key
	}
	if refusal := s.member(r.ID, r.Key, now); refusal != nil {
		return Grant{}, refusal
	}
	if s.Condition != "" || s.Admits != nil {
		if refusal := s.admit(r); refusal != nil {
			return Grant{}, refusal
		}
	}
	return Grant{ID: r.ID, Pool: pool, Node: node, Token: after}, nil
}

// Renewal is a request for the next certificate. Its sender has proven to have the key of the
// old certificate, which the federation issued (pki.Verify, at the time of its end if the
// certificate is expired). The next certificate is for the same key, so an answer that was lost
// does not lock the member out.
type Renewal struct {
	ID                  identity.ID
	Key                 Hash
	NotBefore, NotAfter time.Time
}

// Renew returns why a member gets no next certificate, or nil. An expired certificate is
// renewed within the grace, so that a machine which was off comes back without a token.
func Renew(s *Snapshot, r *Renewal, now time.Time) *Refusal {
	if refusal := s.place(r.ID); refusal != nil {
		return refusal
	}
	if now.Add(clockDifference).Before(r.NotBefore) {
		return refuse(Clock, "the certificate of %s begins at %s, and now is %s: check the clocks", r.ID.Describe(), stamp(r.NotBefore), stamp(now))
	}
	if now.After(r.NotAfter) && !now.Before(r.NotAfter.Add(s.Grace)) {
		return refuse(Expired, "the certificate of %s ended at %s, and could be renewed for %s: join again with a new token", r.ID.Describe(), stamp(r.NotAfter), s.Grace)
	}
	return s.member(r.ID, r.Key, now)
}
