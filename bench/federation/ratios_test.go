package federation

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/nusa-scheduler/nusa/bench/report"
)

// TestParts measures the bare parts after a global server.
func TestParts(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Parts, o.Etcd = 60, 0
	r, err := Measure(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	p := r.Parts
	if p == nil || p.Decided != 80 || p.Accepted != 80 || p.Watched != 8 || p.Ended != 0 || *p.RestartS <= 0 || p.Idle.Memory.RSSMB <= 0 {
		t.Fatalf("the bare parts: %+v", p)
	}
	for _, name := range []string{"decided_per_s", "submit_to_running_ms_p99", "idle_rss_mb", "restart_s"} {
		if r.Ratios[name] <= 0 {
			t.Errorf("no ratio of %s: %v", name, r.Ratios)
		}
	}
	if want := report.Round(r.DecidedPerS/p.DecidedPerS, 3); r.Ratios["decided_per_s"] != want {
		t.Errorf("ratio %v of %v and %v", r.Ratios["decided_per_s"], r.DecidedPerS, p.DecidedPerS)
	}
	if left, err := os.ReadDir(o.Dir); err != nil || len(left) > 0 {
		t.Errorf("left in the folder: %v, %v", left, err)
	}
}

// TestPartsStoreAsMuch: the bare parts write as many keys as a global server for jobs, slots and
// regions, and about as many bytes.
func TestPartsStoreAsMuch(t *testing.T) {
	t.Parallel()
	sums := func(bare bool) map[string]stored {
		o := options(t)
		o.Idle, o.Etcd = 0, 0
		m := newMeasurement(o)
		var err error
		if m.server, err = startServer(o, os.Args[0], bare); err != nil {
			t.Fatal(err)
		}
		defer m.server.close()
		m.addr, m.bare = m.server.addr, bare
		if err := m.server.awaitActive(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := m.federate(t.Context()); err != nil {
			t.Fatal(err)
		}
		return storedIn(t, filepath.Join(m.server.dir, "data"))
	}
	own, bare := sums(false), sums(true)
	for _, prefix := range []string{"jobs", "slots", "regions"} {
		a, b := own[prefix], bare[prefix]
		t.Logf("%s: %+v, the bare parts %+v", prefix, a, b)
		if a.keys == 0 || a.keys != b.keys || math.Abs(float64(b.bytes)/float64(a.bytes)-1) > 0.15 {
			t.Errorf("%s: a global server stores %+v, the bare parts %+v", prefix, a, b)
		}
	}
}

// stored counts keys, and the bytes of keys and values.
type stored struct{ keys, bytes int }

// storedIn counts what a store has of each kind of record.
func storedIn(t *testing.T, dir string) map[string]stored {
	t.Helper()
	socket := ""
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == "client.sock" {
			socket = path
		}
		return err
	})
	if err != nil || socket == "" {
		t.Fatalf("no socket of etcd in %s: %v", dir, err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + socket}, Context: context.WithoutCancel(t.Context())})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const root = "/nusa/v1/"
	got, err := c.Get(t.Context(), root, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]stored{}
	for _, kv := range got.Kvs {
		what, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), root), "/")
		out[what] = stored{out[what].keys + 1, out[what].bytes + len(kv.Key) + len(kv.Value)}
	}
	return out
}
