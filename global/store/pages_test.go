package store_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/global/store"
)

// TestReleasePages: the pages of the database leave the process, and what is stored can be read.
func TestReleasePages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e, err := store.OpenEtcd(t.Context(), store.EtcdConfig{Name: "one", DataDir: dir, PeerAddr: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	big := bytes.Repeat([]byte{'x'}, 500<<10)
	key := func(i int) string { return fmt.Sprintf("/pages/%d", i) }
	for i := range 16 {
		if _, err := e.Txn(t.Context(), nil, []store.Op{store.Put(key(i), big)}); err != nil {
			t.Fatal(err)
		}
	}
	read := func() {
		t.Helper()
		for i := range 16 {
			if kv, ok, _, err := e.Get(t.Context(), key(i)); err != nil || !ok || !bytes.Equal(kv.Value, big) {
				t.Fatalf("%s: %d bytes, %v", key(i), len(kv.Value), err)
			}
		}
	}
	if _, err := e.List(t.Context(), "/pages/", func(store.KV) error { return nil }); err != nil {
		t.Fatal(err)
	}
	read()
	if err := e.Defragment(t.Context()); err != nil { // maps the whole new database
		t.Fatal(err)
	}
	before := residentKB(t, dir)
	if err := store.ReleasePages(e); err != nil {
		t.Fatal(err)
	}
	if after := residentKB(t, dir); before < 8000 || after > before/4 {
		t.Errorf("%d kB of the database are in the process, %d before", after, before)
	}
	read()
}

// residentKB returns how much of the database in a folder is in this process.
func residentKB(t *testing.T, dir string) (kb int) {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(smaps), dir+"/member/snap/db\n")
	if !found {
		t.Fatalf("the database in %s is not mapped", dir)
	}
	_, rest, _ = strings.Cut(rest, "\nRss:")
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		t.Fatal(err)
	}
	return kb
}
