package setup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

func newSetup(t *testing.T, change func(*Config)) *Setup {
	t.Helper()
	var d net.Dialer
	c := Config{Dir: filepath.Join(t.TempDir(), "allocs"), RetryAfter: time.Millisecond, ArtifactsAllow: []string{"127.0.0.0/8"},
		Dial: func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }}
	if change != nil {
		change(&c)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func sum256(s string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(s))) }

// serve serves paths over HTTP and counts the requests.
func serve(t *testing.T, count *atomic.Int64, handler http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		count.Add(1)
		handler(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func artifact(source, checksum, to string) Task {
	return Task{Alloc: "aaaa", Name: "main", Artifacts: []Artifact{{Source: source, Checksum: checksum, To: to, Mode: 0o755}}}
}

func (s *Setup) read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.TaskDir("aaaa", "main"), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestFetch(t *testing.T) {
	var n atomic.Int64
	addr := serve(t, &n, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "/tool", http.StatusFound)
		case "/flaky":
			if n.Load() < 3 {
				http.Error(w, "come back later", http.StatusServiceUnavailable)
				return
			}
			fallthrough
		case "/tool":
			fmt.Fprint(w, "tool")
		}
	})
	for _, c := range []struct{ path, checksum, to, file string }{
		{"/tool", sum256("tool"), "bin/tool2", "bin/tool2"},
		{"/tool?token=x", sum256("tool"), "local/", "local/tool"},
		{"/tool", fmt.Sprintf("sha512:%x", sha512.Sum512([]byte("tool"))), "a/b/", "a/b/tool"},
		{"/moved", strings.ToUpper(sum256("tool")[7:]), "x", "x"},
		{"/flaky", sum256("tool"), "y", "y"},
	} {
		n.Store(0)
		s := newSetup(t, nil)
		if !strings.Contains(c.checksum, ":") {
			c.checksum = "sha256:" + c.checksum
		}
		task := artifact(addr+c.path, c.checksum, c.to)
		if err := s.Prepare(t.Context(), task); err != nil {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		if got := s.read(t, c.file); got != "tool" {
			t.Errorf("%s: %q", c.path, got)
		}
		if fi, err := os.Stat(filepath.Join(s.TaskDir("aaaa", "main"), c.file)); err != nil || fi.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v %v", c.path, fi.Mode(), err)
		}
		// A restart of the task or of the agent does not fetch a complete artifact again,
		// and the task's changes to the artifact remain.
		if err := os.WriteFile(filepath.Join(s.TaskDir("aaaa", "main"), c.file), []byte("changed"), 0o600); err != nil {
			t.Fatal(err)
		}
		before := n.Load()
		again := newSetup(t, func(o *Config) { *o = s.cfg })
		if err := again.Prepare(t.Context(), task); err != nil || n.Load() != before || again.read(t, c.file) != "changed" {
			t.Errorf("%s: prepared again with %d requests: %v", c.path, n.Load()-before, err)
		}
		left, err := os.ReadDir(filepath.Join(s.allocDir("aaaa"), "fetch"))
		if err != nil || len(left) != 1 || !strings.HasSuffix(left[0].Name(), ".done") {
			t.Errorf("%s: left over %v %v", c.path, left, err)
		}
	}
}

// TestFetchRefused: every refusal names the field, and no part of the file is left in the
// task's folder.
func TestFetchRefused(t *testing.T) {
	var n atomic.Int64
	addr := serve(t, &n, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/metadata":
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		case "/short":
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "short")
		case "/big":
			for range 100 {
				fmt.Fprint(w, strings.Repeat("x", 1000))
				w.(http.Flusher).Flush()
			}
		case "/announced":
			w.Header().Set("Content-Length", "100000")
		case "/busy":
			http.Error(w, "no room\x1b[31m", http.StatusServiceUnavailable)
		case "/a.tar":
			fmt.Fprint(w, "no archive")
		case "/file":
			fmt.Fprint(w, "file")
		default:
			http.Error(w, "nothing here", http.StatusNotFound)
		}
	})
	folder := t.TempDir()
	for name, target := range map[string]string{"out": "/etc/passwd", "in": "real"} {
		if err := os.Symlink(target, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "real"), []byte("real"), 0o600); err != nil {
		t.Fatal(err)
	}
	some := sum256("something else")
	for _, c := range []struct {
		source, checksum, to string
		requests             int64
		final                bool
		want                 string
	}{
		{addr + "/nothing?token=secret", some, "x", 1, false, "artifacts[0].source: " + addr + "/nothing: the server answers 404 Not Found: nothing here"},
		{addr + "/busy", some, "x", attempts, false, "503 Service Unavailable: no room [31m"},
		{addr + "/short", some, "x", attempts, false, "unexpected EOF"},
		{addr + "/file", some, "x", 1, true, "artifacts[0].checksum: the file has another checksum"},
		{addr + "/file", "", "x", 0, true, "artifacts[0].checksum: not allowed on this node: http needs a checksum"},
		{addr + "/file", sum256("file"), "../x", 1, true, "artifacts[0].to"},
		{addr + "/big", some, "x", 1, true, "more than 5000 bytes"},
		{addr + "/announced", some, "x", 1, true, "more than 5000 bytes"},
		{addr + "/loop", some, "x", maxRedirects + 1, true, "redirect refused: more than 5"},
		{addr + "/metadata", some, "x", 1, true, "169.254.169.254 is not a public address"},
		{addr + "/a.tar", sum256("no archive"), "x/", 1, true, "archive refused"},
		{"http://10.1.2.3/x", some, "x", 0, true, "10.1.2.3 is not a public address"},
		{"http://[::ffff:10.1.2.3]/x", some, "x", 0, true, "10.1.2.3 is not a public address"},
		{"ftp://127.0.0.1/x", some, "x", 0, false, "ftp is neither"},
		{"file:///etc/passwd", "", "x", 0, true, "/etc/passwd is in no folder"},
		{"file://" + folder + "/../passwd", "", "x", 0, true, "is in no folder"},
		{"file://" + folder + "/out", "", "x", 0, false, "escapes"},
		{"file://" + folder + "/absent", "", "x", 0, false, "no such file"},
		{"file://" + folder + "/in", some, "x", 0, true, "artifacts[0].checksum"},
	} {
		n.Store(0)
		s := newSetup(t, func(o *Config) { o.ArtifactsAllow, o.ArtifactsMax = append(o.ArtifactsAllow, folder), 5000 })
		err := s.Prepare(t.Context(), artifact(c.source, c.checksum, c.to))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.source, err, c.want)
			continue
		}
		if e := (*Error)(nil); !errors.As(err, &e) || e.Final != c.final || errors.Is(err, driver.ErrFinal) != c.final || !errors.Is(err, driver.ErrStart) || errors.Is(err, driver.ErrInvalid) || !strings.HasPrefix(err.Error(), "task did not start: ") {
			t.Errorf("%s: %v: final %v", c.source, err, e)
		}
		if strings.Contains(err.Error(), "token") || n.Load() != c.requests {
			t.Errorf("%s: %d requests, want %d: %v", c.source, n.Load(), c.requests, err)
		}
		if left, _ := os.ReadDir(s.TaskDir("aaaa", "main")); len(left) != 0 {
			t.Errorf("%s: the task finds %v", c.source, left)
		}
		if left, _ := os.ReadDir(filepath.Join(s.allocDir("aaaa"), "fetch")); len(left) != 0 {
			t.Errorf("%s: left over %v", c.source, left)
		}
	}
	s := newSetup(t, func(o *Config) { o.ArtifactsAllow = append(o.ArtifactsAllow, folder) })
	if err := s.Prepare(t.Context(), artifact("file://"+folder+"/in", sum256("real"), "local/")); err != nil || s.read(t, "local/in") != "real" {
		t.Errorf("a link inside the folder: %v", err)
	}
}

// TestFetchTLS: without a checksum only https is allowed, and no redirect to http.
func TestFetchTLS(t *testing.T) {
	var n atomic.Int64
	plain := serve(t, &n, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "x") })
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/down" {
			http.Redirect(w, r, plain, http.StatusFound)
			return
		}
		fmt.Fprint(w, "safe")
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	s := newSetup(t, func(o *Config) { o.TLS = srv.Client().Transport.(*http.Transport).TLSClientConfig })
	if err := s.Prepare(t.Context(), artifact(srv.URL+"/x", "", "x")); err != nil || s.read(t, "x") != "safe" {
		t.Error(err)
	}
	if err := s.Prepare(t.Context(), artifact(srv.URL+"/down", "", "y")); err == nil || !strings.Contains(err.Error(), "redirect refused: to http") || n.Load() != 0 {
		t.Errorf("%d requests over http: %v", n.Load(), err)
	}
	if err := s.Prepare(t.Context(), artifact(srv.URL+"/down", sum256("x"), "z")); err != nil {
		t.Errorf("with a checksum: %v", err)
	}
	strange := newSetup(t, nil)
	if err := strange.Prepare(t.Context(), artifact(srv.URL+"/x", "", "x")); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a server with an unknown authority: %v", err)
	}
}

// TestFetchEndsWithItsContext: a fetch ends with its context, even if the server sends
// without end.
func TestFetchEndsWithItsContext(t *testing.T) {
	var n atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	addr := serve(t, &n, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "beginning")
		w.(http.Flusher).Flush()
		cancel()
		<-r.Context().Done()
	})
	if err := newSetup(t, nil).Prepare(ctx, artifact(addr+"/x", sum256("x"), "x")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestPausingServerLosesItsTurn: if a server pauses, the fetch gives its slot to others and
// is tried again.
func TestPausingServerLosesItsTurn(t *testing.T) {
	var n atomic.Int64
	addr := serve(t, &n, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "too")
		w.(http.Flusher).Flush()
		if n.Load() == 1 {
			<-r.Context().Done()
		}
		fmt.Fprint(w, "l")
	})
	s := newSetup(t, nil)
	s.idle = time.Second // shorter than any other pause
	if err := s.Prepare(t.Context(), artifact(addr+"/x", sum256("tool"), "x")); err != nil || s.read(t, "x") != "tool" || n.Load() != 2 {
		t.Error(n.Load(), err)
	}
}

// TestRedirectTellsNoSource: a redirect's target does not receive the query of the source,
// which may be a secret.
func TestRedirectTellsNoSource(t *testing.T) {
	var n atomic.Int64
	var received atomic.Value
	to := serve(t, &n, func(w http.ResponseWriter, r *http.Request) {
		received.Store(fmt.Sprint(r.Header, r.URL))
		fmt.Fprint(w, "tool")
	})
	from := serve(t, &n, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to+"/tool", http.StatusFound) })
	if err := newSetup(t, nil).Prepare(t.Context(), artifact(from+"/x?signature=hunter2", sum256("tool"), "x")); err != nil {
		t.Fatal(err)
	}
	if got := received.Load().(string); strings.Contains(got, "hunter2") {
		t.Errorf("the other server receives %s", got)
	}
}

// TestDiskBoundsArtifacts: an artifact that unpacks to more than the task's disk is
// refused.
func TestDiskBoundsArtifacts(t *testing.T) {
	var buf bytes.Buffer
	gz := gzip.NewWriter(&buf)
	tw := tar.NewWriter(gz)
	if err := tw.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: 50 << 20, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := tw.Write(make([]byte, 50<<20)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tw.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	addr := serve(t, &n, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(buf.Bytes()) })
	task := artifact(addr+"/bomb.tgz", sum256(buf.String()), "local/")
	task.Disk = 1 << 20
	err := newSetup(t, nil).Prepare(t.Context(), task)
	if !errors.Is(err, errBudget) || !strings.Contains(err.Error(), "resources.disk") {
		t.Errorf("%d bytes that unpack to 50 MiB: %v", buf.Len(), err)
	}
}

func TestAllowAddr(t *testing.T) {
	for addr, allowed := range map[string]struct{ none, tens, all, link bool }{
		"8.8.8.8":                {true, true, true, true},
		"2606:4700::1111":        {true, true, true, true},
		"127.0.0.1":              {all: true},
		"10.1.2.3":               {tens: true, all: true},
		"::ffff:10.1.2.3":        {tens: true, all: true},
		"192.168.1.1":            {all: true},
		"100.64.0.1":             {all: true},
		"169.254.169.254":        {link: true},
		"::ffff:169.254.169.254": {link: true},
		"64:ff9b::a9fe:a9fe":     {},
		"fd00:ec2::254":          {},
		"168.63.129.16":          {},
		"100.100.100.200":        {},
		"::7f00:1":               {},
		"fe80::1%eth0":           {},
		"0.0.0.0":                {all: true},
		"224.0.0.1":              {all: true},
		"::1":                    {},
		"2002:7f00:1::":          {},
	} {
		for _, c := range []struct {
			allow []string
			want  bool
		}{{nil, allowed.none}, {[]string{"10.0.0.0/8"}, allowed.tens}, {[]string{"0.0.0.0/0"}, allowed.all}, {[]string{"169.254.169.254/32"}, allowed.link}} {
			s := newSetup(t, func(o *Config) { o.ArtifactsAllow = c.allow })
			public := allowed.none
			if err := s.allowAddr(netip.MustParseAddr(addr)); (err == nil) != (c.want || public) {
				t.Errorf("%s with %v: %v", addr, c.allow, err)
			}
		}
	}
}

// TestLargestBoundWorks: with the largest allowed limit an artifact is fetched completely.
func TestLargestBoundWorks(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "in"), []byte("real"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := newSetup(t, func(o *Config) { o.ArtifactsAllow, o.ArtifactsMax = append(o.ArtifactsAllow, folder), math.MaxInt64 })
	if err := s.Prepare(t.Context(), artifact("file://"+folder+"/in", sum256("real"), "local/")); err != nil || s.read(t, "local/in") != "real" {
		t.Errorf("%v", err)
	}
}
