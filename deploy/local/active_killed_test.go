//go:build integration

package local_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// burstJobs are submitted as fast as the servers take them.
	burstJobs = 12_000
	// burstStreams and burstCallers submit them, by streams and by single calls.
	burstStreams, burstCallers = 6, 16
)

// pair is two global servers over one etcd, which runs in this process.
type pair struct {
	t       *testing.T
	servers [2]report.Server
	conns   [2]*grpc.ClientConn
	addrs   [2]string
}

func startPair(t *testing.T) *pair {
	t.Helper()
	bin, err := filepath.Abs("../../bin/nusa")
	if err != nil {
		t.Fatal(err)
	}
	dir, port := t.TempDir(), freeport.Reserve(t, ports)
	leftover.Nothing(t, dir)
	addr := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", port+i) }
	etcd, err := store.OpenEtcd(t.Context(), store.EtcdConfig{
		Name: "etcd", DataDir: filepath.Join(dir, "etcd"), ClientAddr: addr(0), PeerAddr: addr(1), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := etcd.Close(); err != nil {
			t.Error(err)
		}
	})
	f := &federation{t: t}
	p := &pair{t: t}
	for i := range p.servers {
		name := fmt.Sprintf("global-%d", i+1)
		p.addrs[i] = addr(2 + i)
		p.servers[i] = report.Server{Name: name, Exe: bin, Log: filepath.Join(dir, name+".log"), Args: []string{
			"global", "--name", name, "--data-dir", filepath.Join(dir, name), "--grpc-addr", p.addrs[i], "--http-addr", "-", "--etcd-endpoints", addr(0),
			"--webhook-allow-http", "--webhook-allow-private", "127.0.0.0/8",
		}}
		if err := p.servers[i].Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.servers[i].Stop)
		t.Cleanup(func() {
			if t.Failed() {
				showLog(t, p.servers[i].Log)
			}
		})
		p.conns[i] = f.dial(port + 2 + i)
		f.eventually(name+" knows the active server", func(ctx context.Context) error {
			info, err := nusav1.NewSystemClient(p.conns[i]).Info(ctx, &nusav1.InfoRequest{})
			if err == nil && info.GetLeaderAddress() != p.addrs[0] {
				err = fmt.Errorf("active is %q", info.GetLeaderAddress())
			}
			return err
		})
	}
	return p
}

// showLog writes the end of a log to the test's output.
func showLog(t *testing.T, name string) {
	const most = 8 << 10
	text, err := os.ReadFile(name)
	t.Logf("%s: %v\n%s", name, err, text[max(0, len(text)-most):])
}

// TestActiveKilledUnderLoad: the active global server is killed while it takes as many submits as
// it can. Nothing acknowledged is lost, nothing is done twice, and each instance has one owner. A consumer
// sees each durable event once, in the order of the numbers.
func TestActiveKilledUnderLoad(t *testing.T) {
	p := startPair(t)
	f := &federation{t: t}
	b := newBurst(t, p.conns, burstJobs, burstStreams, burstCallers)
	stop := b.runFleet(t.Context(), p.addrs[1])
	defer stop()
	var g errgroup.Group
	ctx, cancel := context.WithCancel(t.Context())
	defer func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}()
	events := follow(p.conns[1])
	g.Go(func() error { return events.run(ctx) })
	b.killHalfway(ctx, p.servers[0].Kill)
	f.eventually("each instance has an owner", func(ctx context.Context) error { return b.stored(ctx, p.conns[1]) })
	f.eventually("each event was seen once", func(context.Context) error { return events.eachOnce(burstJobs) })
	again := follow(p.conns[1]) // from the beginning, at the new active server
	g.Go(func() error { return again.run(ctx) })
	f.eventually("each event is stored", func(context.Context) error { return again.eachOnce(burstJobs) })
	if events.streams < 2 || again.streams != 1 {
		t.Errorf("%d streams of events, and %d after the kill", events.streams, again.streams)
	}
	f.eventually("each instance was accepted", b.acceptedOnce)
	b.submitAgain(ctx)
}

// TestServerKilledAtFiveThousand: a single global server with its own etcd takes more than 5,000 submits a
// second on two quiet cores. The server is killed, and starts again. Nothing acknowledged is lost, nothing is done
// twice, and each instance has one owner.
func TestServerKilledAtFiveThousand(t *testing.T) {
	bin, err := filepath.Abs("../../bin/nusa")
	if err != nil {
		t.Fatal(err)
	}
	const jobs, streams = 5 * burstJobs, 8
	dir, port := t.TempDir(), freeport.Reserve(t, ports)
	leftover.Nothing(t, dir)
	addr := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", port+i) }
	server := report.Server{Name: "global", Exe: bin, Log: filepath.Join(dir, "global.log"), Args: []string{
		"global", "--name", "global", "--data-dir", filepath.Join(dir, "global"), "--grpc-addr", addr(0), "--http-addr", "-",
		"--etcd-client-addr", addr(1), "--etcd-peer-addr", addr(2), "--log-level", "warn",
	}}
	t.Cleanup(func() {
		server.Stop()
		if t.Failed() {
			showLog(t, server.Log)
		}
	})
	f := &federation{t: t}
	conn := f.dial(port)
	start := func() {
		if err := server.Start(); err != nil {
			t.Error(err)
		}
	}
	start()
	f.eventually("the server is active", func(ctx context.Context) error {
		info, err := nusav1.NewSystemClient(conn).Info(ctx, &nusav1.InfoRequest{})
		if err == nil && !info.GetLeader() {
			err = errors.New("not yet")
		}
		return err
	})
	b := newBurst(t, [2]*grpc.ClientConn{conn, conn}, jobs, streams, 0)
	stop := b.runFleet(t.Context(), addr(0))
	defer stop()
	b.killHalfway(t.Context(), func() { server.Kill(); start() })
	f.eventually("each instance was accepted", b.acceptedOnce)
	f.eventually("each instance has an owner", func(ctx context.Context) error { return b.stored(ctx, conn) })
	b.submitAgain(t.Context())
}
