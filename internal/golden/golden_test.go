package golden

import (
	"os"
	"path/filepath"
	"testing"
)

// recorder is a test that only records whether it failed.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Errorf(string, ...any) { r.failed = true }
func (r *recorder) Fatalf(string, ...any) { r.failed = true }

func TestDiffShowsWhatDiffers(t *testing.T) {
	got := Diff("a\nb\nc\nd\ne\nf\n", "a\nb\nc\nd\nE\nf\n")
	if want := "  b\n  c\n  d\n- e\n+ E\n  f\n  "; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := Diff("a", "a\nb"); got != "  a\n+ b" {
		t.Errorf("got\n%s", got)
	}
}

func TestFileFailsOnlyWhereTheTextDiffers(t *testing.T) {
	if Updating() {
		t.Skip("skipped: with -update File writes")
	}
	path := filepath.Join(t.TempDir(), "golden.txt")
	fails := func(got string) bool {
		r := &recorder{TB: t}
		File(r, path, got)
		return r.failed
	}
	if !fails("text") {
		t.Error("a missing file passes")
	}
	if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if fails("text") {
		t.Error("the same text fails")
	}
	if !fails("other") {
		t.Error("another text passes")
	}
}

func TestScriptsPlaysEveryFile(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.txt", "b.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	played := 0
	Scripts(t, filepath.Join(dir, "*.txt"), 2, func(_ *testing.T, text string) string {
		played++
		return text
	})
	if played != 2 {
		t.Errorf("%d of 2 scripts played", played)
	}
}
