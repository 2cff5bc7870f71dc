package quorum

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	bolt "go.etcd.io/bbolt"
)

func openTestStores(t *testing.T, dir string) stores {
	t.Helper()
	s, err := openStores(dir, quiet())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What was stored before the end is there after it, and a tail that a new
// leader overrules is gone.
func TestStoresOnDisk(t *testing.T) {
	dir := t.TempDir()
	s := openTestStores(t, dir)
	if _, err := openStores(dir, quiet()); !errors.Is(err, ErrInUse) {
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
	if err := errors.Join(s.stable.SetUint64([]byte("CurrentTerm"), 7), s.log.DeleteRange(18, 20), s.close()); err != nil {
		t.Fatal(err)
	}

	half := filepath.Join(dir, "snapshots", "7-9-1.tmp") // a snapshot that found the disk full
	if err := os.MkdirAll(filepath.Join(half, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	s = openTestStores(t, dir)
	defer s.close()
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a half snapshot stays: %v", err)
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
	if !errors.Is(s.log.GetLog(18, &entry), raft.ErrLogNotFound) {
		t.Fatal("entry 18 is still there")
	}
}

// raftBoltDB is a file that the library raft-boltdb wrote: term 7, and entries 3
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

// A directory of an earlier version is taken over with all that Raft needs,
// again if the first time was cut short, and earlier versions refuse it then.
func TestStoresOfEarlierVersion(t *testing.T) {
	smallFiles(t)
	dir := t.TempDir()
	p := paths(dir)
	old := raftBoltDB(t)
	if err := os.WriteFile(p.old(), old, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := openBolt(p.old())
	if err != nil {
		t.Fatal(err)
	}
	if term, err := db.GetUint64([]byte("CurrentTerm")); err != nil || term != 7 {
		t.Fatalf("the term is %d (%v), want 7", term, err)
	}
	if _, none := db.Get([]byte("none")); none == nil || none.Error() != "not found" { // Raft knows it by its text
		t.Fatalf("of none the error is %v", none)
	}
	err = db.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(logBucket).Delete(key(100)) }) // a gap
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if old, err = os.ReadFile(p.old()); err != nil {
		t.Fatal(err)
	}
	var want oracle
	for i := uint64(101); i <= 300; i++ {
		want = append(want, raft.Log{Index: i, Term: 2, Data: bytes.Repeat([]byte{byte(i)}, int(i)*10), AppendedAt: time.Unix(1_700_000_000, int64(i))})
	}

	for _, cut := range []string{"", "before the note", "before the link", "in the copy"} {
		if cut != "" {
			if err := errors.Join(os.Remove(p.old()), os.WriteFile(p.old(), old, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		switch cut {
		case "before the link":
			err = os.Remove(p.stable())
		case "in the copy":
			l := reopenWAL(t, p.log())
			err = errors.Join(os.Remove(p.stable()), l.DeleteRange(150, 300), l.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		s := openTestStores(t, dir)
		if diff := want.differs(s.log.(*walLog)); diff != "" {
			t.Fatalf("cut %q: %s", cut, diff)
		}
		if term, err := s.stable.GetUint64([]byte("CurrentTerm")); err != nil || term != 7 {
			t.Fatalf("cut %q: the term is %d (%v), want 7", cut, term, err)
		}
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
	}
	// As before, the note, the log and the snapshots stay as they are.
	if _, err := openBolt(p.old()); err == nil {
		t.Fatal("an earlier version would begin a new log")
	}
	s := openTestStores(t, dir)
	more := entries(rand.New(rand.NewPCG(5, 5)), want.next(), 3, 3)
	if err := errors.Join(s.log.StoreLogs(more), s.close()); err != nil {
		t.Fatal(err)
	}
	s = openTestStores(t, dir)
	defer s.close()
	if diff := want.plus(more).differs(s.log.(*walLog)); diff != "" {
		t.Fatal(diff)
	}
}

// A lost log is not taken for a new one, nor is a lost vote.
func TestStoresWithoutPart(t *testing.T) {
	for _, part := range []string{"log", "stable.db"} {
		dir := t.TempDir()
		if err := openTestStores(t, dir).close(); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(dir, part)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if s, err := openStores(dir, quiet()); err == nil {
				_ = s.close()
				t.Fatalf("it opened without %s", part)
			}
		}
	}
}

// BenchmarkStoreLogs appends an entry and syncs it.
func BenchmarkStoreLogs(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"1KB", 1 << 10}, {"15KB", 15 << 10}} {
		b.Run(size.name, func(b *testing.B) {
			s, err := openStores(b.TempDir(), quiet())
			if err != nil {
				b.Fatal(err)
			}
			var data []byte
			for len(data) < size.bytes {
				data = append(data, byte(len(data)*7+len(data)>>8))
			}
			logs := []*raft.Log{{Term: 1, Data: data[:size.bytes]}}
			b.ReportAllocs()
			for b.Loop() {
				logs[0].Index++
				if err := s.log.StoreLogs(logs); err != nil {
					b.Fatal(err)
				}
				if logs[0].Index%1000 == 0 { // as a snapshot does
					if err := s.log.DeleteRange(1, logs[0].Index-100); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.StopTimer()
			if err := s.close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
