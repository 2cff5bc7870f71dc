package api

import (
	"context"
	"crypto/rand"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// authAPI is the public Auth service.
type authAPI struct {
	nusav1.UnimplementedAuthServer
	s *Services
}

// set returns who may do what.
func (a *authAPI) set() (*rights.Set, error) {
	term, err := a.s.term()
	if err != nil {
		return nil, err
	}
	if set := term.State.Auth.Load(); set != nil {
		return set, nil
	}
	return nil, status.Error(codes.Unavailable, "this server cannot read now who may do what")
}

// WhoAmI implements nusav1.AuthServer.
func (a *authAPI) WhoAmI(ctx context.Context, _ *nusav1.WhoAmIRequest) (*nusav1.WhoAmIResponse, error) {
	set, err := a.set()
	if err != nil {
		return nil, err
	}
	return set.WhoAmI(ctx, nil), nil
}

// CanI implements nusav1.AuthServer.
func (a *authAPI) CanI(ctx context.Context, req *nusav1.CanIRequest) (*nusav1.CanIResponse, error) {
	set, err := a.set()
	if err != nil {
		return nil, err
	}
	return set.CanI(ctx, req)
}

// ListRoles implements nusav1.AuthServer.
func (a *authAPI) ListRoles(context.Context, *nusav1.ListRolesRequest) (*nusav1.ListRolesResponse, error) {
	set, err := a.set()
	if err != nil {
		return nil, err
	}
	return &nusav1.ListRolesResponse{Roles: set.Roles()}, nil
}

// ListBindings implements nusav1.AuthServer.
func (a *authAPI) ListBindings(context.Context, *nusav1.ListBindingsRequest) (*nusav1.ListBindingsResponse, error) {
	set, err := a.set()
	if err != nil {
		return nil, err
	}
	return &nusav1.ListBindingsResponse{Bindings: set.Bindings()}, nil
}

// ListAccessTokens implements nusav1.AuthServer.
func (a *authAPI) ListAccessTokens(context.Context, *nusav1.ListAccessTokensRequest) (*nusav1.ListAccessTokensResponse, error) {
	set, err := a.set()
	if err != nil {
		return nil, err
	}
	return &nusav1.ListAccessTokensResponse{Tokens: set.Tokens()}, nil
}

// SetRole implements nusav1.AuthServer.
func (a *authAPI) SetRole(ctx context.Context, req *nusav1.SetRoleRequest) (*nusav1.AuthRole, error) {
	return req.GetRole(), a.change(ctx, "set", "role", req.GetRole().GetName(), func(s *rights.Set) (*rights.Set, error) {
		return s.SetRole(req.GetRole(), rights.Change{By: author(ctx), Force: req.GetForce()})
	})
}

// RemoveRole implements nusav1.AuthServer.
func (a *authAPI) RemoveRole(ctx context.Context, req *nusav1.RemoveRoleRequest) (*nusav1.RemoveRoleResponse, error) {
	return &nusav1.RemoveRoleResponse{}, a.change(ctx, "remove", "role", req.GetName(), func(s *rights.Set) (*rights.Set, error) {
		return s.RemoveRole(req.GetName())
	})
}

// SetBinding implements nusav1.AuthServer.
func (a *authAPI) SetBinding(ctx context.Context, req *nusav1.SetBindingRequest) (*nusav1.AuthBinding, error) {
	return req.GetBinding(), a.change(ctx, "set", "binding", req.GetBinding().GetName(), func(s *rights.Set) (*rights.Set, error) {
		return s.SetBinding(req.GetBinding(), rights.Change{By: author(ctx), Force: req.GetForce()})
	})
}

// RemoveBinding implements nusav1.AuthServer.
func (a *authAPI) RemoveBinding(ctx context.Context, req *nusav1.RemoveBindingRequest) (*nusav1.RemoveBindingResponse, error) {
	out := &nusav1.RemoveBindingResponse{}
	return out, a.change(ctx, "remove", "binding", req.GetName(), func(s *rights.Set) (*rights.Set, error) {
		next, err := s.RemoveBinding(req.GetName(), rights.Change{By: author(ctx), Force: req.GetForce()})
		out.Unbound = err == nil && next.Unbound()
		return next, err
	})
}

// CreateAccessToken implements nusav1.AuthServer.
func (a *authAPI) CreateAccessToken(ctx context.Context, req *nusav1.CreateAccessTokenRequest) (*nusav1.CreateAccessTokenResponse, error) {
	if req.GetLocal() {
		return nil, status.Error(codes.FailedPrecondition, "a token of one region is made at a server of that region: give its address with --addr")
	}
	if err := rights.MayGiveRoles(ctx, req.GetRoles()); err != nil {
		return nil, err
	}
	n := rights.NewToken{Request: req, By: caller(ctx), Now: time.Now()}
	_, _ = rand.Read(n.Random[:]) // never fails
	out := &nusav1.CreateAccessTokenResponse{}
	e := audit.Entry{Verb: "create", Kind: "token", Reason: req.GetDescription()}
	return out, a.changeBy(ctx, callerOr(ctx), &e, func(s *rights.Set) (next *rights.Set, err error) {
		next, out.Token, out.Secret, err = s.CreateToken(n)
		e.Name = out.GetToken().GetAccessor()
		return next, err
	})
}

// RevokeAccessToken implements nusav1.AuthServer.
func (a *authAPI) RevokeAccessToken(ctx context.Context, req *nusav1.RevokeAccessTokenRequest) (*nusav1.RevokeAccessTokenResponse, error) {
	return &nusav1.RevokeAccessTokenResponse{}, a.change(ctx, "revoke", "token", req.GetAccessor(), func(s *rights.Set) (*rights.Set, error) {
		return s.RevokeToken(req.GetAccessor())
	})
}

// caller returns the name of the caller's principal. It is empty for another global server, and if
// the server has no identity.
func caller(ctx context.Context) string {
	if call := rights.Of(ctx); call != nil {
		return call.Who.Name
	}
	return ""
}

// author returns the principal that must keep the right to change roles. Nobody takes that right from
// the administrator of the machine.
func author(ctx context.Context) string {
	if call := rights.Of(ctx); call != nil && call.Who.Credential == rights.Socket {
		return ""
	}
	return caller(ctx)
}

// change stores a change of who may do what.
func (a *authAPI) change(ctx context.Context, verb, kind, name string, next func(*rights.Set) (*rights.Set, error)) error {
	return a.changeBy(ctx, callerOr(ctx), &audit.Entry{Verb: verb, Kind: kind, Name: name}, next)
}

// callerOr returns the name of the caller for events.
func callerOr(ctx context.Context) string {
	if name := caller(ctx); name != "" {
		return name
	}
	return "an operator"
}
