package api

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestModesOfFiles: the mode of a file has ten characters, as in `ls -l`.
func TestModesOfFiles(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("file", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		mode fs.FileMode // fs.ModeDir: make a folder; 0: the file exists
		want string
	}{
		{"folder", fs.ModeDir | fs.ModeSticky | 0o777, "drwxrwxrwt"},
		{"half", fs.ModeDir | fs.ModeSticky | fs.ModeSetgid | 0o760, "drwxrwS--T"},
		{"file", 0o640, "-rw-r-----"},
		{"setuid", fs.ModeSetuid | fs.ModeSetgid | 0o755, "-rwsr-sr-x"},
		{"unused", fs.ModeSetuid | 0o644, "-rwSr--r--"},
		{"pipe", 0, "prw-------"},
		{"link", 0, "lrwxrwxrwx"},
		{"/dev/null", 0, "crw-rw-rw-"},
	} {
		path := c.name
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		var err error
		switch {
		case c.mode.IsDir():
			err = os.Mkdir(path, 0o700)
		case c.mode != 0:
			err = os.WriteFile(path, nil, 0o600)
		}
		if err == nil && c.mode != 0 {
			err = os.Chmod(path, c.mode)
		}
		if err != nil {
			t.Fatal(err)
		}
		fi, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := infoToProto(c.name, fi).GetMode(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
