package api

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/expr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// members is the Members service.
type members struct {
	nusav1.UnimplementedMembersServer
	s *Server
}

// List returns the members and the bans.
func (m members) List(ctx context.Context, req *nusav1.ListMembersRequest) (*nusav1.ListMembersResponse, error) {
	return m.s.Enroll.Members().List(ctx, req)
}

// Ban refuses a member.
func (m members) Ban(ctx context.Context, req *nusav1.BanRequest) (*nusav1.MemberBan, error) {
	return m.s.Enroll.Members().Ban(ctx, req)
}

// Unban ends a ban.
func (m members) Unban(ctx context.Context, req *nusav1.UnbanRequest) (*nusav1.UnbanResponse, error) {
	return m.s.Enroll.Members().Unban(ctx, req)
}

// Register adds nodes that may join later.
func (m members) Register(ctx context.Context, req *nusav1.RegisterRequest) (*nusav1.RegisterResponse, error) {
	return m.s.Enroll.Members().Register(ctx, req)
}

// Unregister removes registrations.
func (m members) Unregister(ctx context.Context, req *nusav1.UnregisterRequest) (*nusav1.RegisterResponse, error) {
	return m.s.Enroll.Members().Unregister(ctx, req)
}

// GetPolicy returns what an agent needs to join.
func (m members) GetPolicy(ctx context.Context, req *nusav1.GetJoinPolicyRequest) (*nusav1.JoinPolicy, error) {
	return m.s.Enroll.Members().GetPolicy(ctx, req)
}

// SetPolicy changes what an agent needs to join.
func (m members) SetPolicy(ctx context.Context, req *nusav1.SetJoinPolicyRequest) (*nusav1.JoinPolicy, error) {
	if req.GetRequire() != "" {
		if _, err := expr.Compile(expr.Bool, req.GetRequire()); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "require: %v", err)
		}
	}
	return m.s.Enroll.Members().SetPolicy(ctx, req)
}

// RemoveServer refuses the key of a server of this region that the global tier removes.
func (m members) RemoveServer(ctx context.Context, req *nusav1.RemoveServerRequest) (*nusav1.RemoveServerResponse, error) {
	for _, s := range m.s.Servers() {
		if s.GetId() == req.GetName() && s.GetHealthy() {
			return nil, status.Errorf(codes.FailedPrecondition, "server %s of region %s lives: stop it first, or ban it", req.GetName(), m.s.region())
		}
	}
	return &nusav1.RemoveServerResponse{}, m.s.Enroll.Members().RefuseServer(ctx, req)
}

// BanRegion refuses a server of this region.
func (m members) BanRegion(ctx context.Context, req *nusav1.BanRegionRequest) (*nusav1.BanRegionResponse, error) {
	if req.GetName() == "" {
		return nil, status.Error(codes.FailedPrecondition, "a region cannot ban itself: ask a global server")
	}
	ban, err := m.s.Enroll.Members().BanRegion(ctx, req)
	if err != nil {
		return nil, err
	}
	return &nusav1.BanRegionResponse{Ban: ban}, nil
}

// UnbanRegion ends the ban of a server of this region.
func (m members) UnbanRegion(ctx context.Context, req *nusav1.UnbanRegionRequest) (*nusav1.UnbanResponse, error) {
	if req.GetName() == "" {
		return nil, status.Error(codes.FailedPrecondition, "a region cannot ban itself: ask a global server")
	}
	return m.s.Enroll.Members().UnbanRegion(ctx, req)
}
