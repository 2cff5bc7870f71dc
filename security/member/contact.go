package member

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/trust"
)

const (
	// callLimit bounds one attempt at one server.
	callLimit = 15 * time.Second
	// tryPause is the pause after all servers have failed. warnPause is the least time between
	// two lines of the log about that.
	tryPause, warnPause = time.Second, 30 * time.Second
)

// servers are the servers that a member asks for a certificate.
type servers struct {
	addrs []string
	net   network.Net
	// accept accepts a root of the federation. rules say which servers may answer.
	accept func(root *x509.Certificate) bool
	rules  identity.Rules
	log    *slog.Logger
}

// call is a call of service Identity at one server. federation is that of the server.
type call func(ctx context.Context, client nusav1.IdentityClient, federation string) (*nusav1.JoinResponse, error)

// first calls one server after the other until one of them answers. It returns the answer, or
// the error of a server that refuses for good.
func (s *servers) first(ctx context.Context, do call) (*nusav1.JoinResponse, error) {
	var errs []error
	if len(s.addrs) == 0 {
		errs = append(errs, errors.New("no server is known"))
	}
	for _, addr := range s.addrs {
		out, err := s.one(ctx, addr, do)
		switch {
		case err == nil:
			return out, nil
		case final(err):
			return nil, fmt.Errorf("%s: %s", addr, status.Convert(err).Message())
		}
		errs = append(errs, fmt.Errorf("%s: %s", addr, status.Convert(err).Message()))
	}
	return nil, &unreachedError{errors.Join(errs...)}
}

// unreachedError means that no server has answered for good, so that another attempt may help.
type unreachedError struct{ error }

// Unwrap implements the interface of package errors.
func (u *unreachedError) Unwrap() error { return u.error }

// unreached reports whether no server has answered for good.
func unreached(err error) bool {
	var u *unreachedError
	return errors.As(err, &u)
}

// final reports whether another attempt would have the same result.
func final(err error) bool {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.InvalidArgument:
		return true
	}
	return false
}

// until repeats first until a server answers for good, or ctx ends.
func (s *servers) until(ctx context.Context, what string, do call) (*nusav1.JoinResponse, error) {
	var warned time.Time
	for {
		out, err := s.first(ctx, do)
		if err == nil || !unreached(err) {
			return out, err
		}
		if now := time.Now(); ctx.Err() == nil && now.Sub(warned) >= warnPause {
			warned = now
			s.log.Warn("no server answers: this program asks again", "for", what, "error", err)
		}
		if !wait.For(ctx, tryPause) {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
	}
}

// one makes a call at one server.
func (s *servers) one(ctx context.Context, addr string, do call) (*nusav1.JoinResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	conn, err := serve.Dial(s.net, addr, grpc.WithTransportCredentials(trust.FirstContact(s.accept, s.rules)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	// The certificate of the server says which federation this is.
	var p peer.Peer
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Peer(&p)); err != nil {
		return nil, err
	}
	info, ok := p.AuthInfo.(trust.Info)
	if !ok {
		return nil, errors.New("the connection is not encrypted")
	}
	return do(ctx, nusav1.NewIdentityClient(conn), info.ID.Federation)
}
