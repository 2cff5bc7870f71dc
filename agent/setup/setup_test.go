package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/internal/folder"
)

// secretsDir returns a folder with one secret of the namespace default.
func secretsDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "secrets")
	if err := os.MkdirAll(filepath.Join(dir, "default"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "default", "db"), []byte("hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func withSecrets(t *testing.T) (*Setup, string) {
	t.Helper()
	dir := secretsDir(t)
	s := newSetup(t, func(o *Config) { o.SecretsDir = dir })
	if err := s.secretsProblem(); err != nil {
		t.Skip("no memory for secrets on this host:", err)
	}
	return s, dir
}

func needs(secrets ...string) Task {
	return Task{Alloc: "aaaa", Name: "main", Namespace: "default", Secrets: secrets}
}

// TestSecrets: secrets are in memory, and each is visible to only one task. Each start
// writes them. They are removed at the end, also after the agent was killed.
func TestSecrets(t *testing.T) {
	s, dir := withSecrets(t)
	at := s.SecretsDir("aaaa", "main")
	t.Cleanup(func() { _ = s.Clean("aaaa") })
	task := needs("db")
	task.User = "12345:54321"
	for _, value := range []string{"hunter2", "changed"} {
		if err := os.WriteFile(filepath.Join(dir, "default", "db"), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Admit(task), s.Prepare(t.Context(), task)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(at, "db"))
		if err != nil || string(got) != value {
			t.Errorf("%q: %v", got, err)
		}
	}
	for name, mode := range map[string]fs.FileMode{".": 0o700 | fs.ModeDir, "db": 0o400} {
		fi, err := os.Stat(filepath.Join(at, name))
		if err != nil {
			t.Fatal(err)
		}
		if st := fi.Sys().(*syscall.Stat_t); fi.Mode() != mode || st.Uid != 12345 || st.Gid != 54321 {
			t.Errorf("%s: %v of %d:%d", name, fi.Mode(), st.Uid, st.Gid)
		}
	}
	if !mounted(at) {
		t.Fatal("it is not in memory")
	}
	if err := os.WriteFile(filepath.Join(at, "much"), make([]byte, secretsSize+1), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("more than its bound: %v", err)
	}
	held, err := os.Open(at) // keeps the folder open, like a container that still runs
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	next := newSetup(t, func(o *Config) { *o = s.cfg }) // the agent after a kill
	next.Sweep(func(string) bool { return true })
	if !mounted(at) {
		t.Error("what is live was swept")
	}
	next.Sweep(func(string) bool { return false })
	if _, err := os.Stat(filepath.Dir(at)); !errors.Is(err, fs.ErrNotExist) || mounted(at) {
		t.Errorf("after the sweep: %v", err)
	}
	if names, err := held.Readdirnames(-1); len(names) != 0 {
		t.Errorf("who holds the memory still sees %v: %v", names, err)
	}
	if err := errors.Join(s.Clean("aaaa"), s.Clean("never")); err != nil {
		t.Errorf("cleaned again: %v", err)
	}
}

// TestSecretsOfAContainersUser: if only the image knows the user by name, every
// user in the container can read the secrets.
func TestSecretsOfAContainersUser(t *testing.T) {
	s, _ := withSecrets(t)
	t.Cleanup(func() { _ = s.Clean("aaaa") })
	task := needs("db")
	task.User, task.Contained = "app", true
	if err := s.Prepare(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(filepath.Join(s.SecretsDir("aaaa", "main"), "db")); err != nil || fi.Mode() != 0o444 {
		t.Errorf("%v %v", fi, err)
	}
}

// TestSecretsRefused: a missing secret, or one that other users can read, is a
// reason to decline. The message names the secret and no path.
func TestSecretsRefused(t *testing.T) {
	chmod := func(name string, mode fs.FileMode) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	link := func(t *testing.T, dir string) {
		at := filepath.Join(dir, "default", "db")
		if err := errors.Join(os.Rename(at, at+".real"), os.Symlink("db.real", at)); err != nil {
			t.Fatal(err)
		}
	}
	loose := func(t *testing.T, dir string) {
		if err := os.Rename(filepath.Join(dir, "default", "db"), filepath.Join(dir, "db")); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		change          func(*testing.T, string)
		namespace, name string
		want            string
	}{
		"missing":          {nil, "default", "other", `no such secret: "other" of namespace default`},
		"other namespace":  {nil, "team", "db", `no such secret: "db" of namespace team`},
		"path":             {nil, "default", "../default/db", "no such secret"},
		"readable file":    {chmod("default/db", 0o640), "default", "db", "0640 and must be private"},
		"readable folder":  {chmod("default", 0o755), "default", "db", "0755 and must be private"},
		"readable folders": {chmod(".", 0o750), "default", "db", "0750 and must be private"},
		"link":             {link, "default", "db", "not a plain file"},
		"no namespace":     {loose, ".", "db", "no such secret"},
	} {
		dir := secretsDir(t)
		if c.change != nil {
			c.change(t, dir)
		}
		s := newSetup(t, func(o *Config) { o.SecretsDir = dir })
		task := needs(c.name)
		task.Namespace = c.namespace
		err := s.Admit(task)
		if e := (*Error)(nil); !errors.Is(err, ErrSecretMissing) || !errors.As(err, &e) || e.Field != "secrets[0]" || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := newSetup(t, nil).Admit(needs("db")); !errors.Is(err, ErrSecretMissing) || !strings.Contains(err.Error(), "--secrets-dir") {
		t.Errorf("a node without secrets: %v", err)
	}
}

// TestCanSecrets: a node reports whether its jobs can have secrets before a job needs one.
// It reports again after each change by its operator. The report contains no path.
func TestCanSecrets(t *testing.T) {
	s, dir := withSecrets(t)
	says := func(s *Setup, want string) {
		t.Helper()
		if err := s.CanSecrets(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), dir)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	says(newSetup(t, nil), "this node has none: set --secrets-dir of its agent")
	says(s, "")
	for _, mode := range []fs.FileMode{0o750, 0o700} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		says(s, map[fs.FileMode]string{0o750: "--secrets-dir: other users may read it"}[mode])
	}
	if err := os.Rename(dir, dir+"-linked"); err != nil {
		t.Fatal(err)
	}
	says(s, "--secrets-dir: no such file or directory")
	if err := os.Symlink(dir+"-linked", dir); err != nil {
		t.Fatal(err)
	}
	says(s, "") // the folder is checked at each use
	if err := s.Admit(needs("db")); err != nil {
		t.Error(err)
	}
}

func TestTemplates(t *testing.T) {
	s := newSetup(t, nil)
	task := Task{Alloc: "aaaa", Name: "main", Templates: []Template{{To: "a/b/conf", Text: "one", Mode: 0o440}, {To: "run", Text: "x", Mode: 0o755}}}
	outside := filepath.Join(t.TempDir(), "outside")
	for range 2 { // every start writes them again
		if err := s.Prepare(t.Context(), task); err != nil {
			t.Fatal(err)
		}
		for name, mode := range map[string]fs.FileMode{"a/b/conf": 0o440, "run": 0o755, "a/b": 0o755 | fs.ModeDir} {
			if fi, err := os.Lstat(filepath.Join(s.TaskDir("aaaa", "main"), name)); err != nil || fi.Mode() != mode {
				t.Errorf("%s: %v %v", name, fi, err)
			}
		}
		// A task may leave a link where the next start writes.
		conf := filepath.Join(s.TaskDir("aaaa", "main"), "a/b/conf")
		if err := errors.Join(os.Remove(conf), os.Symlink(outside, conf)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(outside); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("written through a link: %v", err)
	}
	// A task may leave a link in place of a folder.
	folder := filepath.Join(s.TaskDir("aaaa", "main"), "a")
	if err := errors.Join(os.RemoveAll(folder), os.Symlink(t.TempDir(), folder)); err != nil {
		t.Fatal(err)
	}
	if err := s.Prepare(t.Context(), task); err == nil || !strings.Contains(err.Error(), "templates[0].to") {
		t.Errorf("a folder that leads out: %v", err)
	}
}

func TestVolumesAllowIsReportedWhole(t *testing.T) {
	many := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf("/srv/%02d", i))
		}
		return out
	}
	for _, c := range []struct {
		allow, want []string
		reported    bool
	}{
		{nil, nil, true},
		{[]string{"/srv/", "/a/../mnt", "/srv"}, []string{"/mnt", "/srv"}, true},
		{append(many(maxReported), "/srv/00/"), many(maxReported), true},
		{many(maxReported + 1), nil, false},
		{[]string{"/srv", "/" + strings.Repeat("x", maxReportedPath)}, nil, false},
		{[]string{"/srv", "/\xff"}, nil, false},
	} {
		got, reported := newSetup(t, func(o *Config) { o.VolumesAllow = c.allow }).VolumesAllow()
		if reported != c.reported || reported && !slices.Equal(got, c.want) {
			t.Errorf("%q: reported %q, %v", c.allow, got, reported)
		}
	}
}

func TestVolumes(t *testing.T) {
	base := t.TempDir()
	srv, other := filepath.Join(base, "srv"), filepath.Join(base, "other")
	for _, dir := range []string{filepath.Join(srv, "api"), other, filepath.Join(base, "srv2"), filepath.Join(base, "run"), filepath.Join(srv, "agent")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"in": "api", "out": other, "up": "../other"} {
		if err := os.Symlink(to, filepath.Join(srv, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		allow        string
		source, want string // resolved path, or words of the error
	}{
		{srv, srv + "/api", srv + "/api"},
		{base, srv, "is a folder of the agent"},
		{srv, srv + "/in", srv + "/api"},
		{"/", srv + "/out", other},
		{srv, srv + "/out", "leads out"},
		{srv, srv + "/up", "leads out"},
		{srv, srv + "/up/../../other", "is not below"},
		{srv, base + "/srv2", "is not below"},
		{srv, other, "is not below"},
		{srv, srv + "/absent", "no such file"},
		{base, base + "/run", "is a folder of the agent"},
		{srv, srv + "/agent", "is a folder of the agent"},
		{srv, srv, "is a folder of the agent"},
		{srv, srv + "/api/..", "is a folder of the agent"},
		{srv, "relative", "is not below"},
		{"", srv, "--volumes-allow"},
	} {
		s := newSetup(t, func(o *Config) {
			o.Private = []string{srv + "/agent", base + "/run/later"}
			if c.allow != "" {
				o.VolumesAllow = []string{c.allow}
			}
		})
		got, err := s.Volumes([]driver.Volume{{Name: "data", Source: c.source}})
		reported, ok := s.VolumesAllow()
		if by := folder.Allowed(c.source, reported); !ok || by != (err == nil || !strings.Contains(err.Error(), "--volumes-allow") || strings.Contains(err.Error(), "a link in")) {
			t.Errorf("%s below %q: by the reported folders, %v, it is allowed: %v; here %v", c.source, c.allow, reported, by, err)
		}
		switch {
		case strings.HasPrefix(c.want, "/"):
			if err != nil || got[0].Source != c.want {
				t.Errorf("%s below %s: %v %v", c.source, c.allow, got, err)
			}
		case !errors.Is(err, driver.ErrNotAllowed) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "volumes.data.source"):
			t.Errorf("%s below %s: %v, want %s", c.source, c.allow, err, c.want)
		}
	}
}

func TestConfig(t *testing.T) {
	for want, c := range map[string]Config{
		"volumes-allow":   {VolumesAllow: []string{"srv"}},
		"artifacts-allow": {ArtifactsAllow: []string{"10.0.0.0"}},
		"secrets-dir":     {SecretsDir: "secrets"},
	} {
		if _, err := New(c); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if m, err := Mode("0750"); m != 0o750 || err != nil {
		t.Error(m, err)
	}
	if _, err := Mode("4755"); err == nil {
		t.Error("setuid")
	}
}

func TestSize(t *testing.T) {
	s := newSetup(t, nil)
	if err := s.Prepare(t.Context(), Task{Alloc: "aaaa", Name: "main", Templates: []Template{{To: "x", Text: strings.Repeat("x", 100_000), Mode: 0o644}}}); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Size(t.Context(), "aaaa"); n < 100_000 || n > 200_000 || err != nil {
		t.Errorf("%d bytes: %v", n, err)
	}
	if err := s.Remove("aaaa"); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Size(t.Context(), "aaaa"); n != 0 || err != nil {
		t.Errorf("%d bytes of nothing: %v", n, err)
	}
}

// TestSizeOfNothing: the size of a removed folder is not cached.
func TestSizeOfNothing(t *testing.T) {
	s, err := New(Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if size, err := s.Size(t.Context(), "gone"); size != 0 || err != nil || len(s.sizes) != 0 {
		t.Errorf("%d bytes, %v, remembered %v", size, err, s.sizes)
	}
}
