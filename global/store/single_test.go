package store_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/freeport"
)

// TestPortsOfMembers: a single member listens on its sockets only. One of several has a port, also if
// its configuration does not name the others any more.
func TestPortsOfMembers(t *testing.T) {
	t.Parallel()
	port := freeport.Reserve(t, 2)
	addr := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", port+i) }
	data := []string{t.TempDir(), t.TempDir()}
	open := func(i int, dir string, cluster ...string) (*store.Etcd, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return store.OpenEtcd(ctx, store.EtcdConfig{
			Name: fmt.Sprintf("g%d", i), DataDir: dir, PeerAddr: addr(i), InitialCluster: cluster, Logger: slog.New(slog.DiscardHandler),
		})
	}
	listens := func(i int) bool {
		conn, err := net.DialTimeout("tcp", addr(i), time.Second)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}
	single, err := open(0, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if listens(0) {
		t.Error("a single member has a port")
	}
	single.Close()
	cluster := []string{"g0=" + addr(0), "g1=" + addr(1)}
	for _, named := range [][]string{cluster, nil} {
		members := make([]*store.Etcd, 2)
		var g errgroup.Group
		for i := range members {
			g.Go(func() (err error) {
				members[i], err = open(i, data[i], named...)
				return err
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatalf("named %v: %v", named, err)
		}
		for i, m := range members {
			if !listens(i) {
				t.Errorf("named %v: member %d has no port", named, i)
			}
			m.Close()
		}
	}
}
