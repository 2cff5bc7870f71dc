package dev_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/agent/supervise"
	"github.com/nusa-scheduler/nusa/cmd/nusa/dev"
	"github.com/nusa-scheduler/nusa/global"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// TestMain lets the test binary run as `nusa supervise`.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		os.Exit(supervise.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// ports is the number of ports that four regions need.
const ports = 500

// start runs a federation. It returns the federation, a connection, and a function that
// stops the federation and waits for its end.
func start(t *testing.T, o dev.Options) (dev.Federation, *grpc.ClientConn, func()) {
	t.Helper()
	o.Port = freeport.Reserve(t, ports)
	if level := os.Getenv("NUSA_TEST_LOG"); level != "" {
		logger, err := serve.NewLogger(level, "text", os.Stderr)
		if err != nil {
			t.Fatal(err)
		}
		o.Logger = logger
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan dev.Federation, 1)
	ended := make(chan error, 1)
	o.Ready = func(f dev.Federation) { ready <- f }
	go func() { ended <- dev.Run(ctx, o) }()
	stop := func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("dev.Run: %v", err)
		}
		ended <- nil
	}
	t.Cleanup(stop)
	select {
	case f := <-ready:
		var operator *trust.Source
		if !o.Insecure {
			var err error
			operator, err = trust.Open(trust.Options{Dir: f.Identity})
			if err != nil {
				t.Fatal(err)
			}
		}
		conn, err := grpc.NewClient(f.Addr, operator.Dial(identity.GlobalServers()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		t.Logf("ready in %s", f.Started)
		return f, conn, stop
	case err := <-ended:
		ended <- nil
		t.Fatalf("ended before it was ready: %v", err)
	case <-time.After(2 * time.Minute):
		t.Fatal("not ready within 2 min")
	}
	panic("unreachable")
}

func parse(t *testing.T, text string) *nusav1.JobSpec {
	t.Helper()
	spec, err := job.Parse([]byte(text), "job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// until watches a job until it is in the state.
func until(t *testing.T, conn *grpc.ClientConn, name string, want nusav1.JobState) *nusav1.Job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stream, err := nusav1.NewJobsClient(conn).Watch(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: "default", Name: name}})
	if err != nil {
		t.Fatal(err)
	}
	var last *nusav1.Job
	for {
		j, err := stream.Recv()
		if err != nil {
			t.Fatalf("%s is not %s: %v; last: %v", name, want, err, last.GetStatus())
		}
		last = j
		if j.GetStatus().GetState() == want {
			return j
		}
	}
}

const nearSingapore = `
name: near
regions:
  near: [{region: southeastasia, max_rtt: 100ms, required: true}]
  spread: {min: 2, max: 2}
  divide: even
groups:
  main:
    count: 2
    tasks:
      hello:
        driver: process
        config: {command: /bin/sh, args: ["-c", "echo hello from $NUSA_REGION; exec sleep 1000"]}
        resources: {cpu: 10m, memory: 16MiB}
`

// TestHello takes one job through all real tiers and back. It checks which regions are near
// enough, a real process, its output, its end, and what remains after a restart.
func TestHello(t *testing.T) {
	opts := dev.Options{Regions: []string{"southeastasia", "japaneast", "westeurope"}, Agents: 2, DataDir: t.TempDir()}
	fed, conn, stop := start(t, opts)
	for _, addr := range []string{fed.Addr, fed.Regions["japaneast"]} {
		refusesPlain(t, addr)
	}
	awaitMatrix(t, conn)

	if _, err := nusav1.NewJobsClient(conn).Submit(t.Context(), &nusav1.SubmitRequest{Spec: parse(t, nearSingapore)}); err != nil {
		t.Fatal(err)
	}
	j := until(t, conn, "near", nusav1.JobState_JOB_STATE_RUNNING)
	for region := range j.GetStatus().GetGroups()["main"].GetRegions() {
		if region == "westeurope" {
			t.Errorf("runs in westeurope, over 100 ms from southeastasia: %v", j.GetStatus())
		}
	}

	allocs, err := nusav1.NewAllocationsClient(conn).List(t.Context(), &nusav1.ListAllocationsRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "near"}})
	if err != nil || len(allocs.GetAllocations()) != 2 || len(allocs.GetErrors()) != 0 {
		t.Fatalf("allocations: %v, %v", allocs, err)
	}
	for _, a := range allocs.GetAllocations() {
		if got, want := firstLog(t, conn, a.GetId()), "hello from "+a.GetRegion()+"\n"; got != want {
			t.Errorf("log of %s: %q, want %q", a.GetId(), got, want)
		}
	}

	secret := tokenIn(t, fed)
	stop()
	refusedShapes(t, opts.DataDir)
	opts.Regions = nil // the data directory has the regions
	fed, conn, _ = start(t, opts)
	if len(fed.Names) != 3 || fed.Agents != 6 {
		t.Errorf("the second start has %d agents in %v", fed.Agents, fed.Names)
	}
	if again := tokenIn(t, fed); again != secret {
		t.Error("the second start has made another access token")
	}
	until(t, conn, "near", nusav1.JobState_JOB_STATE_RUNNING)
	sameRunning(t, conn, allocs.GetAllocations())
	if _, err := nusav1.NewJobsClient(conn).Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "near"}}); err != nil {
		t.Fatal(err)
	}
	until(t, conn, "near", nusav1.JobState_JOB_STATE_STOPPED)
}

// refusesPlain checks that a server refuses a caller without an identity.
func refusesPlain(t *testing.T, addr string) {
	t.Helper()
	conn, err := grpc.NewClient(addr, (*trust.Source)(nil).Dial(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := nusav1.NewSystemClient(conn).Info(t.Context(), &nusav1.InfoRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("%s: a caller without an identity: %v", addr, err)
	}
}

// refusedShapes checks starts that must fail, because the data directory has three regions
// with one server each.
func refusedShapes(t *testing.T, dir string) {
	t.Helper()
	for _, c := range []struct {
		opts dev.Options
		want error
	}{
		{dev.Options{DataDir: dir, Servers: 3}, dev.ErrShape},
		{dev.Options{DataDir: dir, Regions: []string{"southeastasia"}}, dev.ErrShape},
		{dev.Options{DataDir: filepath.Join(dir, "global-1")}, serve.ErrOtherRole},
		{dev.Options{DataDir: dir, Insecure: true, Port: freeport.Reserve(t, ports)}, global.ErrIdentities},
	} {
		if err := dev.Run(t.Context(), c.opts); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.opts, err, c.want)
		}
	}
}

// sameRunning waits until each allocation runs a new process, without new
// allocations.
func sameRunning(t *testing.T, conn *grpc.ClientConn, want []*nusav1.Allocation) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(2 * time.Minute)
	for {
		got, err := nusav1.NewAllocationsClient(conn).List(t.Context(), &nusav1.ListAllocationsRequest{
			Job: &nusav1.JobRef{Namespace: "default", Name: "near"}, All: true})
		running := 0
		for _, a := range got.GetAllocations() {
			same := slices.ContainsFunc(want, func(w *nusav1.Allocation) bool { return w.GetId() == a.GetId() && w.GetNodeId() == a.GetNodeId() })
			if !same {
				t.Fatalf("after the restart there is another allocation: %v", a)
			}
			if task := a.GetTasks()["hello"]; task.GetState() == nusav1.AllocState_ALLOC_STATE_RUNNING && task.GetRun() > 1 {
				running++
			}
		}
		if running == len(want) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d of %d run again: %v, %v", running, len(want), got, err)
		}
	}
}

// tokenIn returns the access token of a federation, with which the HTTP API answers.
func tokenIn(t *testing.T, fed dev.Federation) string {
	t.Helper()
	info, err := os.Stat(fed.TokenFile)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("the token file has %v: %v", info, err)
	}
	text, err := os.ReadFile(fed.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+fed.HTTP+"/v1/auth/tokens", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(text)))
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("the token gets %s", resp.Status)
	}
	return string(text)
}

// TestMistakesStartNothing: mistakes name the flag and the remedy, and start nothing.
func TestMistakesStartNothing(t *testing.T) {
	port := freeport.Reserve(t, 300)
	taken, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	table := filepath.Join(t.TempDir(), "rtt.csv")
	if err := os.WriteFile(table, []byte("from,jakarta,tokyo\njakarta,,80\ntokyo,81,\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	apart := filepath.Join(t.TempDir(), "apart.csv")
	if err := os.WriteFile(apart, []byte("from,jakarta,tokyo,lima\njakarta,,80.5,-\ntokyo,81,,20\nlima,,20,\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	islands := filepath.Join(t.TempDir(), "islands.csv")
	if err := os.WriteFile(islands, []byte("from,jakarta,tokyo,lima\njakarta,,80.5,\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]dev.Options{
		"no connection from lima to jakarta: the global server is beside the first region, jakarta, and every region connects to it; fill in these cells, or begin with another region: --regions tokyo,jakarta,lima": {WAN: apart},
		"no connection from tokyo to jakarta: the global server is beside the first region, jakarta, and every region connects to it; fill in these cells":                                                            {WAN: islands},
		"no connection from tokyo and lima to jakarta: the global server is beside":                                                                                                                                   {WAN: islands, Regions: []string{"jakarta", "tokyo", "lima"}},
		"did you mean southeastasia, ":            {Regions: []string{"southeastasi"}},
		"did you mean southeastasia? --list":      {Regions: []string{"singapore"}},
		"did you mean northeurope, westeurope? ":  {Regions: []string{"europe"}},
		`no region "xyzzy": --list-regions`:       {Regions: []string{"xyzzy"}},
		"eastus is named twice":                   {Regions: []string{"eastus", "eastus"}},
		"not a name of a region":                  {Regions: []string{"East US"}, WAN: "none"},
		`.csv" has no region "eastus"`:            {Regions: []string{"eastus"}, WAN: table},
		"no/such: neither azure nor none nor":     {WAN: "no/such"},
		"--servers: 6 is not 1..5":                {Servers: 6},
		"--agents: -1 is not 1..50":               {Agents: -1},
		"--port: 65000 is not within 1024..64935": {Port: 65000},
		fmt.Sprintf("127.0.0.1:%d is in use (another nusa dev?): choose another first port", port): {Port: port, WAN: table},
	} {
		if err := dev.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

func firstLog(t *testing.T, conn *grpc.ClientConn, id string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stream, err := nusav1.NewAllocationsClient(conn).Logs(ctx, &nusav1.LogsRequest{Allocation: id, Stdout: true, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for !strings.Contains(out.String(), "\n") {
		chunk, err := stream.Recv()
		if err != nil {
			t.Fatalf("log of %s after %q: %v", id, out.String(), err)
		}
		out.Write(chunk.GetData())
	}
	return out.String()
}

// awaitMatrix waits until every edge has been measured, because a required
// `near` refuses other edges. The matrix must then match the table.
func awaitMatrix(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		m, err := nusav1.NewTopologyClient(conn).Matrix(ctx, &nusav1.MatrixRequest{})
		measured, slow := 0, false
		for _, e := range m.GetEdges() {
			if e.GetState() == nusav1.EdgeState_EDGE_STATE_OK && e.GetSource() == nusav1.RTTSource_RTT_SOURCE_MEASURED {
				measured++
			}
		}
		if n := len(m.GetRegions()); n == 3 && measured == n*(n-1) {
			for _, e := range m.GetEdges() {
				if e.GetFrom() == "southeastasia" && e.GetTo() == "japaneast" {
					// 70 ms in the table. A busy machine only adds time.
					rtt := e.GetMin().AsDuration()
					if rtt < 69*time.Millisecond {
						t.Errorf("southeastasia → japaneast: %s, the table says about 70 ms", rtt)
					}
					slow = rtt > 90*time.Millisecond // repeat until a sample was not delayed
				}
			}
			if !slow {
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("matrix not measured: %v, %v", m, err)
		}
	}
}
