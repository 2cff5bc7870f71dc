package slim

import (
	"os"
	"path/filepath"
	"testing"
)

// TestExecutableIsWrittenOnceAndReplaced: the executable is written once. It is replaced if
// it differs, and refused if it cannot be started.
func TestExecutableIsWrittenOnceAndReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	good, other := []byte("#!/bin/sh\nexit 2\n"), []byte("#!/bin/sh\n# newer\nexit 2\n")
	for i, c := range [][]byte{good, good, other} {
		got, err := argv(c, dir)
		if err != nil || len(got) != 1 {
			t.Fatalf("%d: %q, %v", i, got, err)
		}
		if text, err := os.ReadFile(got[0]); err != nil || string(text) != string(c) {
			t.Errorf("%d: it is %q, %v", i, text, err)
		}
		if fi, err := os.Stat(got[0]); err != nil || fi.Mode().Perm() != 0o755 {
			t.Errorf("%d: its mode is %v, %v", i, fi.Mode(), err)
		}
		if err := os.Chmod(got[0], 0o700); err != nil { // earlier versions set this mode
			t.Fatal(err)
		}
	}
	for name, c := range map[string][]byte{"none": nil, "no executable": []byte("\x7fELF"), "another's": []byte("#!/bin/sh\nexit 0\n")} {
		if got, err := argv(c, dir); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}
