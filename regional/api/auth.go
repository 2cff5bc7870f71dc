package api

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/recorder"
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

// CreateAccessToken makes a token of this region alone.
func (a auth) CreateAccessToken(ctx context.Context, req *nusav1.CreateAccessTokenRequest) (*nusav1.CreateAccessTokenResponse, error) {
	if !req.GetLocal() {
		return nil, status.Error(codes.FailedPrecondition, "access tokens are made at the global tier: ask a global server, or make one that holds only in this region (--local)")
	}
	set, err := a.set()
	if err != nil {
		return nil, err
	}
	if err := rights.MayGiveRoles(ctx, req.GetRoles()); err != nil {
		return nil, err
	}
	n := rights.NewToken{Request: req, By: recorder.Of(ctx).Who, Now: time.Now()}
	_, _ = rand.Read(n.Random[:]) // never fails
	out := &nusav1.CreateAccessTokenResponse{}
	err = a.changeLocal(ctx, func(local *nusav1.AuthSet) (next *nusav1.AuthSet, e audit.Entry, err error) {
		next, out.Token, out.Secret, err = rights.CreateLocalToken(set, local, n)
		return next, audit.Entry{Verb: "create", Kind: "token", Name: out.GetToken().GetAccessor(), Reason: "of this region alone"}, err
	})
	return out, err
}

// RevokeAccessToken makes a token of this region alone useless.
func (a auth) RevokeAccessToken(ctx context.Context, req *nusav1.RevokeAccessTokenRequest) (*nusav1.RevokeAccessTokenResponse, error) {
	return &nusav1.RevokeAccessTokenResponse{}, a.changeLocal(ctx, func(local *nusav1.AuthSet) (*nusav1.AuthSet, audit.Entry, error) {
		next, err := rights.RevokeLocalToken(local, req.GetAccessor())
		return next, audit.Entry{Verb: "revoke", Kind: "token", Name: req.GetAccessor(), Reason: "of this region alone"}, err
	})
}

// LocalTokens is the key of the document with the tokens of the region alone.
const LocalTokens = "auth-local"

// ReadLocalTokens returns the tokens in a document, or nil without a document.
func ReadLocalTokens(d *state.Document) (*nusav1.AuthSet, error) {
	if d == nil {
		return nil, nil
	}
	msg := &nusav1.AuthSet{}
	if err := proto.Unmarshal(d.Value, msg); err != nil {
		return nil, fmt.Errorf("stored tokens of this region alone: %w", err)
	}
	return msg, nil
}

// localTries bounds the attempts to change the tokens of the region while others change them.
const localTries = 5

// changeLocal changes the tokens of the region alone.
func (a auth) changeLocal(ctx context.Context, next func(local *nusav1.AuthSet) (*nusav1.AuthSet, audit.Entry, error)) error {
	var last error
	for range localTries {
		store, err := a.s.Documents()
		if err != nil {
			return err
		}
		d, _ := a.s.State.View().Document(LocalTokens)
		local, err := ReadLocalTokens(d)
		if err != nil {
			return err
		}
		changed, entry, err := next(local)
		if err != nil {
			return rights.StatusError(err)
		}
		raw, err := wire.Deterministic.Marshal(changed)
		if err != nil {
			return fmt.Errorf("encode the tokens of this region alone: %w", err)
		}
		check := enroll.Check{Key: LocalTokens}
		if d != nil {
			check.Version = d.Version
		}
		entry.Outcome = audit.Done
		last = store.Change(ctx, enroll.Change{Checks: []enroll.Check{check}, Puts: []enroll.Put{{Key: LocalTokens, Value: raw}}, Audit: &entry})
		if !errors.Is(last, enroll.ErrChanged) {
			return last
		}
	}
	return status.Errorf(codes.Aborted, "the tokens of this region change all the time: %v", last)
}

// namespaces is the Namespaces service. It answers from the region's copy of the limits.
type namespaces struct {
	nusav1.UnimplementedNamespacesServer
	a auth
}

// errGlobalNamespaces is the error of a change.
var errGlobalNamespaces = status.Error(codes.FailedPrecondition, "namespaces are changed at the global tier: ask a global server")

// Get returns a namespace.
func (n namespaces) Get(_ context.Context, req *nusav1.GetNamespaceRequest) (*nusav1.Namespace, error) {
	set, err := n.a.set()
	if err != nil {
		return nil, err
	}
	found, err := set.Namespace(req.GetName())
	return found, rights.StatusError(err)
}

// List returns the namespaces that the caller may read.
func (n namespaces) List(ctx context.Context, _ *nusav1.ListNamespacesRequest) (*nusav1.ListNamespacesResponse, error) {
	set, err := n.a.set()
	if err != nil {
		return nil, err
	}
	return &nusav1.ListNamespacesResponse{Namespaces: set.ListNamespaces(rights.Of(ctx))}, nil
}

func (namespaces) Set(context.Context, *nusav1.SetNamespaceRequest) (*nusav1.Namespace, error) {
	return nil, errGlobalNamespaces
}

func (namespaces) Remove(context.Context, *nusav1.RemoveNamespaceRequest) (*nusav1.RemoveNamespaceResponse, error) {
	return nil, errGlobalNamespaces
}
