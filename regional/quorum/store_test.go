package quorum

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func openTestStores(t *testing.T, dir string, kind LogKind) stores {
	t.Helper()
	s, err := openStores(dir, kind, quiet())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestStoresOnDisk: after a restart, the entries that were stored before are there, and
// entries that a new leader overruled are gone.
func TestStoresOnDisk(t *testing.T) {
	forEachLog(t, func(t *testing.T, kind LogKind) {
		dir := t.TempDir()
		s := openTestStores(t, dir, kind)
		if _, err := openStores(dir, kind, quiet()); !errors.Is(err, ErrInUse) {
			t.Fatalf("opened twice: %v", err)
		}
		var logs []*raft.Log
		for i := range uint64(20) {
			logs = append(logs, &raft.Log{Index: i + 1, Term: 1, Data: make([]byte, 1<<20)})
		}
		for len(logs) > 0 {
			if err := s.log.StoreLogs(logs[:2]); err != nil {
				t.Fatal(err)
			}
			logs = logs[2:]
		}
		if n := s.disk.newest(3 << 20); n != 3 {
			t.Errorf("3 MiB are the newest %d entries, want 3", n)
		}
		if err := errors.Join(s.stable.SetUint64([]byte("CurrentTerm"), 7), s.log.DeleteRange(18, 20), s.close()); err != nil {
			t.Fatal(err)
		}

		half := filepath.Join(dir, "snapshots", "7-9-1.tmp") // a snapshot during which the disk became full
		if err := os.MkdirAll(filepath.Join(half, "state"), 0o700); err != nil {
			t.Fatal(err)
		}
		s = openTestStores(t, dir, kind)
		defer s.close()
		if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("an unfinished snapshot stays: %v", err)
		}
		last, err := s.log.LastIndex()
		if err != nil || last != 17 {
			t.Fatalf("the last entry is %d (%v), want 17", last, err)
		}
		var entry raft.Log
		if err := s.log.GetLog(17, &entry); err != nil || len(entry.Data) != 1<<20 {
			t.Fatalf("entry 17 has %d bytes (%v)", len(entry.Data), err)
		}
		if term, err := s.stable.GetUint64([]byte("CurrentTerm")); err != nil || term != 7 {
			t.Fatalf("the term is %d (%v), want 7", term, err)
		}
		if _, err := s.stable.Get([]byte("none")); err == nil || err.Error() != "not found" { // Raft compares the text
			t.Fatalf("the error of a missing key is %v", err)
		}
		if !errors.Is(s.log.GetLog(18, &entry), raft.ErrLogNotFound) {
			t.Fatal("entry 18 is still there")
		}
	})
}

// raftBoltDB returns a file raft.db that raft-boltdb wrote. It has term 7 and the entries 3
// to 300.
func raftBoltDB(t *testing.T) []byte {
	f, err := os.Open("testdata/raft.db.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// checkStores compares the log with an oracle and the term with 7. Then it closes the
// stores.
func checkStores(t *testing.T, s stores, want oracle, what string) {
	t.Helper()
	if diff := want.differs(s.log); diff != "" {
		t.Fatalf("%s: %s", what, diff)
	}
	if term, err := s.stable.GetUint64([]byte("CurrentTerm")); err != nil || term != 7 {
		t.Fatalf("%s: the term is %d (%v), want 7", what, term, err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
}

// TestStoresMigrateRaftDB: a directory with everything in raft.db is migrated with
// everything that Raft needs, even when the first attempt was interrupted. The versions
// that wrote such a directory then refuse it.
func TestStoresMigrateRaftDB(t *testing.T) {
	forEachLog(t, func(t *testing.T, kind LogKind) {
		dir := t.TempDir()
		l := layout{dir, quiet()}
		if err := os.WriteFile(l.marker(), raftBoltDB(t), 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := openBolt(l.marker())
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.DeleteRange(100, 100), db.Close()); err != nil { // a gap
			t.Fatal(err)
		}
		old, err := os.ReadFile(l.marker())
		if err != nil {
			t.Fatal(err)
		}
		var want oracle
		for i := uint64(101); i <= 300; i++ {
			want = append(want, raft.Log{Index: i, Term: 2, Data: bytes.Repeat([]byte{byte(i)}, int(i)*10), AppendedAt: time.Unix(1_700_000_000, int64(i))})
		}
		for _, cut := range []string{"", "before the marker", "before the link", "in the copy"} {
			if cut != "" {
				if err := errors.Join(os.Remove(l.marker()), os.WriteFile(l.marker(), old, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			switch cut {
			case "before the link":
				err = os.Remove(l.stable())
			case "in the copy":
				log := reopen(t, kind, dir)
				err = errors.Join(os.Remove(l.stable()), log.DeleteRange(150, 300), log.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
			checkStores(t, openTestStores(t, dir, kind), want, "cut "+cut)
		}
		if _, err := openBolt(l.marker()); err == nil {
			t.Fatal("an earlier version would begin a new log")
		}
		s := openTestStores(t, dir, kind)
		more := entries(rand.New(rand.NewPCG(5, 5)), want.next(), 3, 3)
		if err := errors.Join(s.log.StoreLogs(more), s.close()); err != nil {
			t.Fatal(err)
		}
		checkStores(t, openTestStores(t, dir, kind), want.plus(more), "later")
	})
}

// directoryOf202611 unpacks a directory that the version of November 2026 wrote. That
// version stored term and vote in a bbolt file with a format of its own. The directory has
// the entries 5 to 40 in the write-ahead log, made with seed 11, and a vote in term 7.
func directoryOf202611(t *testing.T) (dir string, want oracle) {
	t.Helper()
	dir = t.TempDir()
	f, err := os.Open("testdata/wal_2026-11.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for in := tar.NewReader(z); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, filepath.Clean(h.Name))
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(to, 0o700)
		} else {
			var content []byte
			content, err = io.ReadAll(in)
			if err == nil {
				err = os.WriteFile(to, content, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r := rand.New(rand.NewPCG(11, 11))
	for want.next() <= 40 {
		logs := entries(r, want.next(), 7, 4)
		for _, g := range logs {
			if g.Index <= 12 {
				g.Term = 6
			}
			g.Data = g.Data[:min(len(g.Data), 600)]
		}
		want = want.plus(logs)
	}
	return dir, want[4:]
}

// TestStoresTakeOverDirectoryOf202611: a directory of November 2026 is used as it is. It is
// converted when the operator chooses the other kind of log.
func TestStoresTakeOverDirectoryOf202611(t *testing.T) {
	forEachLog(t, func(t *testing.T, kind LogKind) {
		dir, want := directoryOf202611(t)
		s := openTestStores(t, dir, kind)
		if kind == BoltDB && s.converted != WAL || kind == WAL && s.converted != "" {
			t.Errorf("converted from %q", s.converted)
		}
		if vote, err := s.stable.Get([]byte("LastVoteCand")); err != nil || string(vote) != "10.0.0.1:7611" {
			t.Errorf("the vote is %q (%v)", vote, err)
		}
		checkStores(t, s, want, "taken over")
	})
}

// TestStoresConvertLog: another choice of log converts the directory, there and back. An
// interrupted conversion begins again.
func TestStoresConvertLog(t *testing.T) {
	forEachLog(t, func(t *testing.T, kind LogKind) {
		dir, want := directoryOf202611(t)
		l := layout{dir, quiet()}
		checkStores(t, openTestStores(t, dir, kind), want, "first")
		other := kind.other()
		half := reopen(t, other, dir) // as after an interruption
		if err := errors.Join(half.StoreLog(&raft.Log{Index: 5, Term: 1}), half.Close()); err != nil {
			t.Fatal(err)
		}
		checkStores(t, openTestStores(t, dir, kind), want, "after a conversion that was cut short")
		if l.exists(other) {
			t.Errorf("what a conversion left of %s stays", other)
		}
		for _, to := range []LogKind{other, kind, other} {
			s := openTestStores(t, dir, to)
			if s.converted != to.other() {
				t.Errorf("converted from %q to %s", s.converted, to)
			}
			more := entries(rand.New(rand.NewPCG(6, want.next())), want.next(), 7, 3)
			if err := s.log.StoreLogs(more); err != nil {
				t.Fatal(err)
			}
			want = want.plus(more)
			checkStores(t, s, want, "converted to "+string(to))
			if have, err := l.marked(); have != to || err != nil || l.exists(to.other()) {
				t.Errorf("after the conversion to %s: marked %q (%v)", to, have, err)
			}
		}
	})
}

// TestStoresRefuseToConvertDamagedLog: a directory whose log cannot be read is not
// converted and stays as it is.
func TestStoresRefuseToConvertDamagedLog(t *testing.T) {
	dir, _ := directoryOf202611(t)
	l := layout{dir, quiet()}
	name, content := tail(t, WAL, dir)
	content[200] ^= 1
	if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := openStores(dir, BoltDB, quiet())
	if err == nil || !strings.Contains(err.Error(), "--raft-log wal") {
		t.Errorf("the error is %v", err)
	}
	if have, err := l.marked(); have != WAL || err != nil {
		t.Errorf("the directory is marked %q (%v)", have, err)
	}
}

// TestStoresWithoutPart: a lost log, or a lost vote, is an error and not replaced by a new
// one. A lost marker is written again.
func TestStoresWithoutPart(t *testing.T) {
	forEachLog(t, func(t *testing.T, kind LogKind) {
		file := map[LogKind]string{WAL: "log", BoltDB: "log.db"}[kind]
		for _, part := range []string{file, "stable.db", "raft.db"} {
			dir := t.TempDir()
			s := openTestStores(t, dir, kind)
			if err := errors.Join(s.log.StoreLog(&raft.Log{Index: 1, Term: 1}), s.close()); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(filepath.Join(dir, part)); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				s, err := openStores(dir, kind, quiet())
				if part == "raft.db" {
					if err != nil {
						t.Fatal(err)
					}
					if diff := (oracle{{Index: 1, Term: 1}}).differs(s.log); diff != "" {
						t.Fatal(diff)
					}
				}
				if err == nil {
					_ = s.close()
				}
				if part != "raft.db" && err == nil {
					t.Fatalf("the stores opened without %s", part)
				}
			}
		}
	})
}

// BenchmarkStoreLogs appends an entry and syncs it.
func BenchmarkStoreLogs(b *testing.B) {
	for _, kind := range []LogKind{WAL, BoltDB} {
		for _, size := range []int{1, 15} {
			b.Run(fmt.Sprintf("log=%s/%dKB", kind, size), func(b *testing.B) { benchmarkStoreLogs(b, kind, size<<10) })
		}
	}
}

func benchmarkStoreLogs(b *testing.B, kind LogKind, size int) {
	s, err := openStores(b.TempDir(), kind, quiet())
	if err != nil {
		b.Fatal(err)
	}
	var data []byte
	for len(data) < size {
		data = append(data, byte(len(data)*7+len(data)>>8))
	}
	logs := []*raft.Log{{Term: 1, Data: data}}
	b.ReportAllocs()
	for b.Loop() {
		logs[0].Index++
		if err := s.log.StoreLogs(logs); err != nil {
			b.Fatal(err)
		}
		if logs[0].Index%1000 == 0 { // like after a snapshot
			if err := s.log.DeleteRange(1, logs[0].Index-100); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.StopTimer()
	if err := s.close(); err != nil {
		b.Fatal(err)
	}
}
