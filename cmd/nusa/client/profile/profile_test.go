package profile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/profile"
)

const addr = "127.0.0.1:7600"

func home(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	return dir
}

func write(t *testing.T, p profile.Profile) {
	t.Helper()
	if err := profile.Write(addr, p); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T) *profile.Profile {
	t.Helper()
	p, err := profile.Read(addr)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestProfile(t *testing.T) {
	dir := home(t)
	if p := read(t); p != nil || p.HasIdentity() {
		t.Fatalf("a profile that nobody wrote: %v", p)
	}
	login := profile.Profile{Roots: []byte("roots"), Cert: []byte("cert"), Key: []byte("key"), Token: "secret"}
	write(t, login)
	p := read(t)
	if string(p.Roots) != "roots" || !p.HasIdentity() || p.Token != "secret" || p.Dir != filepath.Join(dir, "nusa", "profiles", "127.0.0.1_7600") {
		t.Errorf("%+v", p)
	}
	for path, mode := range map[string]os.FileMode{"": 0o700, "roots.pem": 0o600, "cert.pem": 0o600, "key.pem": 0o600, "token": 0o600} {
		if info, err := os.Stat(filepath.Join(p.Dir, path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%q: %v, %v", path, info, err)
		}
	}
	write(t, profile.Profile{Roots: []byte("roots"), Token: "other"}) // replaces all files
	if p := read(t); p.HasIdentity() || p.Token != "other" {
		t.Errorf("%+v", p)
	}
	if err := profile.Remove(addr, profile.Profile{Roots: []byte("roots")}); err != nil || read(t) != nil {
		t.Errorf("the profile is still there: %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "nusa", "profiles")); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// TestTemporary: a temporary profile removes only itself, and brings back the profile before it.
func TestTemporary(t *testing.T) {
	home(t)
	login := profile.Profile{Roots: []byte("login"), Token: "mine"}
	first := profile.Profile{Roots: []byte("first"), Temporary: "nusa dev in /tmp/1"}
	second := profile.Profile{Roots: []byte("second"), Temporary: "nusa dev in /tmp/2"}
	write(t, login)
	write(t, first)
	write(t, second) // the first one was killed
	for _, step := range []struct {
		remove profile.Profile
		want   string
	}{{first, "second"}, {second, "login"}, {second, "login"}} {
		if err := profile.Remove(addr, step.remove); err != nil {
			t.Fatal(err)
		}
		if p := read(t); p == nil || string(p.Roots) != step.want {
			t.Errorf("%+v, want %s", p, step.want)
		}
	}
	if read(t).Token != "mine" {
		t.Error("the token is lost")
	}
}

func TestPath(t *testing.T) {
	dir := home(t)
	for addr, want := range map[string]string{
		"127.0.0.1:7600": "127.0.0.1_7600", "localhost:7600": "127.0.0.1_7600", "[::1]:7600": "--1_7600", "G.example:1": "g.example_1",
		"../x:7600": "%2e.%2fx_7600", "a_b:1": "a%5fb_1",
	} {
		if got, err := profile.Path(addr); err != nil || got != filepath.Join(dir, "nusa", "profiles", want) {
			t.Errorf("%s: %s, %v, want %s", addr, got, err, want)
		}
	}
	for _, bad := range []string{"", "host", ":7600", "host:"} {
		if got, err := profile.Path(bad); err == nil {
			t.Errorf("%q: %s", bad, got)
		}
	}
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("HOME", "")
	if p, err := profile.Read(addr); p != nil || err != nil {
		t.Errorf("without a home: %v, %v", p, err)
	}
}

func TestReadableSecrets(t *testing.T) {
	home(t)
	write(t, profile.Profile{Roots: []byte("roots"), Token: "secret"})
	dir, err := profile.Path(addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "token"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := profile.Read(addr); err == nil || !strings.Contains(err.Error(), "run chmod 600") {
		t.Errorf("%v", err)
	}
}
