package api

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// auth is the Auth service. It answers from the region's copy of who may do what.
type auth struct {
	nusav1.UnimplementedAuthServer
	s *Server
}

// errGlobalAuth is the error of a change.
var errGlobalAuth = status.Error(codes.FailedPrecondition, "roles, bindings and tokens are changed at the global tier: ask a global server")

// errLogin is the error of a login or logout.
var errLogin = status.Error(codes.FailedPrecondition, "users log in and out at the global tier: ask a global server")

// set returns who may do what. It fails if this server cannot read its copy.
func (a auth) set() (*rights.Set, error) {
	if set := a.s.Rights(); set != nil {
		return set, nil
	}
	return nil, status.Error(codes.Unavailable, "this server cannot read now who may do what")
}

// WhoAmI describes the caller.
func (a auth) WhoAmI(ctx context.Context, _ *nusav1.WhoAmIRequest) (*nusav1.WhoAmIResponse, error) {
	set, err := a.set()
	if err != nil {
		return nil, err
	}
	var age *time.Duration
	if _, silence, received := a.s.rightsAge(); received {
		age = &silence
	}
	return set.WhoAmI(ctx, age), nil
}

// CanI decides an action.
func (a auth) CanI(ctx context.Context, req *nusav1.CanIRequest) (*nusav1.CanIResponse, error) {
	set, err := a.set()
	if err != nil {
		return nil, err
	}
	return set.CanI(ctx, req)
}

// ListRoles returns the roles.
func (a auth) ListRoles(context.Context, *nusav1.ListRolesRequest) (*nusav1.ListRolesResponse, error) {
	set, err := a.set()
	if err != nil {
		return nil, err
	}
	return &nusav1.ListRolesResponse{Roles: set.Roles()}, nil
}

// ListBindings returns the bindings.
func (a auth) ListBindings(context.Context, *nusav1.ListBindingsRequest) (*nusav1.ListBindingsResponse, error) {
	set, err := a.set()
	if err != nil {
		return nil, err
	}
	return &nusav1.ListBindingsResponse{Bindings: set.Bindings()}, nil
}

// ListAccessTokens returns the tokens without their secrets.
func (a auth) ListAccessTokens(context.Context, *nusav1.ListAccessTokensRequest) (*nusav1.ListAccessTokensResponse, error) {
	set, err := a.set()
	if err != nil {
		return nil, err
	}
	return &nusav1.ListAccessTokensResponse{Tokens: set.Tokens()}, nil
}

func (auth) SetRole(context.Context, *nusav1.SetRoleRequest) (*nusav1.AuthRole, error) {
	return nil, errGlobalAuth
}

func (auth) RemoveRole(context.Context, *nusav1.RemoveRoleRequest) (*nusav1.RemoveRoleResponse, error) {
	return nil, errGlobalAuth
}

func (auth) SetBinding(context.Context, *nusav1.SetBindingRequest) (*nusav1.AuthBinding, error) {
	return nil, errGlobalAuth
}

func (auth) RemoveBinding(context.Context, *nusav1.RemoveBindingRequest) (*nusav1.RemoveBindingResponse, error) {
	return nil, errGlobalAuth
}

// ListProviders returns the providers whose users may log in at the global tier.
func (a auth) ListProviders(ctx context.Context, _ *nusav1.ListProvidersRequest) (*nusav1.ListProvidersResponse, error) {
	set, err := a.set()
	if err != nil {
		return nil, err
	}
	return set.ListProviders(ctx, trust.Encrypted(ctx)), nil
}

func (auth) SetProvider(context.Context, *nusav1.SetProviderRequest) (*nusav1.AuthProvider, error) {
	return nil, errGlobalAuth
}

func (auth) RemoveProvider(context.Context, *nusav1.RemoveProviderRequest) (*nusav1.RemoveProviderResponse, error) {
	return nil, errGlobalAuth
}

func (auth) Login(context.Context, *nusav1.LoginRequest) (*nusav1.LoginResponse, error) {
	return nil, errLogin
}

func (auth) Logout(context.Context, *nusav1.LogoutRequest) (*nusav1.LogoutResponse, error) {
	return nil, errLogin
}

func (auth) CreateAccessToken(context.Context, *nusav1.CreateAccessTokenRequest) (*nusav1.CreateAccessTokenResponse, error) {
	return nil, errGlobalAuth
}

func (auth) RevokeAccessToken(context.Context, *nusav1.RevokeAccessTokenRequest) (*nusav1.RevokeAccessTokenResponse, error) {
	return nil, errGlobalAuth
}
