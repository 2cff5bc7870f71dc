package golden

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Updating reports whether the test runs with -update.
func Updating() bool { return *update }

// File fails the test if got is not the text of the file, and prints the lines that
// differ. With -update it writes got to the file instead.
func File(t testing.TB, path, got string) {
	t.Helper()
	want, err := os.ReadFile(path)
	if err != nil && !(Updating() && errors.Is(err, fs.ErrNotExist)) {
		t.Fatalf("%v: go test -update writes a new golden file", err)
	}
	if got == string(want) && err == nil {
		return
	}
	if Updating() {
		Write(t, path, got)
		return
	}
	t.Errorf("%s differs (-update rewrites the file), - is the file, + is new:\n%s", path, Diff(string(want), got))
}

// Write replaces a golden file.
func Write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Scripts runs a subtest for each file that matches the pattern. A file holds a script:
// input, and the recorded results. play executes the input and returns the text of the
// script with the present results. The test fails if fewer than atLeast files match.
func Scripts(t *testing.T, pattern string, atLeast int, play func(t *testing.T, text string) string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < atLeast {
		t.Fatalf("%d files match %s, want at least %d", len(files), pattern, atLeast)
	}
	for _, file := range files {
		base := filepath.Base(file)
		t.Run(strings.TrimSuffix(base, filepath.Ext(base)), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			File(t, file, play(t, string(text)))
		})
	}
}
