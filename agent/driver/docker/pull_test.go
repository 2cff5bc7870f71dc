package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/authconfig"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest"
)

// fakeEngine has images. It records each pull with its password, and makes no container.
type fakeEngine struct {
	host string

	mu     sync.Mutex
	images map[string]bool
	pulls  []string // "IMAGE USER:PASSWORD"
	refuse string   // the registry's error for every pull
	// Containers of the engine by id. The fake engine removes containers but makes none.
	containers map[string]bool
	info       map[string]any
}

func newFakeEngine(t *testing.T, images ...string) *fakeEngine {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	e := &fakeEngine{host: "unix://" + path, images: map[string]bool{}}
	for _, i := range images {
		e.images[i] = true
	}
	s := &http.Server{Handler: e}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-done })
	return e
}

func (e *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	path := r.URL.Path
	if rest, ok := strings.CutPrefix(path, "/v1."); ok {
		_, path, _ = strings.Cut(rest, "/")
		path = "/" + path
	}
	w.Header().Set("Api-Version", "1.45")
	answer := func(code int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(v)
	}
	image, inspect := strings.CutSuffix(strings.TrimPrefix(path, "/images/"), "/json")
	switch {
	case path == "/_ping":
	case path == "/version":
		answer(200, map[string]string{"Arch": "amd64"})
	case path == "/info" && e.info != nil:
		answer(200, e.info)
	case path == "/containers/json":
		answer(200, []any{})
	case path == "/images/create":
		name := r.URL.Query().Get("fromImage") + ":" + r.URL.Query().Get("tag")
		who := ""
		if a, err := authconfig.Decode(r.Header.Get("X-Registry-Auth")); err == nil && a.Username != "" {
			who = a.Username + ":" + a.Password
		}
		e.pulls = append(e.pulls, strings.TrimSpace(name+" "+who))
		if e.refuse != "" {
			answer(500, map[string]string{"message": e.refuse})
			return
		}
		e.images[name] = true
		answer(200, map[string]string{"status": "done"})
	case inspect && e.images[image], inspect && e.images["docker.io/library/"+image]:
		answer(200, map[string]any{"Id": "sha256:1", "Architecture": "amd64"})
	case inspect:
		answer(404, map[string]string{"message": "No such image: " + image})
	case r.Method == http.MethodDelete && strings.HasPrefix(path, "/containers/"):
		delete(e.containers, strings.TrimPrefix(path, "/containers/"))
		w.WriteHeader(204)
	case path == "/containers/create":
		answer(500, map[string]string{"message": "makes none"})
	default:
		answer(501, map[string]string{"message": "unknown: " + path})
	}
}

const authFile = `{"auths": {
	"registry.example:5000": {"auth": "YWxpY2U6czNjcmV0OndpdGg6Y29sb25z"},
	"https://index.docker.io/v1/": {"username": "bob", "password": "hunter2"}}}`

func writeAuth(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestPull checks which registry is asked by each policy, and with which password.
func TestPull(t *testing.T) {
	const here, elsewhere = "docker.io/library/here:1", "registry.example:5000/team/app:1"
	for name, c := range map[string]struct {
		image, policy, refuse string
		pulls                 string
		kind                  error
		words                 string
	}{
		"there, if absent":  {here, "if_absent", "", "", driver.ErrStart, "makes none"},
		"there, never":      {here, "never", "", "", driver.ErrStart, "makes none"},
		"there, always":     {here, "always", "", here + " bob:hunter2", driver.ErrStart, "makes none"},
		"absent, if absent": {elsewhere, "if_absent", "", elsewhere + " alice:s3cret:with:colons", driver.ErrStart, "makes none"},
		"absent, never":     {elsewhere, "never", "", "", driver.ErrInvalid, "config.pull is never"},
		"absent, always":    {elsewhere, "always", "", elsewhere + " alice:s3cret:with:colons", driver.ErrStart, "makes none"},
		"no password":       {"quay.example/x:1", "if_absent", "", "quay.example/x:1", driver.ErrStart, "makes none"},
		"refused":           {here, "always", "unauthorized: wrong password", here + " bob:hunter2", driver.ErrStart, "could not be pulled: check that this node reaches the registry"},
	} {
		e := newFakeEngine(t, here)
		e.refuse = c.refuse
		d, err := New(Config{Dir: t.TempDir(), Host: e.host, Auth: writeAuth(t, authFile, 0o600)})
		if err != nil {
			t.Fatal(err)
		}
		err = d.Start(t.Context(), driver.Task{ID: driver.ID{Alloc: "a", Task: "t", Run: 1}, Dir: t.TempDir(), Config: map[string]any{"image": c.image, "pull": c.policy}})
		if got := strings.Join(e.pulls, ", "); got != c.pulls {
			t.Errorf("%s: pulled %q, want %q", name, got, c.pulls)
		}
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), c.refuse) {
			t.Errorf("%s: %v, want %q and %q", name, err, c.words, c.refuse)
		}
		for _, secret := range []string{"hunter2", "s3cret"} {
			if strings.Contains(fmt.Sprint(err), secret) {
				t.Errorf("%s: a password in %v", name, err)
			}
		}
		d.Close()
	}
}

// TestAuthFile: an error in the file is reported at the start without quoting the file. A
// changed file is read again.
func TestAuthFile(t *testing.T) {
	for words, c := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"chmod go= it":             {authFile, 0o640},
		"not JSON in the format":   {`{"auths": {"x": {"auth": hunter2}}}`, 0o600},
		"not the base64 of USER":   {`{"auths": {"x": {"auth": "hunter2"}}}`, 0o600},
		"neither auth nor":         {`{"auths": {"x": {"password": "hunter2"}}}`, 0o600},
		"which the agent does not": {`{"credsStore": "desktop"}`, 0o600},
	} {
		_, err := New(Config{Dir: t.TempDir(), Auth: writeAuth(t, c.text, c.mode)})
		if err == nil || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v, want %q", err, words)
		}
	}
	path := writeAuth(t, `{}`, 0o600)
	d, err := New(Config{Dir: t.TempDir(), Auth: path})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, want := range []bool{false, true} {
		if got, err := d.images.auth("nginx"); err != nil || (got != "") != want {
			t.Errorf("%q, %v", got, err)
		}
		if err := os.WriteFile(path, []byte(authFile), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForbidden: if this user may not use the socket, the fingerprint says what to do.
func TestForbidden(t *testing.T) {
	drivertest.Unprivileged(t, func(t *testing.T) {
		d, err := New(Config{Dir: t.TempDir(), Host: "unix://" + drivertest.ForbiddenSocket(t)})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if f := d.Fingerprint(t.Context()); f.Healthy || !strings.Contains(f.Message, "run the agent as root, or add its user to the group") {
			t.Errorf("%+v", f)
		}
		err = d.Start(t.Context(), driver.Task{ID: driver.ID{Alloc: "a", Task: "t", Run: 1}, Config: map[string]any{"image": "x"}})
		if !errors.Is(err, driver.ErrStart) || !errors.Is(err, driver.ErrForbidden) {
			t.Error(err)
		}
	})
}

// TestRemoveOfEndedRunRemovesItsContainer: a stopped container stays until its run is
// removed.
func TestRemoveOfEndedRunRemovesItsContainer(t *testing.T) {
	e := newFakeEngine(t)
	e.containers = map[string]bool{"c1": true, "other": true}
	d, err := New(Config{Dir: t.TempDir(), Host: e.host})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	id := driver.ID{Alloc: "a", Task: "t", Run: 1}
	if _, err := d.records.change(id, func(rec *record) {
		rec.Container, rec.Begun, rec.End = "c1", true, &driver.Status{State: driver.Ended, Cause: driver.CauseStopped}
	}); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, known := d.records.get(id); known || e.containers["c1"] || !e.containers["other"] {
		t.Errorf("record left: %t, containers left: %v", known, e.containers)
	}
}

// TestPullErrorSaysWhatToDo: a failed pull names the image, the setting and the advice.
func TestPullErrorSaysWhatToDo(t *testing.T) {
	e := newFakeEngine(t)
	d, err := New(Config{Dir: t.TempDir(), Host: e.host})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, c := range []struct {
		err   error
		kind  error
		words []string
	}{
		{cerrdefs.ErrNotFound.WithMessage("manifest for x:1 not found"), driver.ErrInvalid, []string{"task cannot run: config.image: ", `no image "x:1"`, "name and tag", "--docker-auth", "manifest for x:1 not found"}},
		{errors.New("no such host"), driver.ErrStart, []string{"task did not start: config.image: ", `"x:1" could not be pulled`, "reaches the registry", "no such host"}},
	} {
		got := d.images.pullError("x:1", c.err)
		if !errors.Is(got, c.kind) {
			t.Errorf("%v is not a %v", got, c.kind)
		}
		for _, w := range c.words {
			if !strings.Contains(got.Error(), w) {
				t.Errorf("%v lacks %q", got, w)
			}
		}
	}
}
