package setup

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestOutput: an output is read as it is, or refused with the reason.
func TestOutput(t *testing.T) {
	t.Parallel()
	write := func(text string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
	}
	for name, c := range map[string]struct {
		make      func(path string) error
		want, err string
	}{
		"none":      {make: func(string) error { return nil }},
		"text":      {make: write("[1, 2]\n"), want: "[1, 2]\n"},
		"largest":   {make: write(strings.Repeat("é", MaxOutput/2)), want: strings.Repeat("é", MaxOutput/2)},
		"too large": {make: write(strings.Repeat("x", MaxOutput+1)), err: "has more than 16384 bytes"},
		"binary":    {make: write("a\xff"), err: "is not UTF-8 text"},
		"link":      {make: func(path string) error { return os.Symlink("/etc/hostname", path) }, err: "is not a plain file"},
		"inner link": {make: func(path string) error {
			if err := write("x")(path + "2"); err != nil {
				return err
			}
			return os.Symlink(filepath.Base(path)+"2", path)
		}, err: "is not a plain file"},
		"folder": {make: func(path string) error { return os.Mkdir(path, 0o700) }, err: "is not a plain file"},
		"pipe":   {make: func(path string) error { return syscall.Mkfifo(path, 0o600) }, err: "is not a plain file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := New(Config{Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.makeFolders(Task{Alloc: "a", Name: "main"}); err != nil {
				t.Fatal(err)
			}
			if err := c.make(filepath.Join(s.TaskDir("a", "main"), OutputFile)); err != nil {
				t.Fatal(err)
			}
			got, err := s.Output("a", "main")
			if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("output %q, error %v; want %q, %q", got, err, c.want, c.err)
			}
			if err := s.RemoveOutput("a", "main"); err != nil {
				t.Fatal(err)
			}
			if got, err := s.Output("a", "main"); got != "" || err != nil {
				t.Fatalf("after its removal: %q, %v", got, err)
			}
		})
	}
	s, err := New(Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.RemoveOutput("gone", "main"); err != nil {
		t.Fatal(err)
	}
}
