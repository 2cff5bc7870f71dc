package enroll

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/identity"
)

// Members are the services of a Server about who may be a member.
type Members struct{ *Server }

// Members returns the services about who may be a member.
func (s *Server) Members() Members { return Members{s} }

// BansKey is the key of the record with all bans of a tier, a nusav1.BanList.
const BansKey = bansKey

// Bounds of the bans of a tier. The list is one record.
const (
	maxBans      = 2000
	maxBansBytes = 200 << 10
	maxReason    = 64 // bytes
)

// Bans are the bans of a tier, for the connections of a server.
type Bans struct{ list *nusav1.BanList }

// ReadBans reads the record BansKey. Without a record there are no bans.
func ReadBans(value []byte) (Bans, error) {
	list := &nusav1.BanList{}
	err := proto.Unmarshal(value, list)
	return Bans{list}, err
}

// Refuses returns why a member is refused, or nil.
func (b Bans) Refuses(id identity.ID) error {
	if why := bannedBy(b.list, id); why != "" {
		return status.Errorf(codes.PermissionDenied, "%s is banned (%s)", id.Describe(), why)
	}
	return nil
}

// AgentKey is the key of the record about an agent, a nusav1.Member.
func AgentKey(region, name string) string { return memberKey(roles[identity.Agent], region, name) }

// PoolOf returns the pool that the record of an agent fixes, or "".
func PoolOf(value []byte) (string, error) {
	m := &nusav1.Member{}
	err := proto.Unmarshal(value, m)
	return m.GetPool(), err
}

// roleRegion is the role of a ban of all servers of a region.
const roleRegion = "region"

// checkBan returns an error if this tier cannot ban a member: a region bans its agents and servers, and
// the global tier bans regional servers and regions.
func (s Members) checkBan(b *nusav1.MemberBan) error {
	id := identity.ID{Federation: s.Source.ID().Federation, Kind: kindOf(b.GetRole()), Region: b.GetRegion(), Name: b.GetName()}
	if b.GetRole() == roleRegion {
		id.Kind = identity.Region
	}
	switch {
	case id.Kind == identity.None || id.Kind == identity.Agent && s.Region == "" || id.Kind == identity.Region && s.Region != "":
		return status.Errorf(codes.InvalidArgument, "role %q: a region bans agents and servers, and the global tier bans regions and servers", b.GetRole())
	case s.Region != "" && id.Region != s.Region:
		return status.Errorf(codes.InvalidArgument, "region %q: this is a server of region %s", id.Region, s.Region)
	case len(b.GetReason()) > maxReason:
		return status.Errorf(codes.InvalidArgument, "reason: %d bytes, at most %d", len(b.GetReason()), maxReason)
	}
	if err := id.Check(); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

// Ban refuses an agent of this region until Unban.
func (s Members) Ban(ctx context.Context, req *nusav1.BanRequest) (*nusav1.MemberBan, error) {
	if req.GetRole() != roles[identity.Agent] {
		return nil, status.Errorf(codes.InvalidArgument, "role %q: only agents are nodes", req.GetRole())
	}
	return s.ban(ctx, &nusav1.MemberBan{Role: req.GetRole(), Region: req.GetRegion(), Name: req.GetName(), Reason: req.GetReason(), By: caller(ctx, req.GetBy())})
}

// BanRegion refuses the servers of a region, or one of them, until UnbanRegion.
func (s Members) BanRegion(ctx context.Context, req *nusav1.BanRegionRequest) (*nusav1.MemberBan, error) {
	return s.ban(ctx, &nusav1.MemberBan{Role: banRole(req.GetName()), Region: req.GetRegion(), Name: req.GetName(), Reason: req.GetReason(), By: caller(ctx, req.GetBy())})
}

// banRole returns the role of a ban of a region, or of one server of the region.
func banRole(server string) string {
	if server == "" {
		return roleRegion
	}
	return roles[identity.Server]
}

func (s Members) ban(ctx context.Context, ban *nusav1.MemberBan) (*nusav1.MemberBan, error) {
	store, err := s.records()
	if err != nil {
		return nil, err
	}
	if err := s.checkBan(ban); err != nil {
		return nil, err
	}
	ban.At = timestamppb.New(s.Now())
	err = s.changeBans(ctx, store, BanEntry(ban), func(list *nusav1.BanList) error {
		list.Bans = append(without(list.GetBans(), ban), ban)
		if n := len(list.GetBans()); n > maxBans || proto.Size(list) > maxBansBytes {
			return status.Errorf(codes.ResourceExhausted, "%d members are banned: end bans that are no longer necessary", n-1)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.Log.Warn("a member is banned", "role", ban.GetRole(), "region", ban.GetRegion(), "name", ban.GetName(), "by", ban.GetBy())
	return ban, nil
}

// Unban ends a ban of an agent.
func (s Members) Unban(ctx context.Context, req *nusav1.UnbanRequest) (*nusav1.UnbanResponse, error) {
	if req.GetRole() != roles[identity.Agent] {
		return nil, status.Errorf(codes.InvalidArgument, "role %q: only agents are nodes", req.GetRole())
	}
	return s.unban(ctx, &nusav1.MemberBan{Role: req.GetRole(), Region: req.GetRegion(), Name: req.GetName()})
}

// UnbanRegion ends a ban of a region, or of one server of the region.
func (s Members) UnbanRegion(ctx context.Context, req *nusav1.UnbanRegionRequest) (*nusav1.UnbanResponse, error) {
	return s.unban(ctx, &nusav1.MemberBan{Role: banRole(req.GetName()), Region: req.GetRegion(), Name: req.GetName()})
}

func (s Members) unban(ctx context.Context, ban *nusav1.MemberBan) (*nusav1.UnbanResponse, error) {
	store, err := s.records()
	if err != nil {
		return nil, err
	}
	if err := s.checkBan(ban); err != nil {
		return nil, err
	}
	out := &nusav1.UnbanResponse{}
	entry := BanEntry(ban)
	entry.Reason = "off"
	err = s.changeBans(ctx, store, entry, func(list *nusav1.BanList) error {
		rest := without(list.GetBans(), ban)
		out.Removed = len(rest) < len(list.GetBans())
		list.Bans = rest
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.Log.Info("a ban ends", "role", ban.GetRole(), "region", ban.GetRegion(), "name", ban.GetName(), "by", caller(ctx, ""))
	return out, nil
}

// BanEntry returns the entry of the audit trail for a ban.
func BanEntry(b *nusav1.MemberBan) *audit.Entry {
	e := &audit.Entry{Verb: "ban", Kind: "node", Name: b.GetName(), Region: b.GetRegion(), Reason: b.GetReason()}
	switch b.GetRole() {
	case roleRegion:
		e.Kind, e.Name = "region", b.GetRegion()
	case roles[identity.Server]:
		e.Kind, e.Name = "region", b.GetRegion()+"/"+b.GetName()
	}
	return e
}

// without returns the bans of other members.
func without(bans []*nusav1.MemberBan, of *nusav1.MemberBan) []*nusav1.MemberBan {
	return slices.DeleteFunc(slices.Clone(bans), func(b *nusav1.MemberBan) bool {
		return b.GetRole() == of.GetRole() && b.GetRegion() == of.GetRegion() && b.GetName() == of.GetName()
	})
}

// changeBans writes the bans and the entry of the audit trail together.
func (s Members) changeBans(ctx context.Context, store Store, entry *audit.Entry, f func(*nusav1.BanList) error) error {
	return retry(func() error {
		list := &nusav1.BanList{}
		version, err := read(ctx, store, bansKey, list)
		if err != nil {
			return err
		}
		if err := f(list); err != nil {
			return err
		}
		p, err := put(bansKey, list)
		if err != nil {
			return err
		}
		return store.Change(ctx, Change{Checks: []Check{{bansKey, version}}, Puts: []Put{p}, Audit: entry})
	})
}

// records returns the store of a server that has an identity.
func (s *Server) records() (Store, error) {
	if s == nil || s.Source == nil {
		return nil, status.Error(codes.FailedPrecondition, "this server has no identity, so it knows no members")
	}
	return s.Store()
}

// List returns who has joined at this tier, who is registered, who was removed, and the bans.
func (s Members) List(ctx context.Context, req *nusav1.ListMembersRequest) (*nusav1.ListMembersResponse, error) {
	store, err := s.records()
	if err != nil {
		return nil, err
	}
	out := &nusav1.ListMembersResponse{}
	other := func(region string) bool { return req.GetRegion() != "" && req.GetRegion() != region }
	err = each(ctx, store, memberPrefix, func(m *nusav1.Member) {
		if !other(m.GetRegion()) {
			out.Members = append(out.Members, m)
		}
	})
	if err == nil {
		err = each(ctx, store, nodePrefix, func(n *nusav1.RegisteredNode) {
			n.Region = s.Region
			out.Nodes = append(out.Nodes, n)
		})
	}
	if err == nil {
		err = each(ctx, store, RemovedPrefix, func(m *nusav1.RemovedMember) {
			if !other(m.GetRegion()) {
				out.Removed = append(out.Removed, m)
			}
		})
	}
	if err != nil {
		return nil, err
	}
	bans := &nusav1.BanList{}
	_, err = read(ctx, store, bansKey, bans)
	out.Bans = slices.DeleteFunc(bans.GetBans(), func(b *nusav1.MemberBan) bool { return other(b.GetRegion()) })
	return out, err
}

// each calls visit for the records of a prefix.
func each[T any, M interface {
	*T
	proto.Message
}](ctx context.Context, store Store, prefix string, visit func(M)) error {
	return store.List(ctx, prefix, func(key string, value []byte, _ uint64) error {
		m := M(new(T))
		if err := proto.Unmarshal(value, m); err != nil {
			return fmt.Errorf("stored record %s: %w", key, err)
		}
		visit(m)
		return nil
	})
}
