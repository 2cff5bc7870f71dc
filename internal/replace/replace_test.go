package replace_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nusa-scheduler/nusa/internal/replace"
)

// TestFileTrustsNoLeftover: only the owner can read the file, whatever has the name of the temporary file.
func TestFileTrustsNoLeftover(t *testing.T) {
	for name, leave := range map[string]func(path, other string) error{
		"nothing":         func(string, string) error { return nil },
		"a readable file": func(path, _ string) error { return os.WriteFile(path, []byte("left"), 0o644) },
		"a link":          func(path, other string) error { return os.Symlink(other, path) },
		"a hard link":     func(path, other string) error { return os.Link(other, path) },
	} {
		dir := t.TempDir()
		path, other := filepath.Join(dir, "key.pem"), filepath.Join(dir, "other")
		if err := os.WriteFile(other, []byte("other"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := leave(path+".new", other); err != nil {
			t.Fatal(err)
		}
		if err := replace.File(path, []byte("key")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: mode %v, %v", name, info, err)
		}
		for file, want := range map[string]string{path: "key", other: "other"} {
			if text, err := os.ReadFile(file); err != nil || string(text) != want {
				t.Errorf("%s: %s has %q, %v", name, file, text, err)
			}
		}
	}
}
