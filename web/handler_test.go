package web

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

// mostBytes bounds the compressed size of the whole page.
const mostBytes = 400 << 10

func TestPageIsSmall(t *testing.T) {
	total := 0
	for name, f := range files() {
		n := len(f.body)
		if f.zipped != nil {
			n = len(f.zipped)
		}
		total += n
		t.Logf("%7d bytes, %7d compressed: %s", len(f.body), n, name)
	}
	t.Logf("%d bytes compressed", total)
	if total > mostBytes {
		t.Errorf("the page has %d bytes compressed, more than %d", total, mostBytes)
	}
}

// TestPageLoadsNothingForeign: no file of the page loads anything from another address, and the policy of
// the server would not allow inline scripts and styles.
func TestPageLoadsNothingForeign(t *testing.T) {
	loads := regexp.MustCompile(`(?:src|href)="(?:https?:)?//|@import|url\((?:["']?)(?:https?:)?//|fetch\(["'\x60]https?://|importScripts`)
	inline := regexp.MustCompile(`<script(?:\s+[a-z]+(?:="[^"]*")?)*\s*>[^<]|<style|\son[a-z]+=|style="`)
	for name, f := range files() {
		if m := loads.Find(f.body); m != nil {
			t.Errorf("%s loads from another address: %s", name, m)
		}
		if name == "index.html" {
			if m := inline.Find(f.body); m != nil {
				t.Errorf("%s has inline code: %s", name, m)
			}
			if !strings.Contains(string(f.body), `src="/ui/assets/`) {
				t.Errorf("%s loads no script", name)
			}
		}
	}
}

func get(t *testing.T, path string, header ...string) *http.Response {
	t.Helper()
	mux := http.NewServeMux()
	Mount(mux)
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	return w.Result()
}

func TestHandler(t *testing.T) {
	script := ""
	for name := range files() {
		if strings.HasPrefix(name, "assets/index-") && strings.HasSuffix(name, ".js") {
			script = Base + name
		}
	}
	if script == "" {
		t.Fatal("the page has no script: run make web")
	}
	if r := get(t, "/"); r.StatusCode != http.StatusFound || r.Header.Get("Location") != Base {
		t.Errorf("/ returns %s to %q", r.Status, r.Header.Get("Location"))
	}
	for _, path := range []string{Base, Base + "latency", Base + "jobs/default"} {
		r := get(t, path)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		if r.StatusCode != http.StatusOK || !strings.Contains(string(body), "<title>Nusa</title>") {
			t.Errorf("%s returns %s", path, r.Status)
		}
		if r.Header.Get("Cache-Control") != "no-cache" || r.Header.Get("Content-Security-Policy") != policy || r.Header.Get("Content-Type") != "text/html; charset=utf-8" {
			t.Errorf("%s has the headers %v", path, r.Header)
		}
	}
	if r := get(t, Base+"assets/none.js"); r.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown asset returns %s", r.Status)
	}
	r := get(t, script, "Accept-Encoding", "br, gzip")
	if r.Header.Get("Content-Encoding") != "gzip" || !strings.Contains(r.Header.Get("Cache-Control"), "immutable") || r.Header.Get("Content-Type") != "text/javascript; charset=utf-8" {
		t.Errorf("a script has the headers %v", r.Header)
	}
	if again := get(t, script, "Accept-Encoding", "gzip", "If-None-Match", r.Header.Get("ETag")); again.StatusCode != http.StatusNotModified {
		t.Errorf("the same script again returns %s", again.Status)
	}
	if plain := get(t, script); plain.Header.Get("Content-Encoding") != "" || plain.Header.Get("ETag") == r.Header.Get("ETag") {
		t.Errorf("a browser without gzip gets the headers %v", plain.Header)
	}
	mux := http.NewServeMux()
	Mount(mux)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, Base, nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST returns %d", w.Code)
	}
}
