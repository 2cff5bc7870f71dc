package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

// Base is the path of the page.
const Base = "/ui/"

// policy lets the page load only what this server serves. No other page may show it in a frame.
const policy = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"

//go:embed all:dist
var dist embed.FS

// file is a file of the built page.
type file struct {
	body, zipped []byte
	tag, kind    string
	// hashed is true if the name of the file changes with its content.
	hashed bool
}

// files reads the built page once, when a browser asks for the page for the first time.
var files = sync.OnceValue(func() map[string]*file {
	out := map[string]*file{}
	root, err := fs.Sub(dist, "dist")
	if err != nil {
		panic(err) // the folder is embedded
	}
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		f := &file{body: body, tag: `"` + hex.EncodeToString(sum[:12]) + `"`, kind: mime.TypeByExtension(path.Ext(name)), hashed: strings.HasPrefix(name, "assets/")}
		if strings.HasSuffix(name, ".js") {
			f.kind = "text/javascript; charset=utf-8" // the table of types of the machine may be wrong
		}
		if z := zip(body); len(z) < len(body) {
			f.zipped = z
		}
		out[name] = f
		return nil
	})
	if err != nil {
		panic(err) // the files are embedded
	}
	return out
})

func zip(body []byte) []byte {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		panic(err) // the level is valid
	}
	_, _ = w.Write(body) // a bytes.Buffer takes everything
	_ = w.Close()
	return b.Bytes()
}

// Mount serves the page below Base, and sends browsers from "/" to it.
func Mount(mux *http.ServeMux) {
	mux.Handle("GET "+Base, Handler())
	mux.Handle("GET /{$}", http.RedirectHandler(Base, http.StatusFound))
}

// Handler serves the built page below Base. The page has no data: the requests of the page for data carry the
// identity of the user. An address without a file is a view of the page.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, Base)
		f, ok := files()[name]
		if !ok {
			if strings.HasPrefix(name, "assets/") {
				http.NotFound(w, r)
				return
			}
			f = files()["index.html"]
		}
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Vary", "Accept-Encoding")
		h.Set("Cache-Control", "no-cache")
		if f.hashed {
			h.Set("Cache-Control", "public, max-age=31536000, immutable")
		}
		f.serve(w, r)
	})
}

func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	body, tag := f.body, f.tag
	if f.zipped != nil && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		body, tag = f.zipped, strings.TrimSuffix(f.tag, `"`)+`-gzip"`
		w.Header().Set("Content-Encoding", "gzip")
	}
	w.Header().Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag {
		w.Header().Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", f.kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // a browser that has gone needs no page
}
