package oidc

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const fuzzNonce = "the secret of a nonce"

var fuzzNow = time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)

// keySet answers each request with the keys of a provider.
type keySet []byte

// RoundTrip implements http.RoundTripper.
func (k keySet) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(k))}, nil
}

// offline returns a verifier that knows a provider, and the function with which the provider signs.
func offline(f *testing.F) (v *Verifier, p *nusav1.AuthProvider, sign func(testing.TB, []byte) string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
	if err != nil {
		f.Fatal(err)
	}
	public, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Algorithm: string(jose.ES256), Use: "sig"}}})
	if err != nil {
		f.Fatal(err)
	}
	p = &nusav1.AuthProvider{Name: "corp", Issuer: "https://corp", ClientId: "nusa", Rules: []*nusav1.ProviderRule{
		{Role: "operator", Condition: `"ops" in claims.groups`}, {Role: "viewer", Condition: `claims.groups.exists(g, g.startsWith("d"))`},
		{Role: "auditor", Condition: `claims.level > 3`},
	}}
	provider := (&oidc.ProviderConfig{IssuerURL: p.GetIssuer(), JWKSURL: "https://corp/keys", Algorithms: []string{oidc.ES256}}).
		NewProvider(oidc.ClientContext(context.Background(), &http.Client{Transport: keySet(public)}))
	v = &Verifier{Now: func() time.Time { return fuzzNow }, known: map[string]known{"corp": {p, provider, fuzzNow}}}
	return v, p, func(t testing.TB, claims []byte) string {
		signed, err := signer.Sign(claims)
		if err != nil {
			t.Fatal(err)
		}
		text, err := signed.CompactSerialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
}

// fuzzClaims returns the claims of a valid ID token after changes. A nil value removes a claim.
func fuzzClaims(f *testing.F, changes map[string]any) []byte {
	claims := map[string]any{"iss": "https://corp", "aud": "nusa", "sub": "id1", "iat": fuzzNow.Unix(), "exp": fuzzNow.Add(time.Hour).Unix(),
		"nonce": NonceOf(fuzzNonce), "groups": []string{"ops"}}
	for k, value := range changes {
		claims[k] = value
		if value == nil {
			delete(claims, k)
		}
	}
	out, err := json.Marshal(claims)
	if err != nil {
		f.Fatal(err)
	}
	return out
}

// checkUser checks the result of a login. token is the ID token of the login.
func checkUser(t *testing.T, u *User, err error, token string) {
	t.Helper()
	if err != nil {
		if u != nil || !errors.Is(err, ErrRefused) || len(err.Error()) > 2000 || len(token) > 100 && strings.Contains(err.Error(), token) {
			t.Fatalf("%+v, and a refusal of %d bytes: %.300s", u, len(err.Error()), err)
		}
		return
	}
	if u.Subject == "" || len(u.Subject) > maxSubject || !isWord(u.Subject) || strings.ContainsAny(u.Subject, `*?"'\`) {
		t.Fatalf("the user is %q", u.Subject)
	}
	if !slices.IsSorted(u.Roles) || slices.ContainsFunc(u.Roles, func(r string) bool { return r != "operator" && r != "viewer" && r != "auditor" }) {
		t.Fatalf("the roles are %v", u.Roles)
	}
	if left := u.Until.Sub(fuzzNow); left < clockDifference || left > maxAge+2*clockDifference || len(u.Hash) != 32 {
		t.Fatalf("remembered for %s as %x", left, u.Hash)
	}
}

// FuzzClaims: whatever claims a provider signs, the login is refused, or the user has a name that may stand
// in a binding, roles of the rules, and the nonce of this login.
func FuzzClaims(f *testing.F) {
	v, p, sign := offline(f)
	for _, changes := range []map[string]any{
		nil, {"groups": []any{"dev", 7, nil}, "level": 3.5}, {"groups": map[string]any{"ops": 1}}, {"sub": "*"}, {"sub": 7}, {"aud": []string{"nusa", "x"}},
		{"iat": nil}, {"iat": 1e300}, {"exp": -1}, {"nonce": nil}, {"nonce": "x"}, {"level": "9"}, {"azp": []string{"nusa"}}, {"sub": strings.Repeat("s", 129)},
	} {
		f.Add(fuzzClaims(f, changes))
	}
	f.Add([]byte("[]"))
	f.Add([]byte(`{"sub":"a","sub":"b"}`))
	f.Fuzz(func(t *testing.T, claims []byte) {
		token := sign(t, claims)
		u, err := v.Verify(t.Context(), p, token, fuzzNonce)
		checkUser(t, u, err, token)
		if err != nil {
			return
		}
		var said struct{ Nonce, Iss string }
		if err := json.Unmarshal(claims, &said); err != nil || said.Nonce != NonceOf(fuzzNonce) || said.Iss != "https://corp" {
			t.Fatalf("accepted: %s", claims)
		}
		if other, err := v.Verify(t.Context(), p, token, "another secret"); err == nil {
			t.Fatalf("%+v logs in with the nonce of another", other)
		}
	})
}

// FuzzIDToken: a text is the ID token that the provider has signed, or it is refused.
func FuzzIDToken(f *testing.F) {
	v, p, sign := offline(f)
	valid := sign(f, fuzzClaims(f, nil))
	part := strings.Split(valid, ".")
	for _, text := range []string{
		valid, valid + ".", part[0] + "." + part[1] + ".", "eyJhbGciOiJub25lIn0." + part[1] + ".", part[0] + ".." + part[2], "..", "", "a.b.c",
		part[0] + "." + part[1] + "." + part[2][:10], strings.Repeat("A", 20<<10),
	} {
		f.Add(text)
	}
	want, err := v.Verify(context.Background(), p, valid, fuzzNonce)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := v.Verify(t.Context(), p, text, fuzzNonce)
		checkUser(t, u, err, text)
		if err == nil && !bytes.Equal(u.Hash, want.Hash) {
			t.Fatalf("%q is the token of %+v", text, u)
		}
	})
}
