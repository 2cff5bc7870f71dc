package join

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/internal/glob"
	"github.com/nusa-scheduler/nusa/security/identity"
)

// Bounds of a token.
const (
	MaxUses   = 100_000
	MaxLife   = 365 * 24 * time.Hour
	maxRecent = 64
	// clockDifference is how far the clocks of two servers may differ.
	clockDifference = 5 * time.Minute
)

// ErrRecord is wrapped by every error of Check.
var ErrRecord = errors.New("not a valid token")

// Record is what servers store of a token: the hash of its secret, and what the token is for.
type Record struct {
	ID     string
	Secret Hash
	// Kind is that of the members which may join: identity.Agent, identity.Server or
	// identity.Operator.
	Kind identity.Kind
	// Region is that of the members. Operators have none.
	Region string
	// Pool is the pool of the nodes, or empty for every pool. Servers have no pool.
	Pool string
	// Name is a pattern of the names of the members (internal/glob). An operator's is the name.
	Name string
	// Uses is how many members may still join.
	Uses             int
	Created, Expires time.Time
	By               string
	Revoked          bool
	// Recent are the last joins. A member that joins again with the same key, because the
	// answer was lost, takes no other use.
	Recent []Use
}

// Use is one join with a token.
type Use struct {
	Name string
	Key  Hash
}

// Check returns an error if a new token is for nothing, or is not bounded.
func (r *Record) Check() error {
	life := r.Expires.Sub(r.Created)
	switch {
	case !isHex(r.ID, idBytes) || r.Secret == (Hash{}):
		return fmt.Errorf("%w: token %q has no id or no hash: make the record from a token", ErrRecord, r.ID)
	case !joins(r.Kind):
		return fmt.Errorf("%w: a token is for agents, regional servers or an operator, not for the role %s", ErrRecord, r.Kind)
	case r.Kind == identity.Operator && (r.Region != "" || r.Uses != 1 || !identity.ValidName(r.Name)):
		return fmt.Errorf("%w: a token for an operator is used once, for one name, and for no region: name %q, %d uses, region %q", ErrRecord, r.Name, r.Uses, r.Region)
	case r.Kind.Regional() && !identity.ValidRegion(r.Region):
		return fmt.Errorf("%w: %q is not a name of a region", ErrRecord, r.Region)
	case r.Pool != "" && (r.Kind != identity.Agent || !identity.ValidRegion(r.Pool)):
		return fmt.Errorf("%w: pool %q: only tokens for agents have a pool, and its name has 1 to 63 of a-z, 0-9 and -", ErrRecord, r.Pool)
	case r.Uses < 1 || r.Uses > MaxUses:
		return fmt.Errorf("%w: %d uses, allowed are 1 to %d", ErrRecord, r.Uses, MaxUses)
	case life <= 0 || life > MaxLife:
		return fmt.Errorf("%w: a life of %s, allowed is at most %s", ErrRecord, life, MaxLife)
	}
	if err := glob.Check(r.Name); err != nil {
		return fmt.Errorf("%w: name: %w", ErrRecord, err)
	}
	return nil
}

// Is reports whether the record is that of a token. The time that this takes does not depend
// on how much of the secret is right.
func (r *Record) Is(t Token) bool {
	hash := t.Hash()
	return subtle.ConstantTimeCompare(hash[:], r.Secret[:]) == 1 && !t.IsZero() && r.ID == t.ID()
}

// used returns the record after a join.
func (r *Record) used(u Use) *Record {
	next := *r
	if !slices.Contains(r.Recent, u) {
		next.Uses--
		next.Recent = append(slices.Clone(r.Recent[max(0, len(r.Recent)-maxRecent+1):]), u)
	}
	return &next
}
