package client

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCopyOfFiles: alloc fs cp writes a file or a folder, leaves out what is not a plain file,
// and writes nothing outside of its target.
func TestCopyOfFiles(t *testing.T) {
	f, dir := newFake(t), t.TempDir()
	cp := func(args ...string) (out, errs string, code int) {
		return f.run(context.Background(), "", append([]string{"alloc", "fs", "cp", "11112222", "--addr", f.addr}, args...)...)
	}
	read := func(name, want string) {
		t.Helper()
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	const text = "line 1\nline 2\n"
	if out, errs, code := cp("shared/out.log", filepath.Join(dir, "one")); code != 0 || !strings.HasPrefix(out, "copied 1 file, ") {
		t.Errorf("a file: %d %q %q", code, out, errs)
	}
	read("one", text)
	if _, errs, code := cp("shared/out.log", dir); code != 0 {
		t.Errorf("into a folder: %d %q", code, errs)
	}
	read("out.log", text)
	if _, errs, code := cp("shared", filepath.Join(dir, "all")); code != 0 || !strings.Contains(errs, "shared/pipe is not a plain file: left out") {
		t.Errorf("a folder: %d %q", code, errs)
	}
	read("all/out.log", text)
	if _, err := os.Lstat(filepath.Join(dir, "all", "pipe")); err == nil {
		t.Error("the pipe was copied")
	}
	if _, errs, code := cp("shared/bad", filepath.Join(dir, "bad")); code == 0 || !strings.Contains(errs, "a name that is not one") {
		t.Errorf("a name with a path: %d %q", code, errs)
	}
}
