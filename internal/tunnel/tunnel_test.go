package tunnel_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nusa-scheduler/nusa/internal/tunnel"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// tier is one server of a chain of tiers. Its hub serves the Tunnel streams of the tier
// below. A function serves its Allocations service.
type tier struct {
	nusav1.UnimplementedDispatchServer
	nusav1.UnimplementedAllocationsServer
	hub    *tunnel.Hub
	server *grpc.Server
	lis    *bufconn.Listener
	down   *tunnel.Listener
	logs   func(*nusav1.LogsRequest, grpc.ServerStreamingServer[nusav1.LogChunk]) error
	served chan error
	count  int
}

func (s *tier) Tunnel(stream tunnel.ServerStream) error { return s.hub.Serve(stream) }

func (s *tier) Logs(r *nusav1.LogsRequest, stream grpc.ServerStreamingServer[nusav1.LogChunk]) error {
	return s.logs(r, stream)
}

func (s *tier) Get(_ context.Context, r *nusav1.GetAllocationRequest) (*nusav1.Allocation, error) {
	return &nusav1.Allocation{Id: r.GetId()}, nil
}

func newTier(opts tunnel.Options) *tier {
	s := &tier{hub: tunnel.NewHub(opts), server: grpc.NewServer(), lis: bufconn.Listen(256 << 10), down: tunnel.NewListener(4), served: make(chan error, 2)}
	nusav1.RegisterDispatchServer(s.server, s)
	nusav1.RegisterAllocationsServer(s.server, s)
	for _, l := range []net.Listener{s.lis, s.down} {
		s.count++
		go func() { s.served <- s.server.Serve(l) }()
	}
	return s
}

func (s *tier) stop() {
	s.hub.Close()
	s.server.Stop()
	for range s.count {
		<-s.served
	}
}

// dial connects to the server, as a lower tier does.
func (s *tier) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///upper",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// join lets upper call lower. request requests a tunnel; in the roles a message on the
// session stream does that. stop ends the session and waits for its tunnels.
func join(ctx context.Context, t *testing.T, lower, upper *tier) (request func(context.Context, string) error, stop func()) {
	t.Helper()
	up := upper.dial(t)
	ctx, cancel := context.WithCancel(ctx)
	requests := make(chan string, 16)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var running []chan struct{}
		for {
			select {
			case id := <-requests:
				done := make(chan struct{})
				running = append(running, done)
				go func() {
					defer close(done)
					_ = tunnel.Answer(ctx, func(ctx context.Context) (tunnel.ClientStream, error) {
						return nusav1.NewDispatchClient(up).Tunnel(ctx)
					}, id, lower.down)
				}()
			case <-ctx.Done():
				for _, d := range running {
					<-d
				}
				return
			}
		}
	}()
	request = func(ctx context.Context, id string) error {
		select {
		case requests <- id:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return request, func() {
		cancel()
		<-ended
		up.Close()
	}
}

func connect(t *testing.T, s *tier, peer string, request func(context.Context, string) error) *grpc.ClientConn {
	t.Helper()
	conn, err := s.hub.Conn(peer, request)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// sendLogs returns a handler that sends total bytes in chunks. Each byte of a chunk is the
// number of the chunk.
func sendLogs(total int) func(*nusav1.LogsRequest, grpc.ServerStreamingServer[nusav1.LogChunk]) error {
	return func(_ *nusav1.LogsRequest, stream grpc.ServerStreamingServer[nusav1.LogChunk]) error {
		for i := 0; total > 0; i++ {
			n := min(total, 32<<10)
			if err := stream.Send(&nusav1.LogChunk{Data: bytes.Repeat([]byte{byte(i)}, n)}); err != nil {
				return err
			}
			total -= n
		}
		return nil
	}
}

func readLogs(t *testing.T, conn *grpc.ClientConn) int {
	t.Helper()
	stream, err := nusav1.NewAllocationsClient(conn).Logs(t.Context(), &nusav1.LogsRequest{Allocation: "a"})
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for i := 0; ; i++ {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return total
		}
		if err != nil {
			t.Fatalf("after %d bytes: %v", total, err)
		}
		if chunk.Data[0] != byte(i) {
			t.Fatalf("chunk %d begins with %d", i, chunk.Data[0])
		}
		total += len(chunk.Data)
	}
}

func TestStreamThroughNestedTunnels(t *testing.T) {
	defer goleak.VerifyNone(t)
	global, region, agent := newTier(tunnel.Options{}), newTier(tunnel.Options{}), newTier(tunnel.Options{})
	defer global.stop()
	defer region.stop()
	defer agent.stop()
	toRegion, stopRegion := join(t.Context(), t, region, global)
	defer stopRegion()
	toAgent, stopAgent := join(t.Context(), t, agent, region)
	defer stopAgent()

	agentConn := connect(t, region, "agent", toAgent)
	defer agentConn.Close()
	const total = 10<<20 + 17
	agent.logs = sendLogs(total)
	// The region calls the tier below and forwards its replies, as the roles do.
	region.logs = func(r *nusav1.LogsRequest, out grpc.ServerStreamingServer[nusav1.LogChunk]) error {
		in, err := nusav1.NewAllocationsClient(agentConn).Logs(out.Context(), r)
		for err == nil {
			var chunk *nusav1.LogChunk
			if chunk, err = in.Recv(); err == nil {
				err = out.Send(chunk)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
	regionConn := connect(t, global, "region", toRegion)
	defer regionConn.Close()
	if n := readLogs(t, regionConn); n != total {
		t.Errorf("read %d bytes, want %d", n, total)
	}
}

func TestCancelReachesTheLowerTier(t *testing.T) {
	defer goleak.VerifyNone(t)
	global, region := newTier(tunnel.Options{}), newTier(tunnel.Options{})
	defer global.stop()
	defer region.stop()
	request, stop := join(t.Context(), t, region, global)
	defer stop()
	ended := make(chan error, 1)
	region.logs = func(_ *nusav1.LogsRequest, stream grpc.ServerStreamingServer[nusav1.LogChunk]) error {
		for {
			if err := stream.Send(&nusav1.LogChunk{Data: make([]byte, 32<<10)}); err != nil {
				ended <- err
				return err
			}
		}
	}
	conn := connect(t, global, "region", request)
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := nusav1.NewAllocationsClient(conn).Logs(ctx, &nusav1.LogsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	// The caller reads no further, so the sender blocks now or soon. It must still notice
	// the cancellation.
	cancel()
	if err := <-ended; err == nil {
		t.Error("the lower tier's handler ended without an error")
	}
	// The tunnel itself still works.
	if _, err := nusav1.NewAllocationsClient(conn).Get(t.Context(), &nusav1.GetAllocationRequest{Id: "x"}); err != nil {
		t.Error(err)
	}
}

func TestPeerLossFailsCallsAndNextTunnelWorks(t *testing.T) {
	defer goleak.VerifyNone(t)
	global, region := newTier(tunnel.Options{}), newTier(tunnel.Options{})
	defer global.stop()
	defer region.stop()
	request, stop := join(t.Context(), t, region, global)
	region.logs = func(_ *nusav1.LogsRequest, stream grpc.ServerStreamingServer[nusav1.LogChunk]) error {
		if err := stream.Send(&nusav1.LogChunk{}); err != nil {
			return err
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	var current atomic.Pointer[func(context.Context, string) error]
	current.Store(&request)
	conn := connect(t, global, "region", func(ctx context.Context, id string) error { return (*current.Load())(ctx, id) })
	defer conn.Close()
	stream, err := nusav1.NewAllocationsClient(conn).Logs(t.Context(), &nusav1.LogsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	request2, stop2 := join(t.Context(), t, region, global)
	defer stop2()
	current.Store(&request2)
	stop() // ends the session and breaks its calls
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("after the loss: %v, want UNAVAILABLE", err)
	}
	if _, err := nusav1.NewAllocationsClient(conn).Get(t.Context(), &nusav1.GetAllocationRequest{Id: "x"}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("after the session came back: %v", err)
	}
}

func TestIdleTunnelClosesAndReopens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		global, region := newTier(tunnel.Options{}), newTier(tunnel.Options{})
		defer global.stop()
		defer region.stop()
		join1, stop := join(t.Context(), t, region, global)
		defer stop()
		asked := 0
		conn := connect(t, global, "region", func(ctx context.Context, id string) error {
			asked++
			return join1(ctx, id)
		})
		defer conn.Close()
		client := nusav1.NewAllocationsClient(conn)
		for i := range 3 {
			for range 2 {
				if _, err := client.Get(t.Context(), &nusav1.GetAllocationRequest{Id: "x"}); err != nil {
					t.Fatal(err)
				}
			}
			if asked != i+1 {
				t.Errorf("round %d: asked for %d tunnels", i, asked)
			}
			time.Sleep(2 * tunnel.DefaultIdle)
		}
	})
}

func TestSilentPeerTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := tunnel.NewHub(tunnel.Options{})
		defer hub.Close()
		conn, err := hub.Conn("mute", func(context.Context, string) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		start := time.Now()
		_, err = nusav1.NewAllocationsClient(conn).Get(t.Context(), &nusav1.GetAllocationRequest{})
		if status.Code(err) != codes.Unavailable || !bytes.Contains([]byte(err.Error()), []byte("tunnel to mute: no answer in time, it may be cut off")) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != tunnel.DefaultWait {
			t.Errorf("took %v, want %v", took, tunnel.DefaultWait)
		}
	})
}

func TestTunnelsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		global, region := newTier(tunnel.Options{MaxTunnels: 1}), newTier(tunnel.Options{})
		defer global.stop()
		defer region.stop()
		request, stop := join(t.Context(), t, region, global)
		defer stop()
		first := connect(t, global, "first", request)
		get := func(c *grpc.ClientConn) error {
			_, err := nusav1.NewAllocationsClient(c).Get(t.Context(), &nusav1.GetAllocationRequest{Id: "x"})
			return err
		}
		if err := get(first); err != nil {
			t.Fatal(err)
		}
		second := connect(t, global, "second", request)
		defer second.Close()
		if err := get(second); err == nil || !bytes.Contains([]byte(err.Error()), []byte(tunnel.ErrTooMany.Error())) {
			t.Errorf("second tunnel of one allowed: %v", err)
		}
		first.Close()
		time.Sleep(2 * time.Second) // the pause before the second connection dials again
		if err := get(second); err != nil {
			t.Errorf("after the first closed: %v", err)
		}
	})
}

func TestUnknownIDIsNotFound(t *testing.T) {
	defer goleak.VerifyNone(t)
	global, region := newTier(tunnel.Options{}), newTier(tunnel.Options{})
	defer global.stop()
	defer region.stop()
	up := global.dial(t)
	defer up.Close()
	err := tunnel.Answer(t.Context(), func(ctx context.Context) (tunnel.ClientStream, error) {
		return nusav1.NewDispatchClient(up).Tunnel(ctx)
	}, "guessed", region.down)
	if status.Code(err) != codes.NotFound {
		t.Errorf("got %v, want NOT_FOUND", err)
	}
}

func TestClosedHubRefuses(t *testing.T) {
	defer goleak.VerifyNone(t)
	hub := tunnel.NewHub(tunnel.Options{})
	conn := func() *grpc.ClientConn {
		c, err := hub.Conn("x", func(context.Context, string) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		return c
	}()
	defer conn.Close()
	hub.Close()
	_, err := nusav1.NewAllocationsClient(conn).Get(t.Context(), &nusav1.GetAllocationRequest{})
	if status.Code(err) != codes.Unavailable || !bytes.Contains([]byte(err.Error()), []byte(tunnel.ErrClosed.Error())) {
		t.Errorf("got %v", err)
	}
}
