package weblogin_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/weblogin"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/gate"
	"github.com/nusa-scheduler/nusa/security/oidc"
	"github.com/nusa-scheduler/nusa/security/oidc/oidctest"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/security/trust"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a server with one provider. Its Login verifies ID tokens as that of the global tier does.
type server struct {
	nusav1.UnimplementedAuthServer
	stored *nusav1.AuthProvider
	users  oidc.Verifier
	addr   string
	// late is added to the time of the logins.
	late atomic.Int64
}

// ListProviders implements nusav1.AuthServer.
func (s *server) ListProviders(context.Context, *nusav1.ListProvidersRequest) (*nusav1.ListProvidersResponse, error) {
	return &nusav1.ListProvidersResponse{Providers: []*nusav1.AuthProvider{s.stored}}, nil
}

// Login implements nusav1.AuthServer.
func (s *server) Login(ctx context.Context, req *nusav1.LoginRequest) (*nusav1.LoginResponse, error) {
	user, err := s.users.Verify(ctx, s.stored, req.GetIdToken(), req.GetNonce())
	switch {
	case err != nil:
		return nil, status.Error(codes.Unauthenticated, err.Error())
	case len(user.Roles) == 0:
		return nil, status.Errorf(codes.PermissionDenied, "%s has no role", user.Subject)
	}
	return &nusav1.LoginResponse{Secret: "token of " + user.Subject}, nil
}

// kind is how a server is reached.
type kind int

const (
	encrypted kind = iota
	// local has an identity, and HTTP without TLS on this machine.
	local
	// plain has no identity.
	plain
)

// start starts a server, which ends with the test.
func start(t *testing.T, idp *oidctest.Provider, kind kind) *server {
	t.Helper()
	s := &server{stored: idp.Stored()}
	o := serve.Options{Net: network.Host(), GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", Grace: 50 * time.Millisecond}
	scheme := "http://"
	if kind != plain {
		source := pkitest.New(t).Source("global/g1")
		set, err := rights.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		g := gate.New(gate.Options{Source: source, Rights: func() *rights.Set { return set }})
		o.HTTPTLS, o.Credentials, o.Tap = source.Web(), source.Server(gate.Split(source.ID(), false, false).Main), trust.Tap
		o.Unary, o.Stream = g.Around(), g.AroundStreams()
	}
	if kind == encrypted {
		o.HTTPAddr, scheme = "0.0.0.0:0", "https://"
	}
	web, err := serve.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	nusav1.RegisterAuthServer(web.GRPC, s)
	weblogin.Mount(web.Mux, weblogin.Options{Plain: kind == plain, Now: func() time.Time { return time.Now().Add(time.Duration(s.late.Load())) }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- web.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	_, port, err := net.SplitHostPort(web.HTTPAddr())
	if err != nil {
		t.Fatal(err)
	}
	s.addr = scheme + "127.0.0.1:" + port
	idp.Allow(s.addr + weblogin.Done)
	return s
}

// browser is a browser with its cookie.
type browser struct {
	t      *testing.T
	s      *server
	client *http.Client
	cookie *http.Cookie
	header http.Header
	// host is that of the page, if not the server's. secure: the page has TLS.
	host   string
	secure bool
}

func (s *server) browser(t *testing.T) *browser {
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(tr.CloseIdleConnections)
	h := http.Header{"Content-Type": {"application/json"}, "Origin": {s.addr}, "Sec-Fetch-Site": {"same-origin"}}
	return &browser{t: t, s: s, client: &http.Client{Transport: tr, Timeout: 20 * time.Second}, header: h, secure: strings.HasPrefix(s.addr, "https:")}
}

// post makes a request of the page. The answer is that of the server, or its status and the text of its refusal.
func (b *browser) post(path string, body map[string]string) map[string]string {
	b.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		b.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, b.s.addr+path, bytes.NewReader(text))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header, r.Host = b.header.Clone(), b.host
	if b.cookie != nil {
		r.AddCookie(b.cookie)
	}
	resp, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, c := range resp.Cookies() {
		if secure := b.secure; !c.HttpOnly || c.Secure != secure || c.SameSite != http.SameSiteStrictMode || c.MaxAge != 600 || strings.HasPrefix(c.Name, "__Host-") != secure {
			b.t.Errorf("the cookie is %s", c)
		}
		b.cookie = c
	}
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	if got := resp.Header.Get("Cache-Control"); got != "no-store" && resp.StatusCode != http.StatusConflict {
		b.t.Errorf("Cache-Control is %q", got)
	}
	var answer map[string]any
	if err := json.Unmarshal(all, &answer); err != nil {
		b.t.Fatalf("%s: %s: %v", resp.Status, all, err)
	}
	out := map[string]string{}
	for k, v := range answer {
		out[k] = fmt.Sprint(v)
	}
	return out
}

// begin begins a login, and returns the address at the provider.
func (b *browser) begin() *url.URL {
	b.t.Helper()
	answer := b.post("/ui/login/begin", map[string]string{"provider": "corp"})
	u, err := url.Parse(answer["address"])
	if err != nil || !strings.HasPrefix(answer["address"], b.s.stored.GetIssuer()) || b.cookie == nil {
		b.t.Fatalf("begin answers %v", answer)
	}
	q := u.Query()
	if q.Get("code_challenge_method") != "S256" || q.Get("code_challenge") == "" || q.Get("nonce") == "" || q.Get("redirect_uri") != b.s.addr+weblogin.Done || q.Get("response_type") != "code" {
		b.t.Errorf("the page opens %s", u)
	}
	return u
}

// answer returns what the page posts after a login at the provider.
func answer(u *url.URL) map[string]string {
	q := u.Query()
	return map[string]string{"state": q.Get("state"), "code": q.Get("code"), "error": q.Get("error"), "description": q.Get("error_description")}
}

func (b *browser) finish(body map[string]string) map[string]string {
	b.t.Helper()
	return b.post("/ui/login/finish", body)
}

func refused(t *testing.T, got map[string]string, code, text string) {
	t.Helper()
	if got["token"] != "" || got["status"] != code || !strings.Contains(got["detail"], text) {
		t.Errorf("the answer is %v, want %s with %q", got, code, text)
	}
}

const notHere = "not the answer to a login that this browser began here"

// TestLogin: a user logs in once. The secrets of the login are not in the address that the page opens, and
// two tabs of a browser do not disturb each other.
func TestLogin(t *testing.T) {
	idp := oidctest.New(t)
	s := start(t, idp, encrypted)
	b := s.browser(t)
	first, second := b.begin(), b.begin()
	back := idp.Answer(first.String())
	if got := b.finish(answer(back)); got["token"] != "token of id1" {
		t.Fatal(got)
	}
	refused(t, b.finish(answer(back)), "403", notHere)
	if got := b.finish(answer(idp.Answer(second.String()))); got["token"] != "token of id1" {
		t.Fatal(got)
	}
	for _, e := range idp.Exchanges() {
		for _, text := range []string{first.String(), second.String(), back.String()} {
			if e.Verifier == "" || strings.Contains(text, e.Verifier) || strings.Contains(text, b.cookie.Value) {
				t.Errorf("%s has a secret", text)
			}
		}
	}
	idp.User = "id2"
	refused(t, b.finish(answer(idp.Answer(b.begin().String()))), "403", "id2 has no role")
}

// TestLocal: the page of a server that listens on this machine only needs no TLS, or has that of a proxy.
func TestLocal(t *testing.T) {
	idp := oidctest.New(t)
	s := start(t, idp, local)
	b := s.browser(t)
	if got := b.finish(answer(idp.Answer(b.begin().String()))); got["token"] != "token of id1" {
		t.Fatal(got)
	}
	b = s.browser(t)
	b.host, b.header = "ui.example.com", http.Header{"Content-Type": {"application/json"}, "Origin": {"http://ui.example.com"}}
	refused(t, b.post("/ui/login/begin", map[string]string{"provider": "corp"}), "403", "only the page of this server") // a name that leads here
	b.header.Set("Origin", "https://ui.example.com")
	b.secure = true
	if got := b.post("/ui/login/begin", map[string]string{"provider": "corp"}); !strings.Contains(got["address"], url.QueryEscape("https://ui.example.com"+weblogin.Done)) {
		t.Error(got)
	}
}

// TestRefused: what is not the answer to a login of this browser is refused, and does not end the login.
func TestRefused(t *testing.T) {
	idp := oidctest.New(t)
	s := start(t, idp, encrypted)
	b, other := s.browser(t), s.browser(t)
	good := answer(idp.Answer(b.begin().String()))
	other.begin()
	change := func(k, v string) map[string]string {
		out := map[string]string{}
		for name, value := range good {
			out[name] = value
		}
		out[k] = v
		return out
	}
	refused(t, b.finish(change("state", "x")), "403", notHere)
	refused(t, b.finish(change("state", "")), "403", notHere)
	refused(t, other.finish(good), "403", notHere)
	refused(t, s.browser(t).finish(good), "403", notHere) // without a cookie
	if got := b.finish(good); got["token"] != "token of id1" {
		t.Fatal(got)
	}

	good = answer(idp.Answer(b.begin().String()))
	refused(t, b.finish(change("iss", "https://other")), "403", "another provider")
	good = answer(idp.Answer(b.begin().String()))
	refused(t, b.finish(change("code", "x")), "403", "does not accept the code")
	refused(t, b.finish(good), "403", notHere) // a state works once
	mine, theirs := answer(idp.Answer(b.begin().String())), answer(idp.Answer(other.begin().String()))
	theirs["state"] = mine["state"] // the code of another login: PKCE
	refused(t, b.finish(theirs), "403", "does not accept the code")
	good = answer(idp.Answer(b.begin().String()))
	s.late.Store(int64(10 * time.Minute))
	refused(t, b.finish(good), "403", notHere)
	s.late.Store(0)
	denied := map[string]string{"state": b.begin().Query().Get("state"), "error": "access_denied", "description": "not\ntoday"}
	refused(t, b.finish(denied), "403", "corp has refused the login: access_denied not today")
}

// TestRequests: only the page of the server may make the requests, at a server with identities.
func TestRequests(t *testing.T) {
	idp := oidctest.New(t)
	s := start(t, idp, encrypted)
	corp := map[string]string{"provider": "corp"}
	refused(t, s.browser(t).post("/ui/login/begin", map[string]string{"provider": "other"}), "404", "no such provider")
	refused(t, s.browser(t).post("/ui/login/begin", map[string]string{"provider": strings.Repeat("x", 20<<10)}), "400", "no JSON of at most")
	for name, header := range map[string]http.Header{
		"another origin": {"Content-Type": {"application/json"}, "Origin": {"https://evil.example"}},
		"another scheme": {"Content-Type": {"application/json"}, "Origin": {strings.Replace(s.addr, "https", "http", 1)}},
		"another site":   {"Content-Type": {"application/json"}, "Origin": {s.addr}, "Sec-Fetch-Site": {"cross-site"}},
		"no origin":      {"Content-Type": {"application/json"}},
		"a form":         {"Content-Type": {"text/plain"}, "Origin": {s.addr}},
	} {
		b := s.browser(t)
		b.header = header
		if got := b.post("/ui/login/begin", corp); got["status"] != "403" && got["status"] != "415" || b.cookie != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	s.stored.Issuer = "https://127.0.0.1:1"
	refused(t, s.browser(t).post("/ui/login/begin", corp), "502", "does not answer")
	refused(t, start(t, idp, plain).browser(t).post("/ui/login/begin", corp), "409", "nobody needs to log in")
}

// TestRefuse: a server of a region says where to log in.
func TestRefuse(t *testing.T) {
	mux := http.NewServeMux()
	weblogin.Refuse(mux, "at a global server")
	w := &answerOf{header: http.Header{}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/ui/login/begin", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	mux.ServeHTTP(w, r)
	if w.code != http.StatusConflict || !strings.Contains(w.String(), "at a global server") {
		t.Error(w.code, w.String())
	}
}

type answerOf struct {
	bytes.Buffer
	header http.Header
	code   int
}

// Header implements http.ResponseWriter.
func (a *answerOf) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answerOf) WriteHeader(code int) { a.code = code }
