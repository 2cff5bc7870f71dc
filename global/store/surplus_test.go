package store_test

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	etcdbackend "go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"

	"github.com/nusa-scheduler/nusa/global/store"
)

// testSurplus: the surplus never decreases, whatever is written.
func testSurplus(t *testing.T, b backend, s store.Store) {
	first := surplusOf(t, s)
	for _, op := range []store.Op{
		store.Put("/surplus/a", nil), store.PutTTL("/surplus/b", nil, time.Minute), store.Delete("/surplus/a"), store.Delete("/surplus/none"),
	} {
		must(s.Txn(t.Context(), nil, []store.Op{op}))(t)
	}
	must(s.Raise(t.Context(), 0, nil, nil))(t)
	if next := surplusOf(t, b.client(t)); next.Most < first.Least {
		t.Errorf("the surplus fell from %+v to %+v", first, next)
	}
}

func surplusOf(t *testing.T, s store.Store) store.Surplus {
	t.Helper()
	out := must(s.Surplus(t.Context()))(t)
	if !out.Known || out.Least > out.Most {
		t.Fatalf("surplus %+v", out)
	}
	return out
}

func TestMemorySnapshotHasLessSurplus(t *testing.T) {
	t.Parallel()
	m := store.NewMemory()
	c := m.Client()
	defer c.Close()
	must(c.Txn(t.Context(), nil, []store.Op{store.Put("/a", []byte("1"))}))(t)
	restored := m.Snapshot().Client()
	defer restored.Close()
	if a, _ := get(t, restored, "/a"); string(a.Value) != "1" || a.ModRevision != 2 {
		t.Errorf("a is %+v", a)
	}
	if was, is := surplusOf(t, c), surplusOf(t, restored); is.Most >= was.Least {
		t.Errorf("the surplus is %+v after %+v", is, was)
	}
}

// TestEtcdSnapshotHasLessSurplus: a snapshot is restored under a new log, as `etcdutl snapshot
// restore` does. The restore is noticed soon after the snapshot was made, and also after later
// writes.
func TestEtcdSnapshotHasLessSurplus(t *testing.T) {
	t.Parallel()
	old := openAlone(t, t.TempDir())
	for range 10 {
		must(old.Txn(t.Context(), nil, []store.Op{store.Put("/a", nil)}))(t)
	}
	was := surplusOf(t, old)
	database := filepath.Join(t.TempDir(), "db")
	if err := old.SnapshotTo(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	again := restored(t, database)
	is := surplusOf(t, again)
	if is.Most >= was.Least {
		t.Fatalf("the surplus is %+v after %+v", is, was)
	}
	for range 20 {
		must(again.Txn(t.Context(), nil, []store.Op{store.Put("/a", nil)}))(t)
	}
	if later := surplusOf(t, again); later.Most >= was.Least || later.Most < is.Least {
		t.Errorf("the surplus is %+v after %+v, before the restore it was %+v", later, is, was)
	}
	// A snapshot of the restored store, restored: the number is lower once more.
	if err := again.SnapshotTo(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	if third := surplusOf(t, restored(t, database)); third.Most >= is.Least {
		t.Errorf("the surplus is %+v after the second restore, %+v after the first", third, is)
	}
}

func openAlone(t *testing.T, dir string) *store.Etcd {
	t.Helper()
	e, err := store.OpenEtcd(t.Context(), store.EtcdConfig{Name: "one", DataDir: dir, PeerAddr: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// restored opens a member that has the contents of a snapshot and a log of its own.
func restored(t *testing.T, snapshot string) *store.Etcd {
	t.Helper()
	dir := t.TempDir()
	if err := openAlone(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "member", "snap", "db")
	begun := etcdbackend.NewDefaultBackend(zap.NewNop(), path)
	index, term := schema.ReadConsistentIndex(begun.ReadTx())
	if err := begun.Close(); err != nil {
		t.Fatal(err)
	}
	contents, err := os.ReadFile(snapshot)
	if err == nil {
		err = os.WriteFile(path, contents, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	be := etcdbackend.NewDefaultBackend(zap.NewNop(), path)
	tx := be.BatchTx()
	tx.LockOutsideApply()
	schema.UnsafeUpdateConsistentIndexForce(tx, index, term)
	tx.Unlock()
	be.ForceCommit()
	if err := be.Close(); err != nil {
		t.Fatal(err)
	}
	return openAlone(t, dir)
}

// TestSurplusWithADeadEndpoint: the endpoint that answers first counts.
func TestSurplusWithADeadEndpoint(t *testing.T) {
	t.Parallel()
	member, err := store.OpenEtcd(t.Context(), store.EtcdConfig{
		Name: "one", DataDir: t.TempDir(), ClientAddr: "127.0.0.1:0", PeerAddr: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer member.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	e, err := store.OpenEtcd(t.Context(), store.EtcdConfig{
		Endpoints: []string{silent.Addr().String(), "127.0.0.1:1", member.ClientAddr()}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	slow := 0
	for range 5 {
		start := time.Now()
		surplusOf(t, e)
		if time.Since(start) >= 2*time.Second { // a call to the silent endpoint takes as long
			slow++
		}
	}
	if slow > 1 { // a busy machine may delay one
		t.Errorf("%d of five responses took as long as a silent endpoint", slow)
	}
}
