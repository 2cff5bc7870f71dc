package enroll

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/roster"
)

// Keys of the records.
const (
	tokenPrefix  = "identity/token/"
	memberPrefix = "identity/member/"
	nodePrefix   = "identity/node/"
	bansKey      = "identity/bans"
	policyKey    = "identity/policy"
)

// roles are the names of the kinds of members that join.
var roles = map[identity.Kind]string{identity.Agent: "agent", identity.Server: "server", identity.Operator: "operator"}

// kindOf returns the kind with a role's name, and identity.None if there is none.
func kindOf(role string) identity.Kind {
	for kind, name := range roles {
		if name == role {
			return kind
		}
	}
	return identity.None
}

func memberKey(role, region, name string) string {
	return memberPrefix + role + "/" + region + "/" + name
}

// read reads a record into a message. The version is 0 if the record does not exist.
func read(ctx context.Context, s Store, key string, to proto.Message) (version uint64, err error) {
	value, version, err := s.Get(ctx, key)
	if err != nil || version == 0 {
		return 0, err
	}
	if err := proto.Unmarshal(value, to); err != nil {
		return 0, fmt.Errorf("stored record %s: %w", key, err)
	}
	return version, nil
}

// put returns the write of a message.
func put(key string, m proto.Message) (Put, error) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return Put{}, fmt.Errorf("record %s: %w", key, err)
	}
	return Put{key, value}, nil
}

// change writes messages by their keys, and an entry of the audit trail.
func change(ctx context.Context, s Store, checks []Check, puts map[string]proto.Message, e *audit.Entry) error {
	c, err := changeOf(checks, puts, e)
	if err != nil {
		return err
	}
	return s.Change(ctx, c)
}

// changeOf returns the change that writes messages by their keys, and an entry of the audit trail.
func changeOf(checks []Check, puts map[string]proto.Message, e *audit.Entry) (Change, error) {
	c := Change{Checks: slices.Clone(checks), Audit: e}
	for key, m := range puts {
		p, err := put(key, m)
		if err != nil {
			return Change{}, err
		}
		c.Puts = append(c.Puts, p)
	}
	return c, nil
}

// tokenOf returns what join reads of a stored token.
func tokenOf(r *nusav1.TokenRecord) *join.Record {
	t := r.GetToken()
	out := &join.Record{
		ID: t.GetId(), Kind: kindOf(t.GetRole()), Region: t.GetRegion(), Pool: t.GetPool(), Name: t.GetName(), Uses: int(t.GetUses()),
		Created: t.GetCreatedAt().AsTime(), Expires: t.GetExpiresAt().AsTime(), By: t.GetCreatedBy(), Revoked: t.GetRevoked(),
	}
	copy(out.Secret[:], r.GetSecret())
	for _, u := range r.GetRecent() {
		use := join.Use{Name: u.GetName()}
		copy(use.Key[:], u.GetKey())
		out.Recent = append(out.Recent, use)
	}
	return out
}

// recordOf returns the stored form of a token.
func recordOf(r *join.Record) *nusav1.TokenRecord {
	out := &nusav1.TokenRecord{Secret: r.Secret[:], Token: &nusav1.JoinToken{
		Id: r.ID, Role: roles[r.Kind], Region: r.Region, Pool: r.Pool, Name: r.Name, Uses: int32(r.Uses),
		CreatedAt: timestamppb.New(r.Created), ExpiresAt: timestamppb.New(r.Expires), CreatedBy: r.By, Revoked: r.Revoked,
	}}
	for _, u := range r.Recent {
		out.Recent = append(out.Recent, &nusav1.TokenUse{Name: u.Name, Key: u.Key[:]})
	}
	return out
}

// nodeOf returns what join reads of a registered node.
func nodeOf(n *nusav1.RegisteredNode) (*roster.Node, error) {
	out := &roster.Node{Name: n.GetName(), Pool: n.GetPool(), Labels: n.GetLabels(), Description: n.GetDescription(), Priority: int(n.GetPriority())}
	if n.GetAddress() != "" {
		var err error
		out.Address, err = netip.ParseAddr(n.GetAddress())
		if err != nil {
			return nil, fmt.Errorf("registered node %s: %w", n.GetName(), err)
		}
	}
	return out, nil
}

// bannedBy returns why a member is banned, or "".
func bannedBy(list *nusav1.BanList, id identity.ID) string {
	for _, b := range list.GetBans() {
		if b.GetRegion() != id.Region || b.GetRole() != roleRegion && (b.GetRole() != roles[id.Kind] || b.GetName() != id.Name) {
			continue
		}
		text := fmt.Sprintf("since %s", b.GetAt().AsTime().UTC().Format(time.RFC3339))
		if b.GetReason() != "" {
			text = b.GetReason() + ", " + text
		}
		if b.GetRole() == roleRegion {
			text = "its region: " + text
		}
		return text
	}
	return ""
}
