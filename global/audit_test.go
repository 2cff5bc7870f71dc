package global

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
)

// TestAuditWithinATick: changes at the same moment, in transactions of their own,
// all get an audit record, and none is refused because of another's record.
func TestAuditWithinATick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		s := f.start(t, "g1", func(c *Config) {
			c.Clock = func() time.Duration { return time.Since(start) }
			c.ReportInterval, c.CheckpointInterval, c.ElectionTTL = 0, 0, 0
		})
		waitActive(t, s)
		now, records := time.Now(), 0
		for i := range 3 {
			s.submit(testJob(fmt.Sprint("api-", i), 1))
		}
		if passed := time.Since(now); passed != 0 {
			t.Fatalf("%s passed: not one moment", passed)
		}
		_, err := s.store.List(t.Context(), state.AuditPrefix, func(store.KV) error { records++; return nil })
		if err != nil || records != 3 {
			t.Errorf("%d records, %v", records, err)
		}
		s.stop()
	})
}

// TestAuditIsBounded: the oldest audit records are removed when the records take more than their
// share of the store, also records of earlier versions and terms. So are records that are too old.
func TestAuditIsBounded(t *testing.T) {
	t.Parallel()
	f := newFederation()
	mem, err := store.OpenEtcd(t.Context(), store.EtcdConfig{
		Name: "etcd", DataDir: t.TempDir(), ClientAddr: "127.0.0.1:0", PeerAddr: "127.0.0.1:0", Quota: 48 << 20,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	text := []byte(strings.Repeat("x", 10_000))
	for i := range 800 { // 8 MB, a record each minute
		at := time.Now().Add(time.Duration(i-800) * time.Minute)
		if _, err := mem.Txn(t.Context(), nil, []store.Op{store.Put(fmt.Sprintf("%s-before-%d", state.AuditKey(at), i), text)}); err != nil {
			t.Fatal(err)
		}
	}
	old := state.AuditKey(time.Now().Add(-31*24*time.Hour)) + "-before-x"
	if _, err := mem.Txn(t.Context(), nil, []store.Op{store.Put(old, text)}); err != nil {
		t.Fatal(err)
	}
	s := f.start(t, "g1", f.overEtcd("", Etcd{Endpoints: []string{mem.ClientAddr()}}))
	s.submit(testJob("api", 1))
	keys := func() (keys []string, bytes int) {
		_, err := mem.List(t.Context(), state.AuditPrefix, func(kv store.KV) error {
			keys, bytes = append(keys, kv.Key), bytes+len(kv.Value)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return keys, bytes
	}
	waitKeys := func(what string, ok func(keys []string, bytes int) bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), testWait)
		defer cancel()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			all, bytes := keys()
			if ok(all, bytes) {
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				t.Fatalf("%s: %d records of %d bytes, the first %s", what, len(all), bytes, all[0])
			}
		}
	}
	waitKeys("a sixteenth of the quota is left, the latest records", func(all []string, bytes int) bool {
		return all[0] != old && bytes < 4<<20 && bytes > 2<<20 && !strings.Contains(all[len(all)-1], "before")
	})
}
