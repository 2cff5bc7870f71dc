package driver_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// TestReplaceFileTrustsNoLeftover: only the owner can read a file that was replaced, even if a
// file or a link has the name of the temporary file.
func TestReplaceFileTrustsNoLeftover(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "secret"), filepath.Join(dir, "other")
	for name, leave := range map[string]func() error{
		"a readable file": func() error { return os.WriteFile(path+".new", []byte("a longer text that was left"), 0o644) },
		"a link":          func() error { return os.Symlink(other, path+".new") },
	} {
		if err := os.WriteFile(other, []byte("other"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := leave(); err != nil {
			t.Fatal(err)
		}
		if err := driver.ReplaceFile(path, []byte("key")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if info, err := os.Lstat(path); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
		for file, want := range map[string]string{path: "key", other: "other"} {
			if text, err := os.ReadFile(file); err != nil || string(text) != want {
				t.Errorf("%s: %s has %q, %v", name, file, text, err)
			}
		}
	}
}
