package api

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/authz"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/oidc"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/recorder"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// ListProviders implements nusav1.AuthServer.
func (a *authAPI) ListProviders(ctx context.Context, _ *nusav1.ListProvidersRequest) (*nusav1.ListProvidersResponse, error) {
	set, err := a.set()
	if err != nil {
		return nil, err
	}
	return set.ListProviders(ctx, trust.Encrypted(ctx)), nil
}

// SetProvider implements nusav1.AuthServer.
func (a *authAPI) SetProvider(ctx context.Context, req *nusav1.SetProviderRequest) (*nusav1.AuthProvider, error) {
	if err := oidc.Check(req.GetProvider()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return req.GetProvider(), a.change(ctx, "set", "provider", req.GetProvider().GetName(), func(s *rights.Set) (*rights.Set, error) {
		return s.SetProvider(req.GetProvider())
	})
}

// RemoveProvider implements nusav1.AuthServer.
func (a *authAPI) RemoveProvider(ctx context.Context, req *nusav1.RemoveProviderRequest) (*nusav1.RemoveProviderResponse, error) {
	return &nusav1.RemoveProviderResponse{}, a.change(ctx, "remove", "provider", req.GetName(), func(s *rights.Set) (*rights.Set, error) {
		return s.RemoveProvider(req.GetName())
	})
}

// Login implements nusav1.AuthServer.
func (a *authAPI) Login(ctx context.Context, req *nusav1.LoginRequest) (*nusav1.LoginResponse, error) {
	if !trust.Encrypted(ctx) {
		return nil, status.Error(codes.FailedPrecondition, "this server has no identity, so every caller may do everything: nobody needs to log in")
	}
	return enroll.Bounded(ctx, a.s.Enroll, "login", func() (*nusav1.LoginResponse, error) {
		out, err := a.login(ctx, req)
		switch status.Code(err) {
		case codes.PermissionDenied, codes.Unauthenticated:
			a.s.Denied(audit.Entry{Verb: "login", Kind: "user", Outcome: audit.Denied, Reason: status.Convert(err).Message()}.By(recorder.Of(ctx)))
		}
		return out, err
	})
}

// login makes an access token for the user of an ID token.
func (a *authAPI) login(ctx context.Context, req *nusav1.LoginRequest) (*nusav1.LoginResponse, error) {
	set, err := a.set()
	if err != nil {
		return nil, err
	}
	provider := set.Provider(req.GetProvider())
	if provider == nil {
		return nil, status.Errorf(codes.NotFound, "there is no provider %q: `nusa auth provider list` shows them", req.GetProvider())
	}
	user, err := a.s.Users.Verify(ctx, provider, req.GetIdToken(), req.GetNonce())
	if err != nil {
		return nil, loginError(err)
	}
	who := rights.User(user.Subject, provider.GetName())
	if len(user.Roles) == 0 && len(set.RolesOf(authz.Principal{Name: who})) == 0 {
		return nil, status.Errorf(codes.PermissionDenied, "%s has no role: no rule of provider %s matches the claims of the user (%s), and no binding names the user",
			who, provider.GetName(), strings.Join(user.Claims, ", "))
	}
	n := rights.NewLogin{
		User: who, Roles: user.Roles, IDToken: user.Hash, Until: user.Until, Life: oidc.Life(provider, req.GetTtl().AsDuration()), Now: time.Now(),
	}
	_, _ = rand.Read(n.Random[:]) // never fails
	out := &nusav1.LoginResponse{Roots: pki.EncodeCertificates(a.s.Enroll.Source.Roots()...)}
	return out, a.changeBy(ctx, who, &audit.Entry{Verb: "login", Kind: "user", Name: who}, func(s *rights.Set) (next *rights.Set, err error) {
		if !proto.Equal(s.Provider(provider.GetName()), provider) {
			return nil, status.Errorf(codes.Aborted, "provider %s has changed meanwhile: log in again", provider.GetName())
		}
		next, out.Token, out.Secret, err = s.Login(n)
		return next, err
	})
}

// loginError returns the gRPC status of an error of package oidc.
func loginError(err error) error {
	code := codes.Internal
	switch {
	case errors.Is(err, oidc.ErrRefused):
		code = codes.Unauthenticated
	case errors.Is(err, oidc.ErrUnreached):
		code = codes.Unavailable
	case errors.Is(err, oidc.ErrBusy):
		code = codes.ResourceExhausted
	}
	return status.Error(code, err.Error())
}

// Logout implements nusav1.AuthServer.
func (a *authAPI) Logout(ctx context.Context, _ *nusav1.LogoutRequest) (*nusav1.LogoutResponse, error) {
	call := rights.Of(ctx)
	if call == nil || call.Token.GetUser() == "" {
		return &nusav1.LogoutResponse{}, nil
	}
	return &nusav1.LogoutResponse{}, a.change(ctx, "logout", "user", call.Who.Name, func(s *rights.Set) (*rights.Set, error) {
		return s.RevokeToken(call.Token.GetAccessor())
	})
}

// changeBy stores a change of who may do what. who is the caller if that is not the principal of the
// call. next may complete the entry of the audit trail.
func (a *authAPI) changeBy(ctx context.Context, who string, e *audit.Entry, next func(*rights.Set) (*rights.Set, error)) error {
	term, err := a.s.term()
	if err != nil {
		return err
	}
	_, err = term.Commit.Do(ctx, func(t *state.Tx) error {
		set, err := state.AuthOf(t)
		if err != nil {
			return err
		}
		before := set
		set, err = next(set)
		if err != nil {
			return rights.StatusError(err)
		}
		e.Before, e.After = state.AuditHash(before.Object(e.Kind, e.Name)), state.AuditHash(set.Object(e.Kind, e.Name))
		if err := t.Audit(*e); err != nil {
			return err
		}
		t.Event("auth.changed", e.Name, "%s %s, by %s", e.Verb, e.Kind, who)
		return state.PutAuth(t, set)
	})
	return rpcError(err)
}
