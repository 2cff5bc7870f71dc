package regional_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/probe"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// answerProbes responds to probes for a region until stop is called.
func (w *world) answerProbes(region, ip string) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := probe.Listen(ctx, probe.ResponderConfig{Net: w.net.Net(ip), Region: region, Addr: ip + ":7613"})
	if err != nil {
		w.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() { cancel(); <-ended }
}

func (w *world) history(req *nusav1.HistoryRequest) (*nusav1.HistoryResponse, error) {
	ctx, cancel := callCtx()
	defer cancel()
	return nusav1.NewTopologyClient(w.conn(1)).History(ctx, req)
}

// series returns the only series of a response.
func (w *world) series(req *nusav1.HistoryRequest) *nusav1.HistorySeries {
	w.t.Helper()
	r, err := w.history(req)
	if err != nil || len(r.GetSeries()) != 1 || len(r.GetErrors()) > 0 {
		w.t.Fatalf("history of %v: %v, %v", req, r, err)
	}
	return r.GetSeries()[0]
}

func field(s *nusav1.HistorySeries, name string) *nusav1.HistoryField {
	for _, f := range s.GetFields() {
		if f.GetName() == name {
			return f
		}
	}
	return nil
}

// lastMean returns the last value of a field, and how many windows have a value.
func lastMean(s *nusav1.HistorySeries, name string) (value float64, windows int) {
	f := field(s, name)
	for i, n := range f.GetCount() {
		if n > 0 {
			value, windows = f.GetMean()[i], windows+1
		}
	}
	return value, windows
}

func about(got, want float64) bool { return math.Abs(got-want) <= 0.001*math.Abs(want) }

const gib = float64(1 << 30)

// TestHistorySurvivesARestart: the master stores its measurements of edges, nodes and
// pools. From them it predicts when memory will be full. A restart loses none of them.
func TestHistorySurvivesARestart(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.disk = t.TempDir()
		g := w.startGlobal()
		defer g.stop()
		stop := w.answerProbes("beta", "10.2.0.1")
		w.server(1)
		w.master(1)
		began := time.Now()
		g.update(func() { g.peers = []*nusav1.PeerRegion{{Name: "beta", ProbeAddresses: []string{"10.2.0.1:7613"}}} })
		n1, n2 := w.agent("n1", runs), w.agent("n2", runs)
		growing := func() *nusav1.NodeStats { // 1 GiB an hour, of 8
			used := gib + gib*time.Since(began).Hours()
			return &nusav1.NodeStats{
				Cpu: 0.25, Load1: 2, MemoryUsedBytes: int64(used), MemoryAvailableBytes: int64(8*gib - used), Tasks: 7,
				Disks: []*nusav1.DiskStats{
					{Mount: "/", UsedBytes: 3 << 30, TotalBytes: 10 << 30}, {Mount: "/srv", UsedBytes: 4 << 30, TotalBytes: 100 << 30},
				},
			}
		}
		still := func() *nusav1.NodeStats {
			return &nusav1.NodeStats{Cpu: 0.75, MemoryUsedBytes: 2 << 30, MemoryAvailableBytes: 6 << 30}
		}
		n1.locked(func(a *fakeAgent) { a.stats = growing })
		n2.locked(func(a *fakeAgent) { a.stats = still })
		time.Sleep(time.Hour)

		edge := w.series(&nusav1.HistoryRequest{Kind: "edge", Key: "beta"})
		if p50, n := lastMean(edge, "p50_ms"); !about(p50, 2) || n < 230 || edge.GetStep().AsDuration() != 15*time.Second || edge.GetRegion() != regionName {
			t.Errorf("edge: %v ms in %d windows of %v", p50, n, edge.GetStep().AsDuration())
		}
		node := w.series(&nusav1.HistoryRequest{Kind: "node", Key: "n1", Trend: true})
		for name, want := range map[string]float64{
			"cpu": 0.25, "load1": 2, "memory_used": 2 * gib, "memory_available": 6 * gib, "disk_used": 3 * gib, "disk_total": 10 * gib, "tasks": 7,
		} {
			if got, n := lastMean(node, name); math.Abs(got-want) > 0.005*want || n < 200 {
				t.Errorf("node: %s is %v in %d windows, want %v", name, got, n, want)
			}
		}
		if _, n := lastMean(node, "network_in"); n > 0 || node.GetName() != "n1" || node.GetKey() != n1.id {
			t.Errorf("node %s %s: unreported networks have %d values", node.GetKey(), node.GetName(), n)
		}
		// Memory would be full 7 hours after 1 GiB was used. One hour of measurements is
		// not enough to predict that.
		memory, disk := node.GetTrends()[0], node.GetTrends()[1]
		if memory.GetField() != "memory_used" || memory.GetKnown() || memory.GetWhy() == "" || !about(memory.GetLimit(), 8*gib) {
			t.Errorf("prediction for memory: %v", memory)
		}
		if disk.GetField() != "disk_used" || disk.GetKnown() || disk.GetWhy() == "" {
			t.Errorf("prediction for a constant disk: %v", disk)
		}
		pool := w.series(&nusav1.HistoryRequest{Kind: "pool"})
		for name, want := range map[string]float64{
			"nodes": 2, "cpu": 0.5, "memory_used": 4 * gib, "memory_total": 16 * gib, "disk_used": 7 * gib, "disk_total": 110 * gib,
			"allocated_cpu": 0, "capacity_cpu": 8, "allocated_memory": 0, "capacity_memory": 8 * gib,
		} {
			if got, n := lastMean(pool, name); math.Abs(got-want) > 0.005*want || n < 200 || pool.GetKey() != "default" {
				t.Errorf("pool %s: %s is %v in %d windows, want %v", pool.GetKey(), name, got, n, want)
			}
		}

		time.Sleep(time.Hour)
		node = w.series(&nusav1.HistoryRequest{Kind: "node", Key: "n1", Trend: true, From: timestamppb.New(began), Fields: []string{"cpu"}})
		full := began.Add(7 * time.Hour)
		memory = node.GetTrends()[0]
		if !memory.GetKnown() || memory.GetAt().AsTime().Sub(full).Abs() > 10*time.Minute || memory.GetEarliest().AsTime().After(full.Add(10*time.Minute)) || len(node.GetFields()) != 1 {
			t.Errorf("memory is full at %v: %v, %d fields", full, memory, len(node.GetFields()))
		}

		// While the region is silent, or while the node is silent, the history has a gap.
		stop()
		n2.stop()
		time.Sleep(20 * time.Minute)
		edge = w.series(&nusav1.HistoryRequest{Kind: "edge", Key: "beta", Step: durationpb.New(time.Minute), From: timestamppb.New(time.Now().Add(-10 * time.Minute))})
		if _, n := lastMean(edge, "p50_ms"); n > 0 {
			t.Errorf("%d round trips of a silent region", n)
		}
		if loss, n := lastMean(edge, "loss"); loss < 0.5 || n < 9 {
			t.Errorf("its loss is %v in %d windows", loss, n)
		}
		pool = w.series(&nusav1.HistoryRequest{Kind: "pool", Key: "default"})
		if nodes, _ := lastMean(pool, "nodes"); nodes != 1 {
			t.Errorf("%v nodes after one was lost", nodes)
		}

		w.stop(1)
		time.Sleep(5 * time.Minute)
		w.server(1)
		w.master(1)
		since := &nusav1.HistoryRequest{Kind: "node", Key: "n1", From: timestamppb.New(began), Fields: []string{"memory_used"}, Step: durationpb.New(time.Minute)}
		w.eventually("the measurements from before the restart", func() bool {
			r, err := w.history(since)
			if err != nil || len(r.GetSeries()) != 1 {
				return false
			}
			_, n := lastMean(r.GetSeries()[0], "memory_used")
			return n >= 135
		})
	})
}

func TestInvalidHistoryRequests(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.disk = t.TempDir()
		w.server(1)
		w.master(1)
		w.eventually("the file is open", func() bool {
			_, err := w.history(&nusav1.HistoryRequest{Kind: "pool"})
			return err == nil
		})
		now := timestamppb.Now()
		for what, c := range map[string]struct {
			req  *nusav1.HistoryRequest
			code codes.Code
		}{
			"no kind":         {&nusav1.HistoryRequest{}, codes.InvalidArgument},
			"unknown field":   {&nusav1.HistoryRequest{Kind: "edge", Fields: []string{"cpu"}}, codes.InvalidArgument},
			"negative step":   {&nusav1.HistoryRequest{Kind: "edge", Step: durationpb.New(-1)}, codes.InvalidArgument},
			"empty range":     {&nusav1.HistoryRequest{Kind: "edge", From: now, To: now}, codes.InvalidArgument},
			"another region":  {&nusav1.HistoryRequest{Kind: "edge", Region: "beta"}, codes.NotFound},
			"unknown edge":    {&nusav1.HistoryRequest{Kind: "edge", Key: "nowhere"}, codes.NotFound},
			"unknown node":    {&nusav1.HistoryRequest{Kind: "node", Key: "none"}, codes.NotFound},
			"all of the kind": {&nusav1.HistoryRequest{Kind: "edge"}, codes.OK},
		} {
			if _, err := w.history(c.req); status.Code(err) != c.code {
				t.Errorf("%s: %v, want %v", what, err, c.code)
			}
		}
	})
}

// TestDamagedHistoryIsSetAside: a history file that cannot be read is renamed, and the
// server begins an empty one. An event reports it.
func TestDamagedHistoryIsSetAside(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.disk = t.TempDir()
		w.server(1)
		w.master(1)
		time.Sleep(2 * time.Minute)
		w.stop(1)
		path := filepath.Join(w.disk, "s1", "history", "series.db")
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		clear(raw[:len(raw)/2])
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		w.server(1)
		w.master(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		stream, err := nusav1.NewEventsClient(w.conn(1)).Watch(ctx, &nusav1.WatchEventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for {
			e, err := stream.Recv()
			if err != nil {
				t.Fatalf("no event: %v", err)
			}
			if e.GetType() == "history.damaged" {
				break
			}
		}
		if _, err := os.Stat(path + ".damaged"); err != nil {
			t.Error(err)
		}
		if _, err := w.history(&nusav1.HistoryRequest{Kind: "pool"}); err != nil {
			t.Errorf("history: %v", err)
		}
	})
}

// TestServerWorksWithoutHistory: a server without a disk, or with a folder that it cannot
// use, works all the same. It refuses requests for history.
func TestServerWorksWithoutHistory(t *testing.T) {
	for name, dir := range map[string]string{"in memory": "", "no folder": t.TempDir()} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, func(t *testing.T, w *world) {
				w.disk = dir
				if dir != "" {
					w.server(1)
					w.stop(1)
					path := filepath.Join(dir, "s1", "history")
					if err := os.RemoveAll(path); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, nil, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				w.server(1)
				w.master(1)
				time.Sleep(time.Minute)
				if _, err := w.history(&nusav1.HistoryRequest{Kind: "node"}); status.Code(err) != codes.FailedPrecondition {
					t.Errorf("history: %v", err)
				}
				w.submit(1, spec("web", 1))
			})
		})
	}
}
