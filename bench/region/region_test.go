package region

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/internal/golden"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// serveRegional serves `nusa regional` with the flags that a cluster uses.
func serveRegional(args []string) error {
	var region, join, folder string
	var level, http string
	cfg := regional.Config{Raft: regional.FastRaft()}
	f := flag.NewFlagSet("regional", flag.ContinueOnError)
	f.StringVar(&region, "region", "", "")
	f.StringVar(&cfg.Name, "name", "", "")
	f.StringVar(&cfg.DataDir, "data-dir", "", "")
	f.StringVar(&cfg.GRPCAddr, "grpc-addr", "", "")
	f.StringVar(&cfg.RaftAddr, "raft-addr", "", "")
	f.StringVar(&cfg.GossipAddr, "gossip-addr", "", "")
	f.StringVar(&cfg.ProbeAddr, "probe-addr", "", "")
	f.StringVar(&http, "http-addr", "", "")
	f.StringVar(&level, "log-level", "", "")
	f.StringVar(&join, "join", "", "")
	f.StringVar(&folder, "identity", "", "")
	f.Float64("call-rate", 0, "")
	f.IntVar(&cfg.BootstrapExpect, "bootstrap-expect", 1, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	if folder != "" {
		var err error
		if cfg.Identity, err = trust.Open(trust.Options{Dir: folder}); err != nil {
			return err
		}
	}
	cfg.Region, cfg.HTTPAddr, cfg.Join = &nusav1.RegionDefinition{Name: region}, http, []string{join}
	return regional.Run(context.Background(), cfg)
}

// options returns the options of a small measurement.
func options(t *testing.T) Options {
	return Options{
		Nodes: 20, AgentsPerConnection: 1, Jobs: 30, Count: 3, Concurrency: 4, Connections: 2, Servers: 1, Warmup: 5,
		Timeout: 2 * time.Minute, Dir: t.TempDir(), Executable: os.Args[0], emptyFor: 50 * time.Millisecond,
	}
}

// lease is the lease of the nodes. It is long enough for a machine that also runs other
// tests.
const lease = 3 * time.Second

// inProcess runs a region of one server and returns its address.
func inProcess(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- regional.Run(ctx, regional.Config{
			Region: &nusav1.RegionDefinition{Name: "alpha"}, Name: "s1", InMemory: true, Raft: regional.FastRaft(),
			GRPCAddr: "127.0.0.1:0", RaftAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", ProbeAddr: "127.0.0.1:0", HTTPAddr: "-",
			NodeLease: lease, StatsInterval: 100 * time.Millisecond,
			Ready: func(a regional.Addresses) { ready <- a.GRPC },
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the region ended with %v", err)
		}
	})
	select {
	case addr := <-ready:
		awaitMaster(t, addr)
		return addr
	case err := <-ended:
		t.Fatalf("the region did not start: %v", err)
	}
	return ""
}

func awaitMaster(t *testing.T, addr string) {
	t.Helper()
	s := &server{name: "s1", addr: addr}
	if _, err := (&cluster{servers: []*server{s}}).master(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestAgentsKeepTheirSessions: leases and statistics arrive in time, so no node is lost.
func TestAgentsKeepTheirSessions(t *testing.T) {
	addr := inProcess(t)
	const nodes = 10
	f := newFleet(nodes, 1, "alpha", "bench-lease", addr, 1, false)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.run(ctx, context.Background()) }()
	if err := f.await(ctx, func(int) {}); err != nil {
		t.Fatal(err)
	}
	conn, err := serve.Dial(network.Host(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// Wait for two leases. A node without heartbeats would be lost after one lease.
	tick := time.NewTicker(lease / 10)
	defer tick.Stop()
	for range 20 {
		<-tick.C
		got, err := nusav1.NewNodesClient(conn).List(ctx, &nusav1.ListNodesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range got.GetNodes() {
			if n.GetState() != nusav1.NodeState_NODE_STATE_READY {
				t.Fatalf("node %s is %s", n.GetName(), n.GetState())
			}
		}
	}
	got, err := nusav1.NewNodesClient(conn).List(ctx, &nusav1.ListNodesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range got.GetNodes() {
		if age := n.GetStatsAge().AsDuration(); n.GetStats() == nil || age > lease {
			t.Errorf("node %s: statistics are %s old", n.GetName(), age)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestOwnServers(t *testing.T) {
	for _, encrypted := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%t", encrypted), func(t *testing.T) { testOwnServers(t, encrypted) })
	}
}

func testOwnServers(t *testing.T, encrypted bool) {
	o := options(t)
	o.Idle, o.Restart, o.TLS = 50*time.Millisecond, true, encrypted
	r, err := Measure(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Placed != o.instances() || r.Acknowledged != o.instances() {
		t.Errorf("placed %d, acknowledged %d of %d", r.Placed, r.Acknowledged, o.instances())
	}
	if r.ServerPeakRSSMB == nil || *r.ServerPeakRSSMB < 1 || r.ServerCPUUSPerPlacement == nil || len(r.PerServer) != 1 || !r.PerServer[0].Master {
		t.Errorf("figures of the server are missing: %+v", r)
	}
	if r.Idle == nil || r.Idle.Seconds <= 0 {
		t.Errorf("idle: %+v", r.Idle)
	}
	if r.Restart == nil || r.Restart.ElectedMS <= 0 || r.Restart.PlacedMS < r.Restart.ElectedMS || r.Restart.AgentsBackMS < r.Restart.PlacedMS {
		t.Errorf("restart: %+v", r.Restart)
	}
	empty(t, o.Dir)
}

// empty fails the test if the folder of the servers is left behind.
func empty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("%s is left behind", left[0].Name())
	}
}

// TestInterrupt: an interrupt at any time leaves no process and no file.
func TestInterrupt(t *testing.T) {
	o := options(t)
	o.Jobs, o.Rate, o.Warmup = 10_000, 10, 0 // longer than the test
	ctx, cancel := context.WithCancel(t.Context())
	seen := make(chan int, 1)
	o.Progress = func(string) {
		if pids := children(t, o.Dir); len(pids) > 0 {
			select {
			case seen <- pids[0]:
			default:
			}
			cancel()
		}
	}
	_, err := Measure(ctx, o)
	if err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("error %v", err)
	}
	pid := <-seen
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is left behind: %v", pid, err)
	}
	empty(t, o.Dir)
}

// children returns the processes that work in a folder.
func children(t *testing.T, dir string) []int {
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, file := range all {
		line, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(line, []byte(dir+"/nusa-bench-")) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(file, "/proc/%d/cmdline", &pid); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

func TestAServerThatDoesNotStart(t *testing.T) {
	o := options(t)
	o.Executable = "/bin/false"
	_, err := Measure(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "server s1 has ended") {
		t.Errorf("error %v", err)
	}
	empty(t, o.Dir)
}

// TestTimeout: the error of a timeout says how many instances were placed.
func TestTimeout(t *testing.T) {
	addr := inProcess(t)
	o := options(t)
	o.Against, o.Nodes, o.Timeout, o.Warmup = addr, 0, 3*time.Second, 0 // no node can run the jobs
	r, err := Measure(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "0 of 90 instances placed") || !strings.Contains(err.Error(), "--timeout 3s") {
		t.Errorf("error %v", err)
	}
	if r == nil || r.Placed != 0 || r.SubmitMS.Max <= 0 {
		t.Errorf("result %+v", r)
	}
	nothingIsLeft(t, addr)
}

func TestRota(t *testing.T) {
	r := rota{n: 7}
	turns := map[int]int{}
	for range 600 { // 600 × 50 ms = 10 × 3 s
		for _, i := range r.due(50*time.Millisecond, 3*time.Second) {
			turns[i]++
		}
	}
	for i := range 7 {
		if turns[i] < 9 || turns[i] > 10 {
			t.Errorf("agent %d had %d turns in 10 intervals", i, turns[i])
		}
	}
}

func TestOutput(t *testing.T) {
	rss, cpu, until := 123.4, 38.5, 30.25
	full := &Result{
		Nodes: 5000, Jobs: 3000, Count: 1, Placed: 3000, Acknowledged: 2999, Seconds: 60.0021, PlacementsPerS: 50,
		SubmitToPlacedMS: report.Quantiles{P50: 0.75, P90: 1.2, P99: 2.9, Max: 112.7}, ServerPeakRSSMB: &rss, ServerCPUUSPerPlacement: &cpu,
		EmptyCallsPerS: 61234.5, EmptyCallMS: &report.Quantiles{P50: 0.25, P90: 0.3, P99: 0.5, Max: 0.75}, FSync: true, AcknowledgedSeconds: 60.004, AcknowledgedPerS: 49.9,
		SubmitMS: report.Quantiles{P50: 0.4, P90: 0.5, P99: 1, Max: 2}, Retries: 1, ServerCPUUSPerPlacementUntilPlaced: &until, LoadCPUSeconds: 1.5,
		AgentsConnectSeconds: 2.5, Servers: 3, Concurrency: 16, Connections: 4, Rate: 50, Warmup: 100,
		Filesystem: "ext4", DiskSyncMS: &report.Quantiles{P50: 0.2, P90: 0.3, P99: 1, Max: 2},
		PerServer: []ServerFigures{{"s1", true, 123.4, 0.1}, {"s2", false, 80, 0.02}},
		Idle:      &IdleFigures{10, 0.1}, Restart: &RestartFigures{2000, 2100, 100, 2500},
	}
	against := &Result{Nodes: 0, Jobs: 10, Count: 2, Placed: 20, Acknowledged: 20, Seconds: 1, PlacementsPerS: 20, FSync: true, Concurrency: 4, Stream: true}
	broken := *against
	broken.Placed, broken.Incomplete = 7, true
	var got bytes.Buffer
	for _, r := range []*Result{full, against, &broken} {
		for _, o := range []report.Output{"json", "yaml", "table"} {
			if err := o.Print(&got, r, r.Table); err != nil {
				t.Fatal(err)
			}
		}
	}
	golden.File(t, "testdata/output.txt", got.String())
	var keys map[string]any
	if err := json.Unmarshal(bytes.SplitN(got.Bytes(), []byte("\n"), 2)[0], &keys); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{
		"nodes", "jobs", "count", "placed", "acknowledged", "seconds", "placements_per_s", "submit_to_placed_ms",
		"server_peak_rss_mb", "server_cpu_us_per_placement", "empty_calls_per_s", "fsync",
	} {
		if _, found := keys[k]; !found {
			t.Errorf("the JSON lacks %q, which scripts rely on", k)
		}
	}
}
