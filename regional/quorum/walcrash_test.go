package quorum

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

// TestWALChild is the process that the others kill, or give too little disk: it
// opens a log, says what it holds, and appends entries until its end, saying
// which are acknowledged.
func TestWALChild(t *testing.T) {
	dir := os.Getenv("NUSA_TEST_WAL")
	if dir == "" {
		t.Skip("it is started by other tests")
	}
	smallFiles(t)
	l := reopenWAL(t, dir)
	if os.Getenv("NUSA_TEST_FULL") != "" {
		limit := uint64(wal.SegmentSizeBytes) + 3000
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
			t.Fatal(err)
		}
	}
	first, _ := l.FirstIndex()
	next, _ := l.LastIndex()
	for i := max(first, 1); i <= next; i++ {
		var g raft.Log
		if err := l.GetLog(i, &g); err != nil || !bytes.Equal(g.Data, childData(i)) {
			t.Fatalf("entry %d: %v", i, err)
		}
	}
	fmt.Println("\nopen", next)
	for {
		next++
		if err := l.StoreLog(&raft.Log{Index: next, Term: 1, Data: childData(next)}); err != nil {
			again := l.StoreLog(&raft.Log{Index: next, Term: 1})
			fmt.Println("\nfailed", errors.Is(again, err), err)
			return
		}
		fmt.Println("\nstored", next)
		if next%64 == 0 {
			first, _ := l.FirstIndex()
			if err := l.DeleteRange(first, next-20); err != nil {
				t.Fatal(err)
			}
		}
		if next%17 == 0 {
			if err := l.DeleteRange(next, next); err != nil { // and begin it anew
				t.Fatal(err)
			}
			if err := l.StoreLog(&raft.Log{Index: next, Term: 2, Data: childData(next)}); err != nil {
				fmt.Println("\nfailed", errors.Is(l.StoreLog(&raft.Log{Index: next}), err), err)
				return
			}
		}
	}
}

func childData(i uint64) []byte { return bytes.Repeat([]byte{byte(i), 0, 0}, int(i*997%5000)) }

// child runs it for a while and returns what it opened, what it stored last, and
// the line in which it failed.
func child(t *testing.T, dir string, alive time.Duration, env ...string) (opened, stored uint64, failed string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestWALChild$")
	cmd.Env = append(append(os.Environ(), "NUSA_TEST_WAL="+dir), env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	said := false
	for lines := bufio.NewScanner(io.TeeReader(out, &all)); lines.Scan(); {
		line := lines.Text()
		if n, _ := fmt.Sscanf(line, "open %d", &opened); n == 1 && !said {
			said, stored = true, opened
			if alive > 0 {
				defer time.AfterFunc(alive, func() { _ = cmd.Process.Kill() }).Stop()
			}
		}
		_, _ = fmt.Sscanf(line, "stored %d", &stored)
		if strings.HasPrefix(line, "failed") {
			failed = line
		}
	}
	_ = cmd.Wait() // it was killed
	if !said {
		t.Fatalf("it did not open the log: %s", all.String())
	}
	return opened, stored, failed
}

// Killed again and again, also while a file is begun or removed, a log holds
// all that it acknowledged, and takes more.
func TestWALKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	r := rand.New(rand.NewPCG(uint64(os.Getpid()), 4))
	var stored uint64
	for range 25 {
		opened, now, failed := child(t, dir, time.Duration(1+r.IntN(80))*time.Millisecond)
		// The one being deleted and stored again may be missing.
		if opened < stored && (stored%17 != 0 || opened < stored-1) {
			t.Fatalf("entry %d was acknowledged, and %d is the last", stored, opened)
		}
		if failed != "" {
			t.Fatal(failed)
		}
		stored = now
	}
	t.Logf("%d entries", stored)
}

// On a full disk a log fails, keeps failing, and holds what it acknowledged once
// there is room again.
func TestWALDiskFull(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	_, stored, failed := child(t, dir, 0, "NUSA_TEST_FULL=1")
	if stored == 0 || !strings.HasPrefix(failed, "failed true") {
		t.Fatalf("%d entries, then %q", stored, failed)
	}
	opened, now, failed := child(t, dir, 100*time.Millisecond)
	if opened < stored-1 || opened < stored && stored%17 != 0 || now <= stored || failed != "" {
		t.Fatalf("%d entries were acknowledged; then %d to %d, %q", stored, opened, now, failed)
	}
}
