package store_test

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/global/store"
)

func openMember(t *testing.T, change func(*store.EtcdConfig)) *store.Etcd {
	t.Helper()
	cfg := store.EtcdConfig{Name: "one", PeerAddr: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)}
	change(&cfg)
	e, err := store.OpenEtcd(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// TestMemberServesItsOwnUserOnly: without a client address the member takes writes only over a
// socket of its own user, also when the directory has a long path. An earlier member served an
// address and had a directory that others could read: what it stored is still there.
func TestMemberServesItsOwnUserOnly(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]string{
		"short": "etcd",
		"long":  filepath.Join(strings.Repeat("d", 100), strings.Repeat("e", 100)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), dir)
			before := openMember(t, func(c *store.EtcdConfig) { c.DataDir, c.ClientAddr = dir, "127.0.0.1:0" })
			addr := before.ClientAddr()
			if _, err := before.Txn(t.Context(), nil, []store.Op{store.Put("k", []byte("v"))}); err != nil {
				t.Fatal(err)
			}
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatalf("the address %s that was asked for: %v", addr, err)
			}
			conn.Close()
			if err := before.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			e := openMember(t, func(c *store.EtcdConfig) { c.DataDir = dir })
			socket := filepath.Join(dir, "client.sock")
			if got := e.ClientAddr(); got != "unix://"+socket {
				t.Errorf("the member serves clients at %s", got)
			}
			for path, want := range map[string]os.FileMode{dir: os.ModeDir | 0o700, socket: os.ModeSocket | 0o600} {
				if info, err := os.Stat(path); err != nil || info.Mode() != want {
					t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
				}
			}
			if name == "short" { // an etcd client needs a short path, too
				client, err := store.OpenEtcd(t.Context(), store.EtcdConfig{Endpoints: []string{e.ClientAddr()}, Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				if kv, ok, _, err := client.Get(t.Context(), "k"); err != nil || !ok || string(kv.Value) != "v" {
					t.Errorf("over the socket: %v, %v, %v", kv, ok, err)
				}
			}
			if kv, ok, _, err := e.Get(t.Context(), "k"); err != nil || !ok || string(kv.Value) != "v" {
				t.Errorf("after the member of before: %v, %v, %v", kv, ok, err)
			}
		})
	}
}
