package driver

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStartFault: the errors of real starts, in words.
func TestStartFault(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	start := func(path string) error {
		p, err := os.StartProcess(path, []string{path}, &os.ProcAttr{})
		if err == nil {
			_, _ = p.Wait()
		}
		return err
	}
	plain := file("plain", "x", 0o644)
	for path, c := range map[string]struct {
		want string
		is   error
	}{
		"/no/such/file":                       {"there is no file /no/such/file on this node: install it there", unix.ENOENT},
		plain + "/x":                          {"a part of its path is no folder", unix.ENOTDIR},
		dir:                                   {dir + " is a folder, not a program", unix.EACCES},
		plain:                                 {plain + " may not be executed by this user: set its permissions (chmod +x)", unix.EACCES},
		file("text", "hello", 0o755):          {"is no program for this machine", unix.ENOEXEC},
		file("script", "#!/no/such\n", 0o755): {"needs another file that this node does not have: the interpreter", unix.ENOENT},
	} {
		err := StartFault(path, start(path))
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, c.is) || strings.Contains(err.Error(), "fork/exec") {
			t.Errorf("%s: %v, want %q", path, err, c.want)
		}
	}
	_, err := exec.LookPath("no-such-program")
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""}, {err, "no program x in the PATH: install it"}, {unix.E2BIG, "are too large for the kernel"},
		{&os.PathError{Op: "fork/exec", Path: "x", Err: unix.EAGAIN}, "cannot start another process now (resource temporarily unavailable)"},
		{errors.New("odd"), "x cannot be started: odd"},
	} {
		if err := StartFault("x", c.err); (err == nil) != (c.err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.err, err, c.want)
		}
	}
}
