package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestRunsIn: entries of runs are found, and other entries are ignored.
func TestRunsIn(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a1/web.1.json", "a1/web.1.gate", "a1/web.2.json", "a1/a.b.10.json", "a1/web.0.json", "a1/web.x.json", "a1/web.01.json", "a1/.1.json", "b2/db.1.json", "b2/db.1.json.tmp"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "owner"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := RunsIn(dir, ".json")
	if text := fmt.Sprint(got); err != nil || text != "[a1/a.b/10 a1/web/1 a1/web/2 b2/db/1]" {
		t.Errorf("%s, %v", text, err)
	}
	got, err = RunsIn(filepath.Join(dir, "none"), "")
	if err != nil || len(got) > 0 {
		t.Errorf("a folder that does not exist has %v, %v", got, err)
	}
}
