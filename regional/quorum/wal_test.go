package quorum

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"

	"github.com/nusa-scheduler/nusa/internal/wait"
)

// TestWALDetectsFlippedBit: a bit is flipped in an entry that was acknowledged before the
// last write. Either opening the log fails, or the flip changes nothing. It never makes the
// log shorter. raft-boltdb has no checksums of entries and cannot pass this test.
func TestWALDetectsFlippedBit(t *testing.T) {
	smallFiles(t)
	r := rand.New(rand.NewPCG(3, 3))
	dir := t.TempDir()
	l := reopen(t, WAL, dir)
	var o oracle
	for o.next() < 80 {
		var err error
		o, _, err = step(r, l, o)
		if err != nil {
			t.Fatal(err)
		}
	}
	name, before := tail(t, WAL, dir)
	logs := []*raft.Log{{Index: o.next(), Term: 1 << 20, Data: []byte("the last write")}}
	if err := errors.Join(l.StoreLogs(logs), l.Close()); err != nil {
		t.Fatal(err)
	}
	o = o.plus(logs)
	if now, _ := tail(t, WAL, dir); now != name {
		t.Fatal("choose another seed: the last write is alone in its file")
	}
	end := len(bytes.TrimRight(before, "\x00"))
	loud := 0
	const flips = 600
	for range flips {
		names := glob(filepath.Join(dir, "log"), "*.wal")
		victim := names[r.IntN(len(names))]
		content, err := os.ReadFile(victim)
		if err != nil {
			t.Fatal(err)
		}
		n := len(content)
		if filepath.Base(victim) == filepath.Base(name) {
			n = end
		}
		bit := r.IntN(8 * n)
		if r.IntN(2) == 0 { // bytes of lengths, types and checksums
			bit = 8 * (bit / 64 * 8)
			bit = min(bit+r.IntN(24*8), 8*n-1)
		}
		c := copyDir(t, dir)
		content[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(filepath.Join(c, "log", filepath.Base(victim)), content, 0o600); err != nil {
			t.Fatal(err)
		}
		what := fmt.Sprintf("bit %d of byte %d of %s", bit%8, bit/8, filepath.Base(victim))
		got, err := openWAL(filepath.Join(c, "log"), quiet())
		if err != nil {
			loud++
		} else {
			if diff := o.differs(got); diff != "" {
				t.Errorf("%s: %s", what, diff)
			}
			if err := got.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.RemoveAll(c); err != nil {
			t.Fatal(err)
		}
	}
	if loud < flips/2 {
		t.Errorf("only %d of %d flips were seen", loud, flips)
	}
}

// TestLockedForAMoment: a log opens although its lock outlives its close for a moment.
func TestLockedForAMoment(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l, err := createWAL(dir, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	held, err := fileutil.TryLockFile(names[0], os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		wait.For(t.Context(), 5*lockPause)
		held.Close()
	}()
	again, err := openWAL(dir, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
