package oidc_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/oidc"
	"github.com/nusa-scheduler/nusa/security/oidc/oidctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "the secret of a nonce"

// TestVerify: each row changes the claims of a valid ID token, or the stored provider.
func TestVerify(t *testing.T) {
	p := oidctest.New(t)
	now := time.Now()
	v := &oidc.Verifier{}
	for name, c := range map[string]struct {
		claims map[string]any
		stored func(*nusav1.AuthProvider)
		want   string
	}{
		"valid":                  {nil, nil, "id1 [operator]"},
		"two groups":             {map[string]any{"groups": []string{"ops", "dev"}}, nil, "id1 [operator viewer]"},
		"no group":               {map[string]any{"groups": nil}, nil, "id1 []"},
		"groups of another type": {map[string]any{"groups": 7}, nil, "id1 []"},
		"by email":               {nil, func(s *nusav1.AuthProvider) { s.SubjectClaim = "email" }, "jane@example.com [operator]"},
		"an unverified email":    {map[string]any{"email_verified": false}, func(s *nusav1.AuthProvider) { s.SubjectClaim = "email" }, "has not verified the address"},
		"no such claim":          {nil, func(s *nusav1.AuthProvider) { s.SubjectClaim = "upn" }, `has no claim "upn"`},
		"a subject with a star":  {map[string]any{"sub": "*"}, nil, "cannot name a user"},
		"a subject with a blank": {map[string]any{"sub": "a b"}, nil, "cannot name a user"},
		"a long subject":         {map[string]any{"sub": strings.Repeat("x", 200)}, nil, "cannot name a user"},
		"another audience":       {map[string]any{"aud": "other"}, nil, `expected audience "nusa"`},
		"two audiences":          {map[string]any{"aud": []string{"nusa", "other"}}, nil, "given to client"},
		"given to another":       {map[string]any{"aud": []string{"nusa", "other"}, "azp": "other"}, nil, "given to client other"},
		"given to Nusa":          {map[string]any{"aud": []string{"nusa", "other"}, "azp": "nusa"}, nil, "id1 [operator]"},
		"another issuer":         {map[string]any{"iss": "https://other"}, nil, "issued by a different provider"},
		"expired":                {map[string]any{"exp": now.Add(-time.Minute).Unix()}, nil, "expired"},
		"issued long ago":        {map[string]any{"iat": now.Add(-11 * time.Minute).Unix()}, nil, "may be used for 10m0s"},
		"issued in the future":   {map[string]any{"iat": now.Add(6 * time.Minute).Unix()}, nil, "check the clocks"},
		"no time of issue":       {map[string]any{"iat": nil}, nil, "does not say when it was issued"},
		"not yet valid":          {map[string]any{"nbf": now.Add(time.Hour).Unix()}, nil, "before the nbf"},
		"the nonce of another":   {map[string]any{"nonce": oidc.NonceOf("other")}, nil, "is not that of this login"},
		"no nonce":               {map[string]any{"nonce": nil}, nil, "is not that of this login"},
		"a provider elsewhere":   {nil, func(s *nusav1.AuthProvider) { s.Issuer = "https://127.0.0.1:1" }, "does not answer"},
		"another authority":      {nil, func(s *nusav1.AuthProvider) { s.Roots = nil }, "does not answer"},
	} {
		claims, stored := p.Claims(oidc.NonceOf(secret)), p.Stored()
		for k, value := range c.claims {
			claims[k] = value
			if value == nil {
				delete(claims, k)
			}
		}
		if c.stored != nil {
			c.stored(stored)
		}
		user, err := v.Verify(t.Context(), stored, p.Sign(claims), secret)
		got := ""
		if err == nil {
			got = fmt.Sprint(user.Subject, " ", user.Roles)
		} else if !errors.Is(err, oidc.ErrRefused) && !errors.Is(err, oidc.ErrUnreached) {
			t.Errorf("%s: %v", name, err)
		}
		if got != c.want && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %s, %v, want %s", name, got, err, c.want)
		}
	}
}

// TestForgedTokens: an ID token that the provider has not signed is refused, in whatever form.
func TestForgedTokens(t *testing.T) {
	p := oidctest.New(t)
	own, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	claims := p.Claims(oidc.NonceOf(secret))
	valid := p.Sign(claims)
	part := strings.Split(valid, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`))
	for name, text := range map[string]string{
		"another key":        oidctest.SignWith(t, claims, jose.SigningKey{Algorithm: jose.RS256, Key: own}),
		"a key of its own":   oidctest.SignWith(t, claims, jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: own, KeyID: "x"}}),
		"the client id":      oidctest.SignWith(t, claims, jose.SigningKey{Algorithm: jose.HS256, Key: []byte(strings.Repeat("nusa", 16))}),
		"not signed":         none + "." + part[1] + ".",
		"another payload":    part[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"admin"}`)) + "." + part[2],
		"the form in JSON":   fmt.Sprintf(`{"protected":%q,"payload":%q,"signature":%q}`, part[0], part[1], part[2]),
		"with a blank":       valid + " ",
		"no text":            "",
		"a text":             "hello",
		"a very long text":   strings.Repeat("a", 20<<10),
		"a part is missing":  part[0] + "." + part[1],
		"a part is too many": valid + ".x",
	} {
		v := &oidc.Verifier{}
		if user, err := v.Verify(t.Context(), p.Stored(), text, secret); !errors.Is(err, oidc.ErrRefused) {
			t.Errorf("%s: %v, %v", name, user, err)
		}
	}
	v := &oidc.Verifier{}
	first, err := v.Verify(t.Context(), p.Stored(), valid, secret)
	if err != nil {
		t.Fatal(err)
	}
	again, err := v.Verify(t.Context(), p.Stored(), p.Sign(claims), secret)
	if err != nil || string(first.Hash) != string(again.Hash) {
		t.Errorf("the same claims have another hash: %v", err)
	}
}

// TestLoginsOfAUserAreBounded: a user who logs in again and again is refused for some minutes, and
// others are not.
func TestLoginsOfAUserAreBounded(t *testing.T) {
	p := oidctest.New(t)
	now := time.Now()
	v := &oidc.Verifier{Now: func() time.Time { return now }}
	login := func(subject string) error {
		claims := p.Claims(oidc.NonceOf(secret))
		claims["sub"] = subject
		claims["iat"], claims["exp"] = now.Unix(), now.Add(time.Hour).Unix()
		_, err := v.Verify(t.Context(), p.Stored(), p.Sign(claims), secret)
		return err
	}
	n := 0
	for n < 100 && login("jane") == nil {
		n++
	}
	if n != 20 {
		t.Errorf("%d logins of one user", n)
	}
	if err := login("jane"); !errors.Is(err, oidc.ErrBusy) {
		t.Errorf("one more: %v", err)
	}
	if err := login("joe"); err != nil {
		t.Errorf("another user: %v", err)
	}
	now = now.Add(10 * time.Minute)
	if err := login("jane"); err != nil {
		t.Errorf("later: %v", err)
	}
}

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*nusav1.AuthProvider)
		want   string
	}{
		"valid":              {func(*nusav1.AuthProvider) {}, ""},
		"on this machine":    {func(p *nusav1.AuthProvider) { p.Issuer = "http://127.0.0.1:9998/" }, ""},
		"http":               {func(p *nusav1.AuthProvider) { p.Issuer = "http://id.example.com" }, "needs https"},
		"no address":         {func(p *nusav1.AuthProvider) { p.Issuer = "id.example.com" }, "https://HOST/PATH"},
		"a query":            {func(p *nusav1.AuthProvider) { p.Issuer += "?x" }, "https://HOST/PATH"},
		"a password":         {func(p *nusav1.AuthProvider) { p.Issuer = "https://a:b@id" }, "https://HOST/PATH"},
		"no client":          {func(p *nusav1.AuthProvider) { p.ClientId = "" }, "client id"},
		"two scopes in one":  {func(p *nusav1.AuthProvider) { p.Scopes = []string{"a b"} }, "no blanks"},
		"too many scopes":    {func(p *nusav1.AuthProvider) { p.Scopes = make([]string, 17) }, "17 scopes"},
		"too many rules":     {func(p *nusav1.AuthProvider) { p.Rules = make([]*nusav1.ProviderRule, 33) }, "33 rules"},
		"a short life":       {func(p *nusav1.AuthProvider) { p.MaxTtl = durationpb.New(time.Second) }, "a life of 1s"},
		"a long life":        {func(p *nusav1.AuthProvider) { p.MaxTtl = durationpb.New(25 * time.Hour) }, "a life of 25h"},
		"no certificate":     {func(p *nusav1.AuthProvider) { p.Roots = []byte("x") }, "no certificate in PEM"},
		"no condition":       {func(p *nusav1.AuthProvider) { p.Rules[0].Condition = " " }, "the condition is empty"},
		"no boolean":         {func(p *nusav1.AuthProvider) { p.Rules[0].Condition = "1 + 1" }, "must be a bool"},
		"an unknown word":    {func(p *nusav1.AuthProvider) { p.Rules[0].Condition = "groups" }, "undeclared reference"},
		"a syntax error":     {func(p *nusav1.AuthProvider) { p.Rules[0].Condition = "claims." }, "condition"},
		"a claim as it is":   {func(p *nusav1.AuthProvider) { p.Rules[0].Condition = "claims.admin" }, ""},
		"a long condition":   {func(p *nusav1.AuthProvider) { p.Rules[0].Condition = strings.Repeat("true||", 200) + "true" }, "bytes, at most"},
		"a subject of words": {func(p *nusav1.AuthProvider) { p.SubjectClaim = "a b" }, "subject claim"},
	} {
		p := &nusav1.AuthProvider{Issuer: "https://id.example.com/x", ClientId: "nusa", Rules: []*nusav1.ProviderRule{{Role: "viewer", Condition: "true"}}}
		c.change(p)
		if err := oidc.Check(p); (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, oidc.ErrProvider) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestLife(t *testing.T) {
	for _, c := range []struct{ longest, want, got time.Duration }{
		{0, 0, oidc.DefaultLife}, {time.Hour, 0, time.Hour}, {time.Hour, 2 * time.Hour, time.Hour}, {time.Hour, time.Second, time.Minute}, {time.Hour, 30 * time.Minute, 30 * time.Minute},
	} {
		p := &nusav1.AuthProvider{}
		if c.longest > 0 {
			p.MaxTtl = durationpb.New(c.longest)
		}
		if got := oidc.Life(p, c.want); got != c.got {
			t.Errorf("%s of %s: %s, want %s", c.want, c.longest, got, c.got)
		}
	}
}
