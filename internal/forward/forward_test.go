package forward_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nusa-scheduler/nusa/internal/forward"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// server is one server of a tier. Every reply of the server has its name.
type server struct {
	nusav1.UnimplementedJobsServer
	name  string
	seen  chan metadata.MD
	ended chan error
}

func (s *server) Get(ctx context.Context, r *nusav1.GetJobRequest) (*nusav1.Job, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	s.seen <- md
	_ = grpc.SetHeader(ctx, metadata.Pairs("answered-by", s.name))
	switch r.GetJob().GetName() {
	case "missing":
		st, err := status.New(codes.NotFound, "no such job").WithDetails(&nusav1.Problem{Field: "job.name", Message: "unknown"})
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	case "slow":
		<-ctx.Done()
		s.ended <- ctx.Err()
		return nil, ctx.Err()
	}
	return &nusav1.Job{Version: 7}, nil
}

func (s *server) SubmitMany(stream grpc.BidiStreamingServer[nusav1.SubmitRequest, nusav1.SubmitManyResponse]) error {
	if err := stream.SendHeader(metadata.Pairs("answered-by", s.name)); err != nil {
		return err
	}
	stream.SetTrailer(metadata.Pairs("bye", s.name))
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return status.Error(codes.DataLoss, "counted")
		}
		if err != nil {
			s.ended <- err
			return err
		}
		if err := stream.Send(&nusav1.SubmitManyResponse{Error: r.GetIdempotencyKey()}); err != nil {
			return err
		}
	}
}

type allocations struct {
	nusav1.UnimplementedAllocationsServer
}

func (allocations) Logs(_ *nusav1.LogsRequest, stream grpc.ServerStreamingServer[nusav1.LogChunk]) error {
	for range 100 {
		if err := stream.Send(&nusav1.LogChunk{Data: make([]byte, 32<<10)}); err != nil {
			return err
		}
	}
	return nil
}

type system struct {
	nusav1.UnimplementedSystemServer
	name string
}

func (s system) Info(context.Context, *nusav1.InfoRequest) (*nusav1.InfoResponse, error) {
	return &nusav1.InfoResponse{Name: s.name}, nil
}

// start runs a server and returns it with a connection to it. leader is the server's
// Leader. set changes its forwarder.
func start(t *testing.T, name string, leader forward.Leader, set ...func(*forward.Forwarder)) (*server, *grpc.ClientConn) {
	t.Helper()
	s := &server{name: name, seen: make(chan metadata.MD, 8), ended: make(chan error, 8)}
	f := forward.New(leader)
	for _, change := range set {
		change(f)
	}
	g := grpc.NewServer(grpc.ChainUnaryInterceptor(f.Unary()), grpc.ChainStreamInterceptor(f.Stream()))
	nusav1.RegisterJobsServer(g, s)
	nusav1.RegisterAllocationsServer(g, allocations{})
	nusav1.RegisterSystemServer(g, system{name: name})
	lis := bufconn.Listen(64 << 10)
	served := make(chan error, 1)
	go func() { served <- g.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:///"+name,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, conn
}

func self() (*grpc.ClientConn, bool, error) { return nil, true, nil }

// pair returns a leader and a connection to another server.
func pair(t *testing.T) (leader *server, conn *grpc.ClientConn) {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	leader, leaderConn := start(t, "leader", self)
	_, conn = start(t, "other", func() (*grpc.ClientConn, bool, error) { return leaderConn, false, nil })
	return leader, conn
}

func get(name string) *nusav1.GetJobRequest {
	return &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: name}}
}

func TestUnaryKeepsMetadataAndReply(t *testing.T) {
	leader, conn := pair(t)
	var header metadata.MD
	ctx := metadata.AppendToOutgoingContext(t.Context(), "nusa-token", "secret")
	job, err := nusav1.NewJobsClient(conn).Get(ctx, get("x"), grpc.Header(&header))
	if err != nil {
		t.Fatal(err)
	}
	if job.GetVersion() != 7 || header.Get("answered-by")[0] != "leader" {
		t.Errorf("version %d, header %v", job.GetVersion(), header)
	}
	md := <-leader.seen
	if fmt.Sprint(md.Get("nusa-token"), md.Get(forward.Header)) != "[secret] [1]" {
		t.Errorf("the leader saw %v", md)
	}
}

func TestStatusDetailsAreKept(t *testing.T) {
	_, conn := pair(t)
	_, err := nusav1.NewJobsClient(conn).Get(t.Context(), get("missing"))
	st := status.Convert(err)
	if st.Code() != codes.NotFound || st.Message() != "no such job" || len(st.Details()) != 1 {
		t.Fatalf("got %v with %v", err, st.Details())
	}
	if p, ok := st.Details()[0].(*nusav1.Problem); !ok || p.GetField() != "job.name" {
		t.Errorf("details %v", st.Details())
	}
}

func TestDeadlinePropagates(t *testing.T) {
	leader, conn := pair(t)
	// On a slow machine the deadline may be over before the leader is reached.
	for within := 50 * time.Millisecond; len(leader.seen) == 0; within *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		_, err := nusav1.NewJobsClient(conn).Get(ctx, get("slow"))
		cancel()
		if status.Code(err) != codes.DeadlineExceeded {
			t.Fatalf("got %v", err)
		}
	}
	if err := <-leader.ended; err == nil {
		t.Error("the leader's handler did not end")
	}
}

func TestCancelPropagates(t *testing.T) {
	leader, conn := pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := nusav1.NewJobsClient(conn).SubmitMany(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-leader.ended; status.Code(err) != codes.Canceled {
		t.Errorf("the leader's stream ended with %v", err)
	}
}

func TestStreamsBothWays(t *testing.T) {
	_, conn := pair(t)
	stream, err := nusav1.NewJobsClient(conn).SubmitMany(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		key := fmt.Sprint(i)
		if err := stream.Send(&nusav1.SubmitRequest{IdempotencyKey: key}); err != nil {
			t.Fatal(err)
		}
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if r.GetError() != key {
			t.Fatalf("answer %q to %q", r.GetError(), key)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.DataLoss {
		t.Errorf("ended with %v, want the leader's status", err)
	}
	header, err := stream.Header()
	if err != nil || header.Get("answered-by")[0] != "leader" || stream.Trailer().Get("bye")[0] != "leader" {
		t.Errorf("header %v, trailer %v, %v", header, stream.Trailer(), err)
	}

	logs, err := nusav1.NewAllocationsClient(conn).Logs(t.Context(), &nusav1.LogsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for {
		chunk, err := logs.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		total += len(chunk.GetData())
	}
	if total != 100*32<<10 {
		t.Errorf("%d bytes of logs", total)
	}
}

func TestOneHopAtMost(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	// Two servers each consider the other one the leader.
	var a, b *grpc.ClientConn
	_, a = start(t, "a", func() (*grpc.ClientConn, bool, error) { return b, false, nil })
	_, b = start(t, "b", func() (*grpc.ClientConn, bool, error) { return a, false, nil })
	_, err := nusav1.NewJobsClient(a).Get(t.Context(), get("x"))
	if status.Code(err) != codes.Unavailable || status.Convert(err).Message() != "no leader known" {
		t.Errorf("unary: %v", err)
	}
	stream, err := nusav1.NewJobsClient(a).SubmitMany(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("stream: %v", err)
	}
}

func TestNoLeaderAndExempt(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	_, conn := start(t, "lonely", func() (*grpc.ClientConn, bool, error) { return nil, false, errors.New("election") })
	_, err := nusav1.NewJobsClient(conn).Get(t.Context(), get("x"))
	if status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
	info, err := nusav1.NewSystemClient(conn).Info(t.Context(), &nusav1.InfoRequest{})
	if err != nil || info.GetName() != "lonely" {
		t.Errorf("System: %v, %v", info, err)
	}
}

// TestStreamsAwaitTheLeader: a stream of the awaited method waits until the server leads, and other
// streams and calls do not.
func TestStreamsAwaitTheLeader(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	var leads atomic.Bool
	waiting, elected := make(chan struct{}), make(chan struct{})
	leader := func() (*grpc.ClientConn, bool, error) { return nil, leads.Load(), nil }
	_, conn := start(t, "slow", leader, func(f *forward.Forwarder) {
		f.Await(nusav1.Jobs_SubmitMany_FullMethodName, func(ctx context.Context) {
			close(waiting)
			select {
			case <-elected:
			case <-ctx.Done():
			}
		})
	})
	stream, err := nusav1.NewJobsClient(conn).SubmitMany(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	<-waiting
	logs, err := nusav1.NewAllocationsClient(conn).Logs(t.Context(), &nusav1.LogsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := logs.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("another stream: %v", err)
	}
	leads.Store(true)
	close(elected)
	if err := stream.Send(&nusav1.SubmitRequest{IdempotencyKey: "x"}); err != nil {
		t.Fatal(err)
	}
	if r, err := stream.Recv(); err != nil || r.GetError() != "x" {
		t.Errorf("got %v, %v", r, err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	_, _ = stream.Recv() // the server's status
}

// TestWhyNoOtherLeader: the error about a leader that does not respond says why no other
// server can be elected.
func TestWhyNoOtherLeader(t *testing.T) {
	dead, err := grpc.NewClient("passthrough:///dead",
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return nil, errors.New("connection refused") }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	f := forward.New(func() (*grpc.ClientConn, bool, error) { return dead, false, nil })
	why := ""
	f.WhyNoOther(func() string { return why })
	for _, c := range []struct{ why, want string }{
		{"", "the leader, dead, does not answer, and no other is elected yet"},
		{"etcd at a:1 does not answer", "the leader, dead, does not answer, and no other can be elected: etcd at a:1 does not answer; if that lasts, start the server that runs this etcd"},
	} {
		why = c.why
		_, err := f.Unary()(t.Context(), get("x"), &grpc.UnaryServerInfo{FullMethod: "/nusa.v1.Jobs/Get"}, nil)
		if status.Code(err) != codes.Unavailable || status.Convert(err).Message() != c.want {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

func TestUnreachableLeaderIsNamed(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	dead, err := grpc.NewClient("passthrough:///dead",
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return nil, errors.New("connection refused") }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	_, conn := start(t, "other", func() (*grpc.ClientConn, bool, error) { return dead, false, nil })
	const said = "the leader, dead, does not answer, and no other is elected yet"
	if _, err := nusav1.NewJobsClient(conn).Get(t.Context(), get("x")); status.Code(err) != codes.Unavailable || status.Convert(err).Message() != said {
		t.Errorf("got %v", err)
	}
	watch, err := nusav1.NewJobsClient(conn).Watch(t.Context(), get("x"))
	if err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.Unavailable || status.Convert(err).Message() != said {
		t.Errorf("got %v", err)
	}
}
