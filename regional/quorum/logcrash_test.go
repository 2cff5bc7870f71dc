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
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

// TestLogChild is the process that other tests kill, or that gets too little disk. It opens
// a log, prints what the log holds, and appends entries until its end. It prints which
// entries are acknowledged.
func TestLogChild(t *testing.T) {
	dir, kind := os.Getenv("NUSA_TEST_LOG"), LogKind(os.Getenv("NUSA_TEST_KIND"))
	if dir == "" {
		t.Skip("other tests start it")
	}
	smallFiles(t)
	l := reopen(t, kind, dir)
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
	failed := func(err error) bool {
		if err != nil {
			again := l.StoreLog(&raft.Log{Index: next + 1, Term: 1})
			fmt.Println("\nfailed", errors.Is(again, err), err)
		}
		return err != nil
	}
	for {
		next++
		if failed(l.StoreLog(&raft.Log{Index: next, Term: 1, Data: childData(next)})) {
			return
		}
		fmt.Println("\nstored", next)
		if next%64 == 0 {
			first, _ := l.FirstIndex()
			if failed(l.DeleteRange(first, next-20)) {
				return
			}
		}
		if next%17 == 0 { // delete the last entry and store it again
			if failed(l.DeleteRange(next, next)) || failed(l.StoreLog(&raft.Log{Index: next, Term: 2, Data: childData(next)})) {
				return
			}
		}
	}
}

func childData(i uint64) []byte { return bytes.Repeat([]byte{byte(i), 0, 0}, int(i*997%5000)) }

// child runs TestLogChild for a while. It returns the last entry that the process found,
// the last entry that it stored, and the line that it printed when it failed.
func child(t *testing.T, kind LogKind, dir string, alive time.Duration, env ...string) (opened, stored uint64, failed string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestLogChild$")
	cmd.Env = append(append(os.Environ(), "NUSA_TEST_LOG="+dir, "NUSA_TEST_KIND="+string(kind)), env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	opening := true
	for lines := bufio.NewScanner(io.TeeReader(out, &all)); lines.Scan(); {
		line := lines.Text()
		if n, _ := fmt.Sscanf(line, "open %d", &opened); n == 1 && opening {
			opening, stored = false, opened
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
	if opening {
		t.Fatalf("the child did not open the log: %s", all.String())
	}
	return opened, stored, failed
}

// TestLogSurvivesKill: a log is killed repeatedly, even while it creates or removes a file.
// It holds all entries that it acknowledged, and accepts more.
func TestLogSurvivesKill(t *testing.T) {
	forEachLog(t, func(t *testing.T, kind LogKind) {
		dir := t.TempDir()
		r := rand.New(rand.NewPCG(uint64(os.Getpid()), 4))
		var stored uint64
		for range 25 {
			opened, now, failed := child(t, kind, dir, time.Duration(1+r.IntN(80))*time.Millisecond)
			// The process may have been killed after it deleted an entry and before it
			// stored it again.
			if opened < stored && (stored%17 != 0 || opened < stored-1) {
				t.Fatalf("entry %d was acknowledged, and %d is the last", stored, opened)
			}
			if failed != "" {
				t.Fatal(failed)
			}
			stored = now
		}
		t.Logf("%d entries", stored)
	})
}

// TestLogSurvivesFullDisk: on a full disk a log fails, and all later writes fail too. Once
// the disk has room again, a restarted log holds all entries that it acknowledged.
func TestLogSurvivesFullDisk(t *testing.T) {
	forEachLog(t, func(t *testing.T, kind LogKind) {
		dir := t.TempDir()
		_, stored, failed := child(t, kind, dir, 0, "NUSA_TEST_FULL=1")
		if stored == 0 || !strings.HasPrefix(failed, "failed true") {
			t.Fatalf("%d entries, then %q", stored, failed)
		}
		opened, now, failed := child(t, kind, dir, time.Second)
		if opened < stored-1 || opened < stored && stored%17 != 0 || now <= stored || failed != "" {
			t.Fatalf("%d entries were acknowledged; then %d to %d, %q", stored, opened, now, failed)
		}
	})
}
