package quorum

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	bolt "go.etcd.io/bbolt"
)

// TestEntriesOfRaftBoltDB: what that library wrote (testdata) is read, and the
// same entries are written as it wrote them.
func TestEntriesOfRaftBoltDB(t *testing.T) {
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
	path := filepath.Join(t.TempDir(), "raft.db")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	b, err := newBoltLog(db)
	if err != nil {
		t.Fatal(err)
	}
	values := func() (out [][]byte) {
		_ = db.View(func(tx *bolt.Tx) error {
			return tx.Bucket(logBucket).ForEach(func(_, v []byte) error { out = append(out, bytes.Clone(v)); return nil })
		})
		return out
	}
	before := values()
	first, _ := b.FirstIndex()
	last, _ := b.LastIndex()
	var logs []*raft.Log
	for i := first; i <= last; i++ {
		l := &raft.Log{}
		if err := b.GetLog(i, l); err != nil {
			t.Fatal(err)
		}
		if l.Index != i || l.Term != 2 || (l.Type == raft.LogNoop) != (i == 4) || !l.AppendedAt.Equal(time.Unix(1_700_000_000, int64(i))) ||
			i != 4 && !bytes.Equal(l.Data, bytes.Repeat([]byte{byte(i)}, int(i)*10)) {
			t.Errorf("entry %d: %+v", i, l)
		}
		logs = append(logs, l)
	}
	if err := b.StoreLogs(logs); err != nil {
		t.Fatal(err)
	}
	if after := values(); first != 3 || last != 300 || fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("entries %d to %d, written again:\n%x, were\n%x", first, last, after, before)
	}
	term, err := b.GetUint64([]byte("CurrentTerm"))
	if _, none := b.Get([]byte("none")); err != nil || term != 7 || none == nil || none.Error() != "not found" {
		t.Errorf("the term is %d (%v), of none the error is %v", term, err, none)
	}
}

// TestConfirmedIsOnDisk: a copy of the file as it is after each write, as kill -9
// would leave it, has all that was confirmed.
func TestConfirmedIsOnDisk(t *testing.T) {
	dir := t.TempDir()
	s, err := openStores(dir, newLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for i := uint64(1); i <= 30; i++ {
		if err := s.log.StoreLogs([]*raft.Log{{Index: 2*i - 1, Term: i, Data: make([]byte, 40<<i%12)}, {Index: 2 * i, Term: i}}); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join(dir, "raft.db"))
		if err != nil {
			t.Fatal(err)
		}
		killed := t.TempDir()
		if err := os.WriteFile(filepath.Join(killed, "raft.db"), content, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := openStores(killed, newLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			t.Fatal(err)
		}
		for k := uint64(1); k <= 2*i; k++ {
			var l raft.Log
			if err := c.log.GetLog(k, &l); err != nil || l.Term != (k+1)/2 || k%2 == 1 && len(l.Data) != 40<<l.Term%12 {
				t.Errorf("killed after %d: entry %d of term %d with %d bytes: %v", 2*i, k, l.Term, len(l.Data), err)
			}
		}
		if last, err := c.log.LastIndex(); err != nil || last != 2*i {
			t.Errorf("killed after %d: the last entry is %d (%v)", 2*i, last, err)
		}
		if err := c.close(); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkStoreLogs(b *testing.B) {
	for _, size := range []int{600, 20_000, 256 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s, err := openStores(b.TempDir(), newLogger(slog.New(slog.DiscardHandler)))
			if err != nil {
				b.Fatal(err)
			}
			defer s.close()
			data := make([]byte, size)
			i := uint64(0)
			for b.Loop() {
				i++
				if err := s.log.StoreLogs([]*raft.Log{{Index: i, Term: 2, Data: data}}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
