package serve_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// echo answers Get with what a handler sees of its caller.
type echo struct {
	nusav1.UnimplementedJobsServer
	direct *atomic.Int32 // calls without a connection
}

func (e echo) Get(ctx context.Context, r *nusav1.GetJobRequest) (*nusav1.Job, error) {
	switch r.GetJob().GetName() {
	case "wrapped":
		return nil, fmt.Errorf("of a handler: %w", context.DeadlineExceeded)
	case "refused":
		return nil, status.Error(codes.FailedPrecondition, "not now")
	}
	if fmt.Sprintf("%T", grpc.ServerTransportStreamFromContext(ctx)) == "*serve.callStream" {
		e.direct.Add(1)
	}
	given, _ := metadata.FromIncomingContext(ctx)
	sent, _ := metadata.FromOutgoingContext(ctx)
	p, _ := peer.FromContext(ctx)
	name, _ := grpc.Method(ctx)
	err := errors.Join(grpc.SetHeader(ctx, metadata.Pairs("head", "h")), grpc.SetTrailer(ctx, metadata.Pairs("tail", "t")))
	if err != nil {
		return nil, err
	}
	host, _, _ := strings.Cut(p.Addr.String(), ":")
	r.GetJob().Name = "changed" // a handler may change its request
	return &nusav1.Job{Region: fmt.Sprint(given.Get("token"), sent.Len(), host, p.AuthInfo != nil, name)}, nil
}

// TestDirectCallsAreLikeOthers: the first call of an HTTP connection opens a gRPC connection, and later ones need
// none. All of them show the handler the same, and pass the same interceptors and the tap.
func TestDirectCallsAreLikeOthers(t *testing.T) {
	var intercepted, tapped, without atomic.Int32
	opts := loopback()
	for range 2 {
		opts.Unary = append(opts.Unary, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			intercepted.Add(1)
			return handler(ctx, req)
		})
	}
	opts.Tap = func(ctx context.Context, info *tap.Info) (context.Context, error) {
		tapped.Add(1)
		if len(info.Header.Get("flood")) > 0 {
			return ctx, status.Error(codes.ResourceExhausted, "too many calls")
		}
		return ctx, nil
	}
	s, err := serve.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	nusav1.RegisterJobsServer(s, echo{direct: &without})
	s.Mux.HandleFunc("/get/{name}", func(w http.ResponseWriter, r *http.Request) {
		conn, err := serve.Conn(r)
		if err != nil {
			t.Error(err)
			return
		}
		ctx := metadata.AppendToOutgoingContext(r.Context(), "token", "secret")
		if r.PathValue("name") == "flood" {
			ctx = metadata.AppendToOutgoingContext(ctx, "flood", "1")
		}
		var header, trailer metadata.MD
		req := &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: r.PathValue("name")}}
		out, err := nusav1.NewJobsClient(conn).Get(ctx, req, grpc.Header(&header), grpc.Trailer(&trailer))
		_ = json.NewEncoder(w).Encode([]any{out.GetRegion(), header.Get("head"), trailer.Get("tail"), status.Code(err).String(), req.GetJob().GetName() == r.PathValue("name")})
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	transport := &http.Transport{}
	client := &http.Client{Transport: transport}
	get := func(name string) string {
		t.Helper()
		r, err := client.Get("http://" + s.HTTPAddr() + "/get/" + name)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(body))
	}
	for name, want := range map[string]string{
		"api":     `["[secret] 0127.0.0.1false/nusa.v1.Jobs/Get",["h"],["t"],"OK",true]`,
		"wrapped": `["",null,null,"DeadlineExceeded",true]`,
		"refused": `["",null,null,"FailedPrecondition",true]`,
		"flood":   `["",null,null,"ResourceExhausted",true]`,
		"bad%ff":  `["",null,null,"Internal",true]`,
	} {
		transport.CloseIdleConnections()
		first := get(name)
		if first != want {
			t.Errorf("%s over a connection: %s, want %s", name, first, want)
		}
		for range 2 {
			if again := get(name); again != want {
				t.Errorf("%s directly: %s, want %s", name, again, want)
			}
		}
	}
	if without.Load() != 2 {
		t.Errorf("%d of the calls for api had no connection, want 2 of 3", without.Load())
	}
	if intercepted.Load()%2 != 0 || tapped.Load() == 0 {
		t.Errorf("%d interceptors, %d taps", intercepted.Load(), tapped.Load())
	}
	transport.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
