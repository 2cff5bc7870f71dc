package quorum

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// BenchmarkCeiling measures the limits of gRPC and the Raft log without Nusa. Calls of 200
// bytes return once they are in a Raft log on disk, with fsync. Calls that wait together
// share an entry. The callers are in the same process, on four connections.
func BenchmarkCeiling(b *testing.B) {
	for _, callers := range []int{1, 16, 64} {
		for _, logged := range []bool{false, true} {
			b.Run(fmt.Sprintf("callers=%d/log=%t", callers, logged), func(b *testing.B) { ceiling(b, callers, logged) })
		}
	}
}

// BenchmarkCeilingAtRest measures how long such a call takes when there is only one call in
// 20 ms. Most of that time the machine needs to wake up.
func BenchmarkCeilingAtRest(b *testing.B) {
	for _, logged := range []bool{false, true} {
		b.Run(fmt.Sprintf("log=%t", logged), func(b *testing.B) {
			client, req := parts(b, 1, logged)[0], request()
			const calls = 250
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				for i := range calls {
					due := start.Add(time.Duration(i) * 20 * time.Millisecond)
					for left := time.Until(due); left > 0; left = time.Until(due) {
						ts := syscall.NsecToTimespec(int64(left)) // Go's timers fire late in an idle process
						_ = syscall.Nanosleep(&ts, nil)
					}
					if _, err := client.Check(b.Context(), req); err != nil {
						b.Fatal(err)
					}
					took = append(took, time.Since(due))
				}
			}
			slices.Sort(took)
			ms := func(part int) float64 { return took[len(took)*part/100].Seconds() * 1e3 }
			b.ReportMetric(ms(50), "p50-ms")
			b.ReportMetric(ms(99), "p99-ms")
		})
	}
}

func request() *grpc_health_v1.HealthCheckRequest {
	return &grpc_health_v1.HealthCheckRequest{Service: strings.Repeat("x", 200)}
}

// parts returns clients of a server, each with a connection.
func parts(b *testing.B, connections int, logged bool) []grpc_health_v1.HealthClient {
	b.Helper()
	srv := &logging{queue: make(chan entering, 1024)}
	if logged {
		srv.raft = alone(b)
		go srv.run()
		b.Cleanup(func() { close(srv.queue) }) // after the last call
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	g := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(g, srv)
	go func() { _ = g.Serve(lis) }() // ends with Stop
	b.Cleanup(g.Stop)
	clients := make([]grpc_health_v1.HealthClient, connections)
	for i := range clients {
		conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close() })
		clients[i] = grpc_health_v1.NewHealthClient(conn)
	}
	return clients
}

func ceiling(b *testing.B, callers int, logged bool) {
	clients, req := parts(b, 4, logged), request()
	var left sync.WaitGroup
	calls := make(chan struct{}, 4*callers)
	b.ResetTimer()
	for i := range callers {
		left.Go(func() {
			for range calls {
				if _, err := clients[i%len(clients)].Check(context.Background(), req); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for range b.N {
		calls <- struct{}{}
	}
	close(calls)
	left.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}

// entering is a call that waits for its log entry.
type entering struct {
	data string
	done chan error
}

type logging struct {
	grpc_health_v1.UnimplementedHealthServer
	raft  *raft.Raft
	queue chan entering
}

func (l *logging) Check(_ context.Context, req *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if l.raft != nil {
		e := entering{req.GetService(), make(chan error, 1)}
		l.queue <- e
		if err := <-e.done; err != nil {
			return nil, err
		}
	}
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}

// run puts all waiting calls into one entry after the other.
func (l *logging) run() {
	for first := range l.queue {
		waiting, data := []entering{first}, []byte(first.data)
	gather:
		for {
			select {
			case e, ok := <-l.queue:
				if !ok {
					break gather
				}
				waiting, data = append(waiting, e), append(data, e.data...)
			default:
				break gather
			}
		}
		err := l.raft.Apply(data, time.Minute).Error()
		for _, e := range waiting {
			e.done <- err
		}
	}
}

// alone returns a Raft group of one server with its log on disk.
func alone(b *testing.B) *raft.Raft {
	b.Helper()
	log := newLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
	st, err := openStores(b.TempDir(), WAL, log)
	if err != nil {
		b.Fatal(err)
	}
	_, trans := raft.NewInmemTransport("a")
	c := raft.DefaultConfig()
	c.LocalID, c.Logger = "a", log
	r, err := raft.NewRaft(c, forgetful{}, st.log, st.stable, raft.NewDiscardSnapshotStore(), trans)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := r.Shutdown().Error(); err != nil {
			b.Error(err)
		}
		_ = st.close()
	})
	if err := r.BootstrapCluster(raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "a"}}}).Error(); err != nil {
		b.Fatal(err)
	}
	<-r.LeaderCh()
	return r
}
