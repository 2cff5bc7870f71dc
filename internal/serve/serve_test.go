package serve_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

type system struct {
	nusav1.UnimplementedSystemServer
}

func (system) Info(context.Context, *nusav1.InfoRequest) (*nusav1.InfoResponse, error) {
	return &nusav1.InfoResponse{Role: "test"}, nil
}

// jobs is a service with a watch that never ends by itself, like a session.
type jobs struct {
	nusav1.UnimplementedJobsServer
}

func (jobs) Watch(_ *nusav1.GetJobRequest, stream grpc.ServerStreamingServer[nusav1.Job]) error {
	if err := stream.Send(&nusav1.Job{}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

// run starts a server. The returned function stops the server and returns the error of
// Run.
func run(t *testing.T, opts serve.Options) (*serve.Server, func() error) {
	t.Helper()
	s, err := serve.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	nusav1.RegisterSystemServer(s.GRPC, system{})
	nusav1.RegisterJobsServer(s.GRPC, jobs{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return s, func() error {
		cancel()
		return <-done
	}
}

func loopback() serve.Options {
	return serve.Options{Net: network.Host(), GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", Grace: 50 * time.Millisecond}
}

// fetch returns the status code and the body of an HTTP response.
func fetch(t *testing.T, s *serve.Server, path string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + s.HTTPAddr() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

func TestServerServesAndStops(t *testing.T) {
	defer goleak.VerifyNone(t)
	opts := loopback()
	notReady := errors.New("no leader elected yet")
	opts.Ready = func() error { return notReady }
	opts.SmallBuffers = true
	s, stop := run(t, opts)
	conn, err := serve.Dial(network.Host(), s.GRPCAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if info, err := nusav1.NewSystemClient(conn).Info(t.Context(), &nusav1.InfoRequest{}); err != nil || info.GetRole() != "test" {
		t.Fatalf("Info: %v, %v", info, err)
	}
	health, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || health.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", health, err)
	}
	if code, _ := fetch(t, s, "/livez"); code != http.StatusOK {
		t.Errorf("/livez %d", code)
	}
	if code, body := fetch(t, s, "/readyz"); code != http.StatusServiceUnavailable || body != "no leader elected yet\n" {
		t.Errorf("/readyz %d %q", code, body)
	}
	for _, want := range []string{`nusa_grpc_calls_total{code="OK",method="/nusa.v1.System/Info"} 1`, "nusa_grpc_call_seconds_count", "go_goroutines", `nusa_build_info{version="dev"} 1`} {
		if _, body := fetch(t, s, "/metrics"); !strings.Contains(body, want) {
			t.Errorf("no %s in /metrics", want)
		}
	}
	watch, err := nusav1.NewJobsClient(conn).Watch(t.Context(), &nusav1.GetJobRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	// The watch never ends by itself, so the stop ended it.
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("watch ended with %v", err)
	}
}

func TestMessageSizesAreBounded(t *testing.T) {
	defer goleak.VerifyNone(t)
	s, stop := run(t, loopback())
	conn, err := serve.Dial(network.Host(), s.GRPCAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	big := &nusav1.SubmitRequest{IdempotencyKey: strings.Repeat("x", 5<<20)}
	if _, err := nusav1.NewJobsClient(conn).Submit(t.Context(), big); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("5 MiB: %v", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestStopBeforeServing: a server that is stopped before it serves has ended without an error, and has closed its
// listener.
func TestStopBeforeServing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	s.Stop()
	if err := serve.GRPC(s, l); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener returned %v", err)
	}
}

func TestAddressInUse(t *testing.T) {
	defer goleak.VerifyNone(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	addr := taken.Addr().String()
	for _, c := range []struct {
		opts serve.Options
		want string
	}{
		{serve.Options{Net: network.Host(), GRPCAddr: addr}, "listen " + addr + ": address already in use: another nusa? choose another with --grpc-addr"},
		{serve.Options{Net: network.Host(), GRPCAddr: "127.0.0.1:0", HTTPAddr: addr, HTTPFlag: "--metrics"}, "listen " + addr + ": address already in use: another nusa? choose another with --metrics"},
		{serve.Options{Net: network.Host(), GRPCAddr: "127.0.0.1:notaport"}, "listen 127.0.0.1:notaport: lookup tcp/notaport: unknown port (--grpc-addr)"},
	} {
		_, err := serve.Open(t.Context(), c.opts)
		if err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	if _, err := serve.Listen(t.Context(), network.Host(), addr, "--x"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("the cause is lost in %v", err)
	}
}

func TestNewLogger(t *testing.T) {
	var b bytes.Buffer
	l, err := serve.NewLogger("warn", "json", &b)
	if err != nil {
		t.Fatal(err)
	}
	l.Info("quiet")
	l.Warn("loud", "region", "x")
	if s := b.String(); strings.Contains(s, "quiet") || !strings.Contains(s, `"msg":"loud","region":"x"`) {
		t.Errorf("logged %s", s)
	}
	for _, bad := range [][2]string{{"loud", "text"}, {"info", "xml"}} {
		if _, err := serve.NewLogger(bad[0], bad[1], &b); err == nil {
			t.Errorf("%v accepted", bad)
		}
	}
}

func TestDataDirHasOneOwner(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	d, err := serve.OpenDataDir(dir, "agent", "")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	expect := func(role, cluster string, want error, text string) {
		t.Helper()
		_, err := serve.OpenDataDir(dir, role, cluster)
		if !errors.Is(err, want) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %v with %q", err, want, text)
		}
	}
	expect("agent", "", serve.ErrDirInUse, "another nusa runs with it")
	if err := d.SetCluster("c1"); err != nil {
		t.Fatal(err)
	}
	if err := d.SetCluster("c2"); !errors.Is(err, serve.ErrOtherCluster) {
		t.Errorf("second cluster: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	expect("global", "", serve.ErrOtherRole, "belongs to agent, not to global")
	expect("agent", "c2", serve.ErrOtherCluster, "belongs to cluster c1, not to c2")
	d, err = serve.OpenDataDir(dir, "agent", "c1")
	if err != nil {
		t.Fatal(err)
	}
	if d.ClusterID() != "c1" || d.Path("raft", "log.db") != filepath.Join(dir, "raft", "log.db") {
		t.Errorf("cluster %q, path %q", d.ClusterID(), d.Path("raft"))
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for marker, text := range map[string]string{`{"format": 2}`: "has format 2, this version reads 1", "garbage": "invalid character"} {
		if err := os.WriteFile(filepath.Join(dir, "nusa.json"), []byte(marker), 0o600); err != nil {
			t.Fatal(err)
		}
		expect("agent", "", serve.ErrNotDataDir, text)
	}

	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "letter.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir = home
	expect("agent", "", serve.ErrNotDataDir, "holds letter.txt")
}
