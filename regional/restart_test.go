package regional_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional"
)

// These tests use real sockets, real files and real time.

// probing ignores goroutines of memberlist. Its Shutdown does not wait for a probe in
// progress, but the probe ends after its time-out.
var probing = goleak.IgnoreTopFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode")

func config(dir string) regional.Config {
	return regional.Config{
		Region: &nusav1.RegionDefinition{Name: regionName}, Name: "s1", DataDir: dir,
		GRPCAddr: "127.0.0.1:0", RaftAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", ProbeAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0",
		Raft: regional.FastRaft(),
	}
}

// started is a server with real sockets.
type started struct {
	addrs regional.Addresses
	conn  *grpc.ClientConn
	stop  func()
}

func startReal(t *testing.T, cfg regional.Config) started {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan regional.Addresses, 1), make(chan error, 1)
	cfg.Ready = func(a regional.Addresses) { ready <- a }
	go func() { ended <- regional.Run(ctx, cfg) }()
	select {
	case a := <-ready:
		conn, err := serve.Dial(network.Host(), a.GRPC)
		if err != nil {
			t.Fatal(err)
		}
		return started{a, conn, func() {
			t.Helper()
			_ = conn.Close()
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("the server ended with %v", err)
			}
		}}
	case err := <-ended:
		cancel()
		t.Fatalf("the server did not start: %v", err)
	}
	return started{}
}

// retry calls f until it succeeds, for at most a minute.
func retry(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within a minute: %v", err)
		case <-tick.C:
		}
	}
}

func TestRestartLosesNoAcknowledgedJob(t *testing.T) {
	defer goleak.VerifyNone(t, probing)
	dir := filepath.Join(t.TempDir(), "data")
	began := time.Now()
	s := startReal(t, config(dir))
	var revision int64
	retry(t, func(ctx context.Context) error {
		r, err := nusav1.NewJobsClient(s.conn).Submit(ctx, &nusav1.SubmitRequest{Spec: spec("kept", 2), IdempotencyKey: "k"})
		revision = r.GetRevision()
		return err
	})
	t.Logf("acknowledged a job %v after the start", time.Since(began).Round(time.Millisecond))
	s.stop()

	s = startReal(t, config(dir)) // the server gets other ports, so that its own address has changed
	defer s.stop()
	retry(t, func(ctx context.Context) error {
		j, err := nusav1.NewJobsClient(s.conn).Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "kept"}})
		if err != nil {
			return err
		}
		if j.GetRevision() != revision || j.GetRegion() != regionName || j.GetStatus().GetGroups()["web"].GetCounts().GetPending() != 2 {
			return fmt.Errorf("the job after the restart: %v", j)
		}
		again, err := nusav1.NewJobsClient(s.conn).Submit(ctx, &nusav1.SubmitRequest{Spec: spec("kept", 2), IdempotencyKey: "k"})
		if err != nil || again.GetRevision() != revision {
			return fmt.Errorf("the same submit with the same key again: %v, %v", again, err)
		}
		return nil
	})
}

// TestRestartFindsTheGroup: the configuration of a restarted server names only the server
// itself. The server finds the others by the addresses in its data directory.
func TestRestartFindsTheGroup(t *testing.T) {
	defer goleak.VerifyNone(t, probing)
	first, second := config(filepath.Join(t.TempDir(), "1")), config(filepath.Join(t.TempDir(), "2"))
	second.Name = "s2"
	first.BootstrapExpect, second.BootstrapExpect = 2, 2
	a := startReal(t, first)
	second.Join = []string{a.addrs.Gossip}
	b := startReal(t, second)
	defer b.stop()
	both := func(s started) func(context.Context) error {
		return func(ctx context.Context) error {
			r, err := nusav1.NewRegionsClient(s.conn).Get(ctx, &nusav1.GetRegionRequest{Name: regionName})
			if err != nil {
				return err
			}
			healthy := 0
			for _, srv := range r.GetServers() {
				if srv.GetHealthy() {
					healthy++
				}
			}
			if healthy != 2 || r.GetMaster() == "" {
				return fmt.Errorf("%d healthy servers, master %q", healthy, r.GetMaster())
			}
			return nil
		}
	}
	retry(t, both(a))
	file := filepath.Join(first.DataDir, "gossip-peers")
	retry(t, func(context.Context) error {
		if raw, err := os.ReadFile(file); err != nil || string(raw) != b.addrs.Gossip+"\n" {
			return fmt.Errorf("stored addresses %q, %w", raw, err)
		}
		return nil
	})
	first.GRPCAddr, first.RaftAddr, first.GossipAddr = a.addrs.GRPC, a.addrs.Raft, a.addrs.Gossip
	a.stop()

	first.Join = []string{a.addrs.Gossip} // the server's own address
	a = startReal(t, first)
	defer a.stop()
	retry(t, both(a))
}

func TestInvalidStartsNameTheCause(t *testing.T) {
	defer goleak.VerifyNone(t, probing)
	dir := filepath.Join(t.TempDir(), "data")
	s := startReal(t, config(dir))
	defer s.stop()
	run := func(change func(*regional.Config)) error {
		cfg := config(filepath.Join(t.TempDir(), "other"))
		change(&cfg)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return regional.Run(ctx, cfg)
	}
	for _, test := range []struct {
		name   string
		change func(*regional.Config)
		want   error
		text   string
	}{
		{"data directory in use", func(c *regional.Config) { c.DataDir = dir }, serve.ErrDirInUse, dir},
		{"address in use", func(c *regional.Config) { c.GRPCAddr = s.addrs.GRPC }, nil, "in use"},
		{"Raft address in use", func(c *regional.Config) { c.RaftAddr = s.addrs.Raft }, nil, "--raft-addr"},
		{"no region", func(c *regional.Config) { c.Region = nil }, regional.ErrConfig, "region.name"},
		{"bad region", func(c *regional.Config) { c.Region.Name = "Not A Name" }, regional.ErrConfig, "region"},
		{"bad name", func(c *regional.Config) { c.Name = "a b" }, regional.ErrConfig, "name"},
		{"no expected servers", func(c *regional.Config) { c.BootstrapExpect = -1 }, regional.ErrConfig, "bootstrap_expect"},
		{"short key", func(c *regional.Config) { c.GossipKeys = [][]byte{[]byte("short")} }, regional.ErrConfig, "gossip_key"},
		{"short probe key", func(c *regional.Config) { c.ProbeKeys = [][]byte{make([]byte, 16), []byte("short")} }, regional.ErrConfig, "probe_key: key 2"},
		{"wildcard without an address", func(c *regional.Config) { c.GRPCAddr = "0.0.0.0:0" }, regional.ErrConfig, "advertise"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := run(test.change)
			if err == nil || test.want != nil && !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("got %v, want %v with %q", err, test.want, test.text)
			}
		})
	}
	t.Run("data directory of another region", func(t *testing.T) {
		other := filepath.Join(t.TempDir(), "data")
		startReal(t, config(other)).stop()
		err := run(func(c *regional.Config) { c.DataDir, c.Region.Name = other, "beta" })
		if !errors.Is(err, serve.ErrOtherRole) {
			t.Errorf("got %v", err)
		}
	})
}

// TestGossipRefusesForeignServers: a server of another region, or with another key, cannot
// join the group.
func TestGossipRefusesForeignServers(t *testing.T) {
	defer goleak.VerifyNone(t, probing)
	var out bytes.Buffer
	first := config(filepath.Join(t.TempDir(), "a"))
	first.GossipKeys = [][]byte{bytes.Repeat([]byte("k"), 32)}
	s := startReal(t, first)
	defer s.stop()
	for name, change := range map[string]func(*regional.Config){
		"region": func(c *regional.Config) { c.Region.Name = "beta" },
		"key":    func(c *regional.Config) { c.GossipKeys = [][]byte{bytes.Repeat([]byte("x"), 32)} },
		"no key": func(c *regional.Config) { c.GossipKeys = nil },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(filepath.Join(t.TempDir(), "b"))
			cfg.Name, cfg.Join, cfg.GossipKeys = "s2", []string{s.addrs.Gossip}, first.GossipKeys
			cfg.Logger = slog.New(slog.NewTextHandler(&out, nil))
			change(&cfg)
			stranger := startReal(t, cfg)
			defer stranger.stop()
			// After a few calls both sides have either exchanged their members or refused
			// the exchange. Here neither side must know the other.
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for range 5 {
				<-tick.C
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			r, err := nusav1.NewRegionsClient(s.conn).Get(ctx, &nusav1.GetRegionRequest{Name: regionName})
			if err != nil || len(r.GetServers()) != 1 {
				t.Errorf("the group's servers are %v, %v", r.GetServers(), err)
			}
			i, err := nusav1.NewSystemClient(stranger.conn).Info(ctx, &nusav1.InfoRequest{})
			if err != nil || i.GetLeaderAddress() != "" {
				t.Errorf("the foreign server knows a master: %v, %v", i, err)
			}
		})
	}
}
