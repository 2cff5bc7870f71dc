package join

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/internal/glob"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/roster"
)

// place refuses names that the server issues no certificates for.
func (s *Snapshot) place(id identity.ID) *Refusal {
	err := id.Check()
	switch {
	case err != nil:
		return refuse(BadName, "the request names nothing that can join: %v", err)
	case !joins(id.Kind):
		return refuse(BadName, "%s cannot join, only agents, regional servers and operators can: use 'nusa ca issue'", id.Describe())
	case id.Federation != s.Federation:
		return refuse(OtherRegion, "%s is of federation %s, and this server is of federation %s: use the addresses of that federation", id.Describe(), id.Federation, s.Federation)
	case s.Region != "" && id.Kind == identity.Operator:
		return refuse(OtherRegion, "%s asks a server of region %s, and operators join at a global server: use its address", id.Describe(), s.Region)
	case s.Region == "" && id.Kind == identity.Agent:
		return refuse(OtherRegion, "%s asks a global server, and agents join in their region: use the addresses of the servers of region %s", id.Describe(), id.Region)
	case s.Region != "" && id.Region != s.Region:
		return refuse(OtherRegion, "%s asks a server of region %s: use the addresses of region %s", id.Describe(), s.Region, id.Region)
	}
	return nil
}

// joins reports whether members of a kind join with a token.
func joins(k identity.Kind) bool { return k.Regional() || k == identity.Operator }

// checkToken refuses a token that is not for this request. A token that does not exist and a
// wrong secret have the same text, so that a sender cannot find out which tokens exist.
func checkToken(t *Record, r *Request, now time.Time) *Refusal {
	if t == nil {
		t = &Record{}
	}
	again := slices.Contains(t.Recent, Use{Name: r.ID.Name, Key: r.Key})
	switch {
	case !t.Is(r.Token):
		return refuse(UnknownToken, "join token %s is not known here: copy the whole token, or make a new one with 'nusa token create'", r.Token.ID())
	case t.Revoked:
		return refuse(Revoked, "join token %s is revoked: use another", t.ID)
	case now.Add(clockDifference).Before(t.Created):
		return refuse(Clock, "join token %s was made at %s, and now is %s: check the clocks of the servers", t.ID, stamp(t.Created), stamp(now))
	case !now.Before(t.Expires):
		return refuse(Expired, "join token %s ended at %s: make a new one with 'nusa token create'", t.ID, stamp(t.Expires))
	case t.Kind != r.ID.Kind:
		return refuse(OtherRole, "join token %s has the role %s, and %s needs another: use a token with the right --role", t.ID, t.Kind, r.ID.Describe())
	case t.Region != r.ID.Region && r.ID.Kind != identity.Operator:
		return refuse(OtherRegion, "join token %s is for region %s, not for %s: use a token of that region", t.ID, t.Region, r.ID.Describe())
	case !glob.Match(t.Name, r.ID.Name):
		return refuse(OtherName, "join token %s is for names like %q, not for %s: use a token with another --name", t.ID, t.Name, r.ID.Describe())
	case t.Uses < 1 && !again:
		return refuse(UsedUp, "join token %s is used up: make a new one with 'nusa token create'", t.ID)
	}
	return nil
}

// poolOf returns the pool of a new node. The request, the registration and the token agree on
// the pool, as far as they name one.
func poolOf(t *Record, n *roster.Node, r *Request) (string, *Refusal) {
	var ofToken, ofNode string
	if t != nil && !r.Token.IsZero() {
		ofToken = t.Pool
	}
	if n != nil {
		ofNode = n.Pool
	}
	pool := cmp.Or(r.Pool, ofNode, ofToken)
	switch {
	case pool != "" && (r.ID.Kind != identity.Agent || !identity.ValidRegion(pool)):
		return "", refuse(OtherPool, "%s asks for pool %q: only agents have a pool, and its name has 1 to 63 of a-z, 0-9 and -", r.ID.Describe(), pool)
	case ofToken != "" && ofToken != pool:
		return "", refuse(OtherPool, "join token %s is for pool %s, not for pool %s: use a token with the right --pool", t.ID, ofToken, pool)
	case ofNode != "" && ofNode != pool:
		return "", refuse(OtherPool, "%s is registered for pool %s, not for pool %s: correct the registration, or the pool of the agent", r.ID.Describe(), ofNode, pool)
	}
	return pool, nil
}

// member refuses a banned or removed member, and a member that takes a name that another key has.
// The owner of a name may come back until its certificate can no longer be renewed.
func (s *Snapshot) member(id identity.ID, key Hash, now time.Time) *Refusal {
	unban, remove := "nusa node unban "+id.Name, "nusa node remove "+id.Name
	if id.Kind == identity.Server {
		unban, remove = "nusa region unban "+id.Region, fmt.Sprintf("nusa region server remove %s/%s", id.Region, id.Name)
	}
	switch m := s.Member; {
	case s.Banned != "":
		return refuse(Banned, "%s is banned (%s): '%s' lifts the ban", id.Describe(), s.Banned, unban)
	case !s.Removed.IsZero():
		return refuse(Removed, "%s was removed at %s: join again with a new token", id.Describe(), stamp(s.Removed))
	case m != nil && m.Key != key && !m.Over(s.Grace, now) && id.Kind == identity.Operator:
		return refuse(NameTaken, "another machine has the name of %s, and may use it until %s: choose another name", id.Describe(), stamp(m.NotAfter.Add(s.Grace)))
	case m != nil && m.Key != key && !m.Over(s.Grace, now):
		return refuse(NameTaken, "another machine has the name of %s, and may use it until %s: choose another name, or if that machine is gone run '%s'", id.Describe(), stamp(m.NotAfter.Add(s.Grace)), remove)
	}
	return nil
}

// admit asks the operator's condition. A condition without a value refuses.
func (s *Snapshot) admit(r *Request) *Refusal {
	if s.Admits == nil {
		return refuse(NotAdmitted, "%s is refused: the condition %q of the join policy is not compiled: set the policy again", r.ID.Describe(), s.Condition)
	}
	ok, err := s.Admits(r)
	switch {
	case err != nil:
		return refuse(NotAdmitted, "%s is refused: the condition %q of the join policy fails: %v", r.ID.Describe(), s.Condition, err)
	case !ok:
		return refuse(NotAdmitted, "%s is refused: the condition %q of the join policy does not hold", r.ID.Describe(), s.Condition)
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
