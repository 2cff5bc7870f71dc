package store_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// TestMembersMadeWithoutTLS: members that were made without identities have addresses without TLS in
// their store. A start with an identity fails at once and says what to do. Without one the members
// run on. A member whose others are away gives up in time.
func TestMembersMadeWithoutTLS(t *testing.T) {
	t.Parallel()
	ca := pkitest.New(t)
	port := freeport.Reserve(t, 2)
	cluster := []string{fmt.Sprintf("g0=127.0.0.1:%d", port), fmt.Sprintf("g1=127.0.0.1:%d", port+1)}
	data := []string{t.TempDir(), t.TempDir()}
	open := func(i int, limit time.Duration, s *trust.Source) (*store.Etcd, error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return store.OpenEtcd(ctx, store.EtcdConfig{
			Name: fmt.Sprintf("g%d", i), DataDir: data[i], PeerAddr: fmt.Sprintf("127.0.0.1:%d", port+i),
			InitialCluster: cluster, Identity: s, Logger: slog.New(slog.DiscardHandler),
		})
	}
	refused := func(what string, limit time.Duration, s *trust.Source) error {
		t.Helper()
		ended := make(chan error, 1)
		go func() {
			e, err := open(0, limit, s)
			if err == nil {
				e.Close()
			}
			ended <- err
		}()
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Minute):
			t.Fatalf("%s: the start has not ended after a minute", what)
			return nil
		}
	}
	plain := func() {
		t.Helper()
		var g errgroup.Group
		members := make([]*store.Etcd, 2)
		for i := range members {
			g.Go(func() (err error) {
				members[i], err = open(i, time.Minute, nil)
				return err
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		if _, err := members[0].Txn(t.Context(), nil, []store.Op{store.Put("k", []byte("v"))}); err != nil {
			t.Error(err)
		}
		for _, m := range members {
			m.Close()
		}
	}
	plain()
	if err := refused("with an identity", time.Minute, ca.Source("global/g0")); err == nil || !strings.Contains(err.Error(), "was made without TLS") || !strings.Contains(err.Error(), "docs/operating.md") {
		t.Errorf("a start with an identity: %v", err)
	}
	if err := refused("alone", 2*time.Second, nil); !errors.Is(err, store.ErrNoQuorum) {
		t.Errorf("a start without the other member: %v", err)
	}
	plain()
}

// TestMembersMadeWithTLS: a member that was made with an identity does not start without one.
func TestMembersMadeWithTLS(t *testing.T) {
	t.Parallel()
	ca := pkitest.New(t)
	port, data := freeport.Reserve(t, 2), t.TempDir()
	open := func(s *trust.Source) error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		e, err := store.OpenEtcd(ctx, store.EtcdConfig{
			Name: "g0", DataDir: data, PeerAddr: fmt.Sprintf("127.0.0.1:%d", port), Identity: s, Logger: slog.New(slog.DiscardHandler),
			InitialCluster: []string{fmt.Sprintf("g0=127.0.0.1:%d", port), fmt.Sprintf("g1=127.0.0.1:%d", port+1)},
		})
		if err == nil {
			e.Close()
		}
		return err
	}
	if err := open(ca.Source("global/g0")); !errors.Is(err, store.ErrNoQuorum) {
		t.Fatalf("the first start, alone: %v", err)
	}
	if err := open(nil); err == nil || !strings.Contains(err.Error(), "was made with TLS") {
		t.Errorf("a start without an identity: %v", err)
	}
}
