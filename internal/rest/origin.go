package rest

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
)

// CheckOrigin returns an error unless a text is the origin of a page, for example
// "https://ops.example.com".
func CheckOrigin(origin string) error {
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.Scheme+"://"+u.Host != origin {
		return fmt.Errorf("--http-cors-origin %q is not an origin: write for example https://ops.example.com", origin)
	}
	return nil
}

// What pages of other origins may send and read.
const (
	corsHeaders = "Accept, Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, Last-Event-ID"
	corsExposed = "ETag, Link, Retry-After, WWW-Authenticate"
	corsVerbs   = "GET, POST, PUT, DELETE"
)

// guarded protects a server from requests that a page of another origin makes with the credentials of
// its visitor: a certificate of the browser, or the place of the browser on the network.
func (a *api) guarded(next http.Handler) http.Handler {
	cross := http.NewCrossOriginProtection()
	for _, origin := range a.o.Origins {
		_ = cross.AddTrustedOrigin(origin) // Mount has checked it
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.hostAllowed(r.Host) {
			refusal(http.StatusMisdirectedRequest, codes.PermissionDenied, fmt.Sprintf(
				"this server has no identity, so it takes requests for an IP address or a short host name only, not for %s: name its origin with --http-cors-origin", clip(r.Host))).write(w, r)
			return
		}
		w.Header().Add("Vary", "Origin")
		if origin := r.Header.Get("Origin"); slices.Contains(a.o.Origins, origin) {
			h := w.Header()
			h.Set("Access-Control-Allow-Origin", origin)
			h.Set("Access-Control-Expose-Headers", corsExposed)
			if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
				h.Set("Access-Control-Allow-Methods", corsVerbs)
				h.Set("Access-Control-Allow-Headers", corsHeaders)
				h.Set("Access-Control-Max-Age", "600")
				w.WriteHeader(http.StatusNoContent)
				return
			}
		}
		if cross.Check(r) != nil {
			refusal(http.StatusForbidden, codes.PermissionDenied, "a page of another origin may not make this request: name the origin with --http-cors-origin").write(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostAllowed reports whether a request may name a host. A name that an attacker has pointed to this
// server would make the attacker's page one of the same origin. That matters only to a server that
// everybody who reaches it may call.
func (a *api) hostAllowed(host string) bool {
	if !a.o.Plain {
		return true
	}
	for _, origin := range a.o.Origins {
		if _, own, _ := strings.Cut(origin, "://"); own == host {
			return true
		}
	}
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.Trim(name, "[]")
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	return !strings.Contains(strings.TrimSuffix(name, "."), ".")
}
