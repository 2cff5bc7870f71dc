package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSweep: the next start removes the sockets of a killed agent, also in the temporary
// folder. It removes nothing else.
func TestSweep(t *testing.T) {
	temp := t.TempDir()
	if len(temp) > 60 {
		t.Skip("the temporary folder's path is too long for sockets")
	}
	t.Setenv("TMPDIR", temp)
	sockets := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.MkdirAll(sockets, 0o700); err != nil {
		t.Fatal(err)
	}
	killed := func() *life {
		l := &life{}
		if err := l.makeDir(sockets); err != nil {
			t.Fatal(err)
		}
		if filepath.Dir(l.dir) != temp || len(l.dir) > maxSocket {
			t.Fatalf("the socket is in %s", l.dir)
		}
		if err := os.WriteFile(filepath.Join(l.dir, socketName), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return l
	}
	killed().removeDir()
	if left, _ := os.ReadDir(sockets); len(left) != 0 {
		t.Errorf("after the end: %v", left)
	}
	killed()
	foreign, theirs := killed(), filepath.Join(temp, "theirs")
	if err := os.Mkdir(theirs, 0o700); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(theirs, socketName)
	if err := os.Rename(filepath.Join(foreign.dir, socketName), kept); err != nil {
		t.Fatal(err)
	}
	// The folder is missing, and a link with its name leads to another agent's folder.
	if err := os.Remove(foreign.dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(theirs, foreign.dir); err != nil {
		t.Fatal(err)
	}
	if err := sweep(sockets); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("another's file: %v", err)
	}
	if left, _ := os.ReadDir(temp); len(left) != 2 { // the other agent's folder and the link to it
		t.Errorf("left: %v", left)
	}
	if err := sweep(sockets); err != nil {
		t.Errorf("without a folder: %v", err)
	}
}
