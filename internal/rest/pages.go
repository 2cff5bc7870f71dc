package rest

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/swaggest/swgui"
	"github.com/swaggest/swgui/v5emb"

	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
	"github.com/nusa-scheduler/nusa/internal/rest/openapi"
)

// docsPolicy is the Content-Security-Policy of /docs: no request leaves the server. The page has one
// script of its own, which its hash allows. Swagger UI sets style attributes.
const docsPolicy = "default-src 'none'; script-src 'self' %s; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

var inlineScript = lazyregexp.New(`(?s)<script>(.*?)</script>`)

// mountPages adds the OpenAPI document and Swagger UI.
func mountPages(a *api, mux *http.ServeMux) {
	mux.Handle("GET /openapi.json", a.guarded(http.HandlerFunc(func(plain http.ResponseWriter, r *http.Request) {
		w := newWriter(plain, r)
		defer w.end()
		w.Header().Set("Content-Type", jsonType)
		w.Header().Set("Cache-Control", "no-cache")
		_, _ = w.Write(openapi.Document)
	})))
	docs := v5emb.NewHandlerWithConfig(swgui.Config{Title: "Nusa API", SwaggerJSON: "/openapi.json", BasePath: "/docs/"})
	policy := sync.OnceValue(func() string { return policyOf(docs) })
	mux.Handle("GET /docs/", a.guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy())
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		docs.ServeHTTP(w, r)
	})))
}

// policyOf returns the policy for a page, with the hashes of its scripts.
func policyOf(page http.Handler) string {
	text := &pageText{header: http.Header{}}
	page.ServeHTTP(text, &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/docs/"}, Header: http.Header{}})
	var hashes []string
	for _, m := range inlineScript().FindAllSubmatch(text.body, -1) {
		sum := sha256.Sum256(m[1])
		hashes = append(hashes, "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	}
	return fmt.Sprintf(docsPolicy, strings.Join(hashes, " "))
}

// pageText is a response in memory.
type pageText struct {
	header http.Header
	body   []byte
}

// Header implements http.ResponseWriter.
func (p *pageText) Header() http.Header { return p.header }

// WriteHeader implements http.ResponseWriter.
func (*pageText) WriteHeader(int) {}

// Write implements http.ResponseWriter.
func (p *pageText) Write(b []byte) (int, error) {
	p.body = append(p.body, b...)
	return len(b), nil
}
