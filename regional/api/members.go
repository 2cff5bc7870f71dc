package api

import (
	"context"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// members is the Members service.
type members struct {
	nusav1.UnimplementedMembersServer
	s *Server
}

// List returns the members and the bans.
func (m members) List(ctx context.Context, req *nusav1.ListMembersRequest) (*nusav1.ListMembersResponse, error) {
	return m.s.Enroll.ListMembers(ctx, req)
}

// Ban refuses a member.
func (m members) Ban(ctx context.Context, req *nusav1.BanRequest) (*nusav1.MemberBan, error) {
	return m.s.Enroll.Ban(ctx, req)
}

// Unban ends a ban.
func (m members) Unban(ctx context.Context, req *nusav1.UnbanRequest) (*nusav1.UnbanResponse, error) {
	return m.s.Enroll.Unban(ctx, req)
}
