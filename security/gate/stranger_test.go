package gate_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/health/grpc_health_v1" // its messages
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	_ "google.golang.org/grpc/reflection/grpc_reflection_v1" // its messages
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/gate"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// try makes a call of a peer with headers, and returns the recorded denials and its error.
func (w *world) try(from identity.ID, method string, req any, headers ...string) ([]audit.Entry, error) {
	w.t.Helper()
	var denied []audit.Entry
	if w.source == nil {
		w.source = w.ca.Source(w.server)
	}
	g := gate.New(gate.Options{
		Source: w.source, Rights: func() *rights.Set { return w.set }, Record: func(e audit.Entry) { denied = append(denied, e) },
	})
	ctx := peer.NewContext(w.t.Context(), &peer.Peer{AuthInfo: trust.Info{ID: from}})
	ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(headers...))
	chain, info := g.Around(), &grpc.UnaryServerInfo{FullMethod: method}
	_, err := chain[0](ctx, req, info, func(ctx context.Context, req any) (any, error) {
		return chain[1](ctx, req, info, func(context.Context, any) (any, error) { return nil, nil })
	})
	return denied, err
}

// newToken makes a token with the role viewer in a namespace.
func (w *world) newToken(namespace string) string {
	w.t.Helper()
	n := rights.NewToken{Request: &nusav1.CreateAccessTokenRequest{Roles: []string{"viewer"}, Namespaces: []string{namespace}}, Now: w.now.AddDate(60, 0, 0)}
	n.Random[0] = byte(len(namespace))
	set, _, text, err := w.set.CreateToken(n)
	w.set = w.must(set, err)
	return text
}

// TestAllMethodsForStrangers: without a certificate the methods that need none are open, and with an
// access token those of operators. That holds for forwarded calls, too.
func TestAllMethodsForStrangers(t *testing.T) {
	open := []string{"/grpc.health.v1.Health/Check", "/nusa.v1.Auth/ListProviders", "/nusa.v1.Auth/Login", "/nusa.v1.Identity/Join", "/nusa.v1.Identity/Renew"}
	for _, server := range []string{"global/g1", "region/a/server/s1"} {
		w := newWorld(t, server)
		token := w.newToken("pay")
		for _, method := range methods() {
			free, req := false, request(t, method)
			for _, m := range open {
				free = free || m == method
			}
			forOperators := gate.Allow(w.ca.ID(server), method, w.ca.ID("operator/jane")) == nil
			for name, from := range map[string]struct {
				peer    identity.ID
				headers []string
			}{"a stranger": {}, "a forwarded stranger": {w.ca.ID(server), []string{trust.CallerHeader, trust.NoCaller}}} {
				for _, without := range [][]string{nil, {gate.TokenHeader, ""}, {gate.TokenHeader, "Bearer "}, {gate.TokenHeader, "", gate.TokenHeader, "Bearer " + token}} {
					denied, err := w.try(from.peer, method, req, append(without, from.headers...)...)
					if free != (status.Code(err) != codes.Unauthenticated) || len(denied) > 0 {
						t.Errorf("%s calls %s of %s without a token (%q): %v, %v", name, method, server, without, err, denied)
					}
				}
				_, err := w.try(from.peer, method, req, append(from.headers, gate.TokenHeader, "Bearer "+token)...)
				refused := status.Code(err) == codes.PermissionDenied && strings.Contains(err.Error(), "may not be called with an access token")
				if refused == (forOperators || free) {
					t.Errorf("%s calls %s of %s with a token: %v", name, method, server, err)
				}
				denied, err := w.try(from.peer, method, req, append(from.headers, gate.TokenHeader, "Bearer nusa_aaaaaaaa_"+strings.Repeat("a", 32))...)
				if forOperators && !free && status.Code(err) != codes.Unauthenticated || len(denied) > 0 && from.peer.Kind == identity.None {
					t.Errorf("%s calls %s of %s with a wrong token: %v, %v", name, method, server, err, denied)
				}
			}
		}
	}
}

// TestTokenWithoutCertificate: what the token's roles do not allow is denied, and recorded with the
// name of the token.
func TestTokenWithoutCertificate(t *testing.T) {
	w := newWorld(t, "region/a/server/s1")
	token := "Bearer " + w.newToken("pay")
	accessor := strings.Split(token, "_")[1]
	for namespace, want := range map[string]codes.Code{"pay": codes.OK, "other": codes.PermissionDenied} {
		denied, err := w.try(identity.ID{}, "/nusa.v1.Jobs/Get", &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: namespace, Name: "web"}}, gate.TokenHeader, token)
		if status.Code(err) != want {
			t.Errorf("namespace %s: %v", namespace, err)
		}
		if want != codes.OK && (len(denied) != 1 || denied[0].Who != "token/"+accessor) {
			t.Errorf("recorded is %v", denied)
		}
	}
	_, err := w.try(identity.ID{}, "/nusa.v1.Jobs/List", &nusav1.ListJobsRequest{}, gate.TokenHeader, "Bearer nusa_aaaaaaaa_"+strings.Repeat("a", 32))
	if !strings.Contains(err.Error(), "or this region has not got it yet") {
		t.Error(err)
	}
	// Only a server of the tier may forward calls: the header of others changes nothing.
	_, err = w.try(w.ca.ID("region/a/agent/n1"), "/nusa.v1.Jobs/List", &nusav1.ListJobsRequest{}, gate.TokenHeader, token, trust.CallerHeader, trust.NoCaller)
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("an agent with a token: %v", err)
	}
}
