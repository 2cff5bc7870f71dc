package weblogin

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
	"unicode"

	goidc "github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/oidc"
)

// Done is the path to which a provider sends the browser. The page is there.
const Done = "/ui/login/done"

const (
	// cookieName begins so that a browser takes the cookie only from this host, over TLS. plainCookie is for
	// a page without TLS, which is of this machine.
	cookieName, plainCookie = "__Host-nusa-login", "nusa-login"
	// maxBody bounds the body of a request, in bytes.
	maxBody = 16 << 10
	// maxBusy bounds the requests to providers in progress.
	maxBusy = 16
	// limit bounds the time of a request. The HTTP server ends a response after 30 s.
	limit = 25 * time.Second
)

// Options configure the login.
type Options struct {
	// Plain: the server has no identity, so everybody who reaches it may call it.
	Plain bool
	// Now returns the time. Default: time.Now.
	Now func() time.Time
}

// logins has the handlers.
type logins struct {
	now   func() time.Time
	flows flows
	busy  chan struct{}
}

// Mount lets people log in at the page of a global server. mux is that of a serve.Server.
func Mount(mux *http.ServeMux, o Options) {
	if o.Plain {
		Refuse(mux, "this server has no identity, so every caller may do everything: nobody needs to log in")
		return
	}
	l := &logins{now: o.Now, busy: make(chan struct{}, maxBusy)}
	if l.now == nil {
		l.now = time.Now
	}
	mux.Handle("POST /ui/login/begin", handler(l.begin))
	mux.Handle("POST /ui/login/finish", handler(l.finish))
}

// Refuse says at the page of a server that cannot log people in why it cannot.
func Refuse(mux *http.ServeMux, why string) {
	mux.HandleFunc("POST /ui/login/", func(w http.ResponseWriter, _ *http.Request) { refusal{http.StatusConflict, why}.write(w) })
}

// refusal is an error with a status of HTTP. Its text is for the user.
type refusal struct {
	code   int
	detail string
}

// Error implements error.
func (r refusal) Error() string { return r.detail }

// write sends the problem details (RFC 9457).
func (r refusal) write(w http.ResponseWriter) {
	text, err := json.Marshal(map[string]any{"title": http.StatusText(r.code), "status": r.code, "detail": r.detail})
	if err != nil {
		panic(err) // texts and a number
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(r.code)
	_, _ = w.Write(text) // the client may be gone
}

// originOf returns the origin of a page of this server that makes a request, or "" for another caller. A
// proxy may have ended the TLS of a server that listens on this machine only. Without TLS the whole way is on
// this machine.
func originOf(r *http.Request) string {
	origin := r.Header.Get("Origin")
	scheme, host, _ := strings.Cut(origin, "://")
	if host != r.Host || scheme != "https" && (scheme != "http" || r.TLS != nil || !loopback(host)) {
		return ""
	}
	return origin
}

// loopback reports whether a host with a port, or without one, is this machine.
func loopback(host string) bool { return serve.Loopback(host) || serve.Loopback(host+":80") }

// cookieOf returns the name of the cookie for a page.
func cookieOf(origin string) string {
	if strings.HasPrefix(origin, "https:") {
		return cookieName
	}
	return plainCookie
}

// handler answers the requests of the page with what do returns.
func handler(do func(ctx context.Context, w http.ResponseWriter, r *http.Request) (any, error)) http.Handler {
	same := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		switch {
		case same.Check(r) != nil || originOf(r) == "":
			refusal{http.StatusForbidden, "only the page of this server may make this request"}.write(w)
			return
		case err != nil || kind != "application/json":
			refusal{http.StatusUnsupportedMediaType, "the Content-Type must be application/json"}.write(w)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), limit)
		defer cancel()
		out, err := do(ctx, w, r)
		if err != nil {
			refusalOf(err).write(w)
			return
		}
		text, err := json.Marshal(out)
		if err != nil {
			refusalOf(err).write(w)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text) // the client may be gone
	})
}

// refusalOf returns the refusal for an error. The page shows its login on 401, so no refusal is one.
func refusalOf(err error) refusal {
	var r refusal
	switch {
	case errors.As(err, &r):
		return r
	case errors.Is(err, errFull):
		return refusal{http.StatusTooManyRequests, err.Error()}
	case errors.Is(err, errUnknown):
		return refusal{http.StatusForbidden, err.Error()}
	case errors.Is(err, oidc.ErrUnreached):
		return refusal{http.StatusBadGateway, err.Error()}
	}
	code := http.StatusInternalServerError
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated:
		code = http.StatusForbidden
	case codes.FailedPrecondition, codes.Aborted:
		code = http.StatusConflict
	case codes.NotFound:
		code = http.StatusNotFound
	case codes.ResourceExhausted:
		code = http.StatusTooManyRequests
	case codes.Unavailable, codes.DeadlineExceeded:
		code = http.StatusServiceUnavailable
	}
	return refusal{code, status.Convert(err).Message()}
}

// read reads the body of a request.
func read(w http.ResponseWriter, r *http.Request, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	if err := d.Decode(into); err != nil {
		return refusal{http.StatusBadRequest, fmt.Sprintf("the body is no JSON of at most %d bytes with the fields of this request", maxBody)}
	}
	// The deadline of the server for the whole request would end the call.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return nil
}

// enter counts a request to a provider, until the returned function is called.
func (l *logins) enter() (leave func(), err error) {
	select {
	case l.busy <- struct{}{}:
		return func() { <-l.busy }, nil
	default:
		return nil, errFull
	}
}

// begin returns the address at the provider that the page opens.
func (l *logins) begin(ctx context.Context, w http.ResponseWriter, r *http.Request) (any, error) {
	var req struct{ Provider string }
	if err := read(w, r, &req); err != nil {
		return nil, err
	}
	from := placeOf(r.RemoteAddr)
	if err := l.flows.room(from, l.now()); err != nil {
		return nil, err
	}
	p, err := stored(ctx, r, req.Provider)
	if err != nil {
		return nil, err
	}
	leave, err := l.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	found, _, err := oidc.Discover(ctx, p)
	if err != nil {
		return nil, err
	}
	fl := &flow{
		browser: l.browser(r), verifier: oauth2.GenerateVerifier(), nonce: rand.Text(), origin: originOf(r),
		provider: p, endpoint: found.Endpoint(), from: from,
	}
	state := rand.Text()
	address := fl.config().AuthCodeURL(state, oauth2.S256ChallengeOption(fl.verifier), goidc.Nonce(oidc.NonceOf(fl.nonce)))
	if u, err := url.Parse(address); err != nil || u.Scheme != "https" && !strings.HasPrefix(p.GetIssuer(), u.Scheme+"://") {
		return nil, refusal{http.StatusBadGateway, fmt.Sprintf("the provider %s names an address for logins that is not encrypted", p.GetName())}
	}
	if err := l.flows.add(state, fl, l.now()); err != nil {
		return nil, err
	}
	http.SetCookie(w, &http.Cookie{
		Name: cookieOf(fl.origin), Value: fl.browser, Path: "/", MaxAge: int(life / time.Second), Secure: cookieOf(fl.origin) == cookieName, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
	return map[string]string{"address": address}, nil
}

// placeOf returns where a client is: its address without the port. The addresses of one network of IPv6 count
// as one, because a client may have all of them.
func placeOf(remote string) string {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	addr := at.Addr().Unmap().WithZone("")
	if addr.Is4() {
		return addr.String()
	}
	network, err := addr.Prefix(64)
	if err != nil {
		return remote
	}
	return network.String()
}

// stored returns a provider of the federation.
func stored(ctx context.Context, r *http.Request, name string) (*nusav1.AuthProvider, error) {
	conn, err := serve.Conn(r)
	if err != nil {
		return nil, err
	}
	resp, err := nusav1.NewAuthClient(conn).ListProviders(ctx, &nusav1.ListProvidersRequest{})
	if err != nil {
		return nil, err
	}
	for _, p := range resp.GetProviders() {
		if p.GetName() == name {
			return p, nil
		}
	}
	return nil, refusal{http.StatusNotFound, "the federation has no such provider: load the page again"}
}

// browser returns the secret of a browser: that of its other logins in progress, or a new one.
func (l *logins) browser(r *http.Request) string {
	if c, err := r.Cookie(cookieOf(originOf(r))); err == nil && l.flows.knows(c.Value) {
		return c.Value
	}
	return rand.Text()
}

func (fl *flow) config() *oauth2.Config {
	c := &oauth2.Config{ClientID: fl.provider.GetClientId(), Endpoint: fl.endpoint, RedirectURL: fl.origin + Done, Scopes: append([]string{"openid"}, fl.provider.GetScopes()...)}
	c.Endpoint.AuthStyle = oauth2.AuthStyleInParams // a client without a secret
	return c
}

// finish returns the access token of the user whom the provider has sent back.
func (l *logins) finish(ctx context.Context, w http.ResponseWriter, r *http.Request) (any, error) {
	// Issuer is who says it has sent the answer (RFC 9207). Not every provider says it.
	var req struct {
		State, Code, Error, Description string
		Issuer                          string `json:"iss"`
	}
	if err := read(w, r, &req); err != nil {
		return nil, err
	}
	leave, err := l.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	browser := ""
	if c, err := r.Cookie(cookieOf(originOf(r))); err == nil {
		browser = c.Value
	}
	fl, err := l.flows.take(req.State, browser, originOf(r), l.now())
	if err != nil {
		return nil, err
	}
	switch {
	case req.Issuer != "" && req.Issuer != fl.provider.GetIssuer():
		return nil, refusal{http.StatusForbidden, "another provider has answered: log in again"}
	case req.Error != "" || req.Code == "":
		return nil, refusal{http.StatusForbidden, fmt.Sprintf("the provider %s has refused the login: %s", fl.provider.GetName(), short(req.Error+" "+req.Description))}
	}
	idToken, err := fl.exchange(ctx, req.Code)
	if err != nil {
		return nil, err
	}
	conn, err := serve.Conn(r)
	if err != nil {
		return nil, err
	}
	resp, err := nusav1.NewAuthClient(conn).Login(ctx, &nusav1.LoginRequest{Provider: fl.provider.GetName(), IdToken: idToken, Nonce: fl.nonce})
	if err != nil {
		return nil, err
	}
	return map[string]string{"token": resp.GetSecret()}, nil
}

// exchange asks the provider for the ID token of a code.
func (fl *flow) exchange(ctx context.Context, code string) (string, error) {
	client, err := oidc.Client(fl.provider)
	if err != nil {
		return "", err
	}
	token, err := fl.config().Exchange(goidc.ClientContext(ctx, client), code, oauth2.VerifierOption(fl.verifier))
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &refused): // its text has the whole answer
		return "", refusal{http.StatusForbidden, fmt.Sprintf("the provider %s does not accept the code of this login: %s", fl.provider.GetName(), short(refused.ErrorCode+" "+refused.ErrorDescription))}
	case err != nil:
		return "", refusal{http.StatusBadGateway, fmt.Sprintf("the provider %s does not answer: try again", fl.provider.GetName())}
	}
	text, _ := token.Extra("id_token").(string)
	if text == "" {
		return "", refusal{http.StatusBadGateway, fmt.Sprintf("%s has sent no ID token: is it a provider of OpenID Connect?", fl.provider.GetName())}
	}
	return text, nil
}

// short returns a text of a provider as one line.
func short(text string) string {
	const most = 300
	text = strings.Join(strings.FieldsFunc(text, func(c rune) bool { return unicode.IsSpace(c) || !unicode.IsPrint(c) }), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	if text == "" {
		return "it gives no reason"
	}
	return text
}
