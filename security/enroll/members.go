package enroll

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/identity"
)

// BansKey is the key of the record with all bans of a tier, a nusav1.BanList.
const BansKey = bansKey

// Bounds of the bans of a tier.
const (
	maxBans   = 2000
	maxReason = 64 // bytes
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

// checkBan returns an error if a request names no agent of this region.
func (s *Server) checkBan(role, region, name, reason string) error {
	id := identity.ID{Federation: s.Source.ID().Federation, Kind: kindOf(role), Region: region, Name: name}
	switch {
	case id.Kind != identity.Agent:
		return status.Errorf(codes.InvalidArgument, "role %q: only agents can be banned", role)
	case region != s.Region:
		return status.Errorf(codes.InvalidArgument, "region %q: this is a server of region %s", region, s.Region)
	case len(reason) > maxReason:
		return status.Errorf(codes.InvalidArgument, "reason: %d bytes, at most %d", len(reason), maxReason)
	}
	if err := id.Check(); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

// Ban refuses an agent of this region until Unban.
func (s *Server) Ban(ctx context.Context, req *nusav1.BanRequest) (*nusav1.MemberBan, error) {
	store, err := s.records()
	if err != nil {
		return nil, err
	}
	if err := s.checkBan(req.GetRole(), req.GetRegion(), req.GetName(), req.GetReason()); err != nil {
		return nil, err
	}
	ban := &nusav1.MemberBan{Role: req.GetRole(), Region: req.GetRegion(), Name: req.GetName(), Reason: req.GetReason(), At: timestamppb.New(s.Now()), By: caller(ctx, req.GetBy())}
	entry := &audit.Entry{Verb: "ban", Kind: "node", Name: req.GetName(), Reason: req.GetReason()}
	err = s.changeBans(ctx, store, entry, func(list *nusav1.BanList) error {
		list.Bans = without(list.GetBans(), ban)
		if len(list.Bans) >= maxBans {
			return status.Errorf(codes.ResourceExhausted, "%d members are banned: end bans that are no longer necessary", len(list.Bans))
		}
		list.Bans = append(list.Bans, ban)
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.Log.Warn("a member is banned", "role", ban.GetRole(), "region", ban.GetRegion(), "name", ban.GetName(), "by", ban.GetBy())
	return ban, nil
}

// Unban ends a ban.
func (s *Server) Unban(ctx context.Context, req *nusav1.UnbanRequest) (*nusav1.UnbanResponse, error) {
	store, err := s.records()
	if err != nil {
		return nil, err
	}
	if err := s.checkBan(req.GetRole(), req.GetRegion(), req.GetName(), ""); err != nil {
		return nil, err
	}
	out := &nusav1.UnbanResponse{}
	entry := &audit.Entry{Verb: "ban", Kind: "node", Name: req.GetName(), Reason: "off"}
	err = s.changeBans(ctx, store, entry, func(list *nusav1.BanList) error {
		rest := without(list.GetBans(), &nusav1.MemberBan{Role: req.GetRole(), Region: req.GetRegion(), Name: req.GetName()})
		out.Removed = len(rest) < len(list.GetBans())
		list.Bans = rest
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.Log.Info("a ban ends", "role", req.GetRole(), "region", req.GetRegion(), "name", req.GetName(), "by", caller(ctx, ""))
	return out, nil
}

// without returns the bans of other members.
func without(bans []*nusav1.MemberBan, of *nusav1.MemberBan) []*nusav1.MemberBan {
	return slices.DeleteFunc(slices.Clone(bans), func(b *nusav1.MemberBan) bool {
		return b.GetRole() == of.GetRole() && b.GetRegion() == of.GetRegion() && b.GetName() == of.GetName()
	})
}

// changeBans writes the bans and the entry of the audit trail together.
func (s *Server) changeBans(ctx context.Context, store Store, entry *audit.Entry, f func(*nusav1.BanList) error) error {
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

// ListMembers returns who has joined in this region, and the bans.
func (s *Server) ListMembers(ctx context.Context, _ *nusav1.ListMembersRequest) (*nusav1.ListMembersResponse, error) {
	store, err := s.records()
	if err != nil {
		return nil, err
	}
	out := &nusav1.ListMembersResponse{}
	err = store.List(ctx, memberPrefix, func(_ string, value []byte, _ uint64) error {
		m := &nusav1.Member{}
		out.Members = append(out.Members, m)
		return proto.Unmarshal(value, m)
	})
	if err != nil {
		return nil, err
	}
	list := &nusav1.BanList{}
	_, err = read(ctx, store, bansKey, list)
	out.Bans = list.GetBans()
	return out, err
}
