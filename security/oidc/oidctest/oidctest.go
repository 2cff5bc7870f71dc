// Package oidctest runs a real OpenID Connect provider for tests: that of zitadel/oidc, with its example
// storage. The users are "id1" (in the groups ops and dev) and "id2" (in no group).
package oidctest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// ClientID is the id of Nusa at the provider.
const ClientID = "nusa"

// users are the passwords' owners by their id.
var users = map[string]string{"id1": "test-user@127.0.0.1", "id2": "test-user2"}

const password = "verysecure" // of the example storage

// Provider is a running provider.
type Provider struct {
	t       testing.TB
	server  *httptest.Server
	storage *people
	// User is who logs in with the browser.
	User string

	mu        sync.Mutex
	exchanges []Exchange
	// pages are addresses to which the provider sends browsers, besides those of 127.0.0.1/callback.
	pages []string
}

// Exchange has the secrets of a login: what a client sent for tokens, and the tokens.
type Exchange struct{ Code, Verifier, IDToken, AccessToken string }

// Exchanges returns the secrets of the logins so far.
func (p *Provider) Exchanges() []Exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.exchanges)
}

// record notes the secrets of logins that a handler answers.
func (p *Provider) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.FormValue("code_verifier") == "" {
			next.ServeHTTP(w, r)
			return
		}
		e := Exchange{Code: r.FormValue("code"), Verifier: r.FormValue("code_verifier")}
		answer := httptest.NewRecorder()
		next.ServeHTTP(answer, r)
		var tokens struct {
			ID     string `json:"id_token"`
			Access string `json:"access_token"`
		}
		if json.Unmarshal(answer.Body.Bytes(), &tokens) == nil {
			e.IDToken, e.AccessToken = tokens.ID, tokens.Access
			p.mu.Lock()
			p.exchanges = append(p.exchanges, e)
			p.mu.Unlock()
		}
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	})
}

// people is the example storage with groups, and with a client that may use both flows.
type people struct {
	*storage.Storage
	of *Provider
}

// GetClientByClientID implements op.Storage.
func (p *people) GetClientByClientID(ctx context.Context, id string) (op.Client, error) {
	c, err := p.Storage.GetClientByClientID(ctx, id)
	return native{c, p.of}, err
}

// SetUserinfoFromRequest adds the groups of a user to the ID token.
func (p *people) SetUserinfoFromRequest(ctx context.Context, info *oidc.UserInfo, token op.IDTokenRequest, scopes []string) error {
	if token.GetSubject() == "id1" {
		info.AppendClaims("groups", []string{"ops", "dev"})
	}
	return p.Storage.SetUserinfoFromRequest(ctx, info, token, scopes)
}

type native struct {
	op.Client
	of *Provider
}

// RedirectURIs implements op.Client.
func (n native) RedirectURIs() []string {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	return append(slices.Clone(n.of.pages), n.Client.RedirectURIs()...)
}

func (native) GrantTypes() []oidc.GrantType {
	return []oidc.GrantType{oidc.GrantTypeCode, oidc.GrantTypeDeviceCode}
}

func (native) IDTokenUserinfoClaimsAssertion() bool { return true }

// New starts a provider, which ends with the test.
func New(t testing.TB) *Provider {
	t.Helper()
	p := &Provider{t: t, User: "id1"}
	mux := http.NewServeMux()
	p.server = httptest.NewTLSServer(p.record(mux))
	t.Cleanup(p.server.Close)
	client := storage.NativeClient(ClientID, "http://127.0.0.1/callback")
	p.storage = &people{storage.NewStorageWithClients(storage.NewUserStore(p.server.URL), map[string]*storage.Client{ClientID: client}), p}
	provider, err := op.NewProvider(&op.Config{
		CryptoKey: sha256.Sum256([]byte("test")), CodeMethodS256: true, AuthMethodPost: true,
		DeviceAuthorization: op.DeviceAuthorizationConfig{Lifetime: time.Minute, PollInterval: time.Second, UserFormPath: "/device", UserCode: op.UserCodeBase20},
	}, p.storage, op.StaticIssuer(p.server.URL))
	if err != nil {
		t.Fatal(err)
	}
	mux.Handle("/", provider)
	mux.Handle("/login/username", op.NewIssuerInterceptor(provider.IssuerFromRequest).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.FormValue("authRequestID")
		if err := p.storage.CheckUsernamePassword(users[p.User], password, id); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		http.Redirect(w, r, op.AuthCallbackURL(provider)(r.Context(), id), http.StatusFound)
	}))
	return p
}

// Roots returns the certificate of the provider, in PEM.
func (p *Provider) Roots() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
}

// URL returns the issuer.
func (p *Provider) URL() string { return p.server.URL }

// Stored returns the provider as a federation stores it.
func (p *Provider) Stored() *nusav1.AuthProvider {
	return &nusav1.AuthProvider{
		Name: "corp", Issuer: p.URL(), ClientId: ClientID, Scopes: []string{"email"}, Roots: p.Roots(),
		Rules: []*nusav1.ProviderRule{{Role: "operator", Condition: `"ops" in claims.groups`}, {Role: "viewer", Condition: `claims.groups.exists(g, g.startsWith("d"))`}},
	}
}

// Allow adds an address to which the provider may send browsers.
func (p *Provider) Allow(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pages = append(p.pages, address)
}

// Answer opens an address as a browser of the user does, who then logs in. It returns the address to which
// the provider sends the browser.
func (p *Provider) Answer(address string) *url.URL {
	p.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		p.t.Fatal(err)
	}
	var out *url.URL
	browser := &http.Client{Transport: p.server.Client().Transport, Jar: jar, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if "https://"+r.URL.Host == p.URL() {
			return nil
		}
		out = r.URL
		return http.ErrUseLastResponse
	}}
	resp, err := browser.Get(address)
	if err != nil {
		p.t.Fatal(err)
	}
	resp.Body.Close()
	browser.CloseIdleConnections()
	if out == nil {
		p.t.Fatalf("the provider answers %s, and does not send the browser on", resp.Status)
	}
	return out
}

// Browse opens an address as a browser of the user does, who then logs in. It returns the status of the
// last page.
func (p *Provider) Browse(address string) int {
	p.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		p.t.Fatal(err)
	}
	browser := p.server.Client()
	browser.Jar = jar
	resp, err := browser.Get(address)
	if err != nil {
		p.t.Fatal(err)
	}
	resp.Body.Close()
	browser.CloseIdleConnections()
	return resp.StatusCode
}

// Approve lets a user approve the code of a device, or deny it.
func (p *Provider) Approve(code string, approve bool) {
	p.t.Helper()
	err := p.storage.DenyDeviceAuthorization
	if approve {
		err = func(ctx context.Context, code string) error {
			return p.storage.CompleteDeviceAuthorization(ctx, code, p.User)
		}
	}
	if err := err(p.t.Context(), code); err != nil {
		p.t.Fatal(err)
	}
}

// Claims returns the claims of a valid ID token for a nonce.
func (p *Provider) Claims(nonce string) map[string]any {
	now := time.Now()
	return map[string]any{
		"iss": p.URL(), "aud": ClientID, "sub": "id1", "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(), "nonce": nonce,
		"groups": []string{"ops"}, "email": "jane@example.com", "email_verified": true,
	}
}

// Sign returns the ID token of claims, signed with the key of the provider.
func (p *Provider) Sign(claims map[string]any) string {
	p.t.Helper()
	key, err := p.storage.SigningKey(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	return SignWith(p.t, claims, jose.SigningKey{Algorithm: key.SignatureAlgorithm(), Key: jose.JSONWebKey{Key: key.Key(), KeyID: key.ID()}})
}

// SignWith returns the ID token of claims, signed with any key.
func SignWith(t testing.TB, claims map[string]any, key jose.SigningKey) string {
	t.Helper()
	signer, err := jose.NewSigner(key, nil)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}
