package api

import (
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// TestCallerText: a region learns the principal of an access token, with or without a certificate.
func TestCallerText(t *testing.T) {
	jane := identity.ID{Federation: "nusa-1", Kind: identity.Operator, Name: "jane"}
	byToken := &rights.Call{Who: authz.Principal{Name: "token/abc"}, Token: &nusav1.AccessToken{Accessor: "abc"}}
	byCertificate := &rights.Call{Who: authz.Principal{Name: "operator/jane"}}
	for want, got := range map[string]string{
		"token/abc":   callerText(rights.With(trust.WithCaller(t.Context(), jane), byToken)),
		jane.String(): callerText(rights.With(trust.WithCaller(t.Context(), jane), byCertificate)),
		"":            callerText(t.Context()),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := callerText(rights.With(trust.WithCaller(t.Context(), identity.ID{}), byToken)); got != "token/abc" {
		t.Errorf("without a certificate: %q", got)
	}
}
