package rpcerr_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestErrorIsReadAsItWasBuilt(t *testing.T) {
	in := rpcerr.Error{
		Code: codes.Unavailable, Message: "no leader known", Reason: rpcerr.ReasonNoLeader,
		Metadata:   map[string]string{rpcerr.KeyAddress: "10.0.0.1:7600"},
		RetryAfter: time.Second, Problems: []*nusav1.Problem{{Field: "name", Message: "is missing"}},
	}
	for _, err := range []error{in.Err(), fmt.Errorf("submit: %w", in.Err())} {
		out := rpcerr.From(err)
		if out.Code != in.Code || out.Reason != in.Reason || out.Metadata[rpcerr.KeyAddress] != "10.0.0.1:7600" ||
			out.RetryAfter != in.RetryAfter || len(out.Problems) != 1 || out.Problems[0].GetField() != "name" {
			t.Errorf("read %+v, want %+v", out, in)
		}
		if !rpcerr.Is(err, rpcerr.ReasonNoLeader) || rpcerr.Is(err, rpcerr.ReasonNoMaster) {
			t.Errorf("Is disagrees with the reason of %v", err)
		}
	}
}

func TestErrorsWithoutDetailsHaveNoReason(t *testing.T) {
	foreign, err := status.New(codes.NotFound, "x").WithDetails(&errdetails.ErrorInfo{Domain: "example.com", Reason: "NOT_FOUND"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		err  error
		code codes.Code
	}{
		{nil, codes.OK},
		{errors.New("plain"), codes.Unknown},
		{status.Error(codes.NotFound, "no such job"), codes.NotFound},
		{foreign.Err(), codes.NotFound},
	} {
		e := rpcerr.From(c.err)
		if e.Code != c.code || e.Reason != "" || e.Metadata != nil || e.RetryAfter != 0 || e.Problems != nil {
			t.Errorf("%v reads as %+v", c.err, e)
		}
		if _, _, ok := rpcerr.Missing(c.err); ok {
			t.Errorf("%v names a missing object", c.err)
		}
	}
}

func TestNotFoundNamesTheObject(t *testing.T) {
	err := rpcerr.NotFound(rpcerr.KindNode, "n1", `no node "n1"`)
	kind, name, ok := rpcerr.Missing(err)
	if kind != rpcerr.KindNode || name != "n1" || !ok || status.Code(err) != codes.NotFound || status.Convert(err).Message() != `no node "n1"` {
		t.Errorf("%v names %q %q, %v", err, kind, name, ok)
	}
}

func TestInvalidCarriesProblems(t *testing.T) {
	problems := []*nusav1.Problem{
		{Field: "groups.web.count", Line: 3, Message: "must be at most 10000"},
		{Field: "name", Message: "must not be empty"},
	}
	err := rpcerr.Invalid(problems...)
	if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != "line 3: groups.web.count: must be at most 10000 (and 1 more)" {
		t.Errorf("got %v", err)
	}
	back := rpcerr.Problems(err)
	if len(back) != 2 || back[0].GetLine() != 3 || back[1].GetField() != "name" {
		t.Errorf("read back %v", back)
	}
	if rpcerr.Problems(errors.New("plain")) != nil || rpcerr.Problems(nil) != nil {
		t.Error("an error without problems has some")
	}
	if back := rpcerr.Problems(rpcerr.Invalid(make([]*nusav1.Problem, 40)...)); len(back) != 32 {
		t.Errorf("%d of 40 problems travelled, want 32", len(back))
	}
}

func TestTableMapsErrorsToStatuses(t *testing.T) {
	errFull, errOther := errors.New("queue full"), errors.New("disk on fire")
	table := rpcerr.Table{{Target: errFull, Code: codes.ResourceExhausted, RetryAfter: time.Second}}
	kept := status.Error(codes.NotFound, "no such job")
	if got := table.Err(fmt.Errorf("submit: %w", errFull)); status.Code(got) != codes.ResourceExhausted ||
		rpcerr.From(got).RetryAfter != time.Second || status.Convert(got).Message() != "submit: queue full" {
		t.Errorf("with a rule: %v", got)
	}
	if got := table.Err(errOther); status.Code(got) != codes.Internal {
		t.Errorf("without a rule: %v", got)
	}
	if got := table.Err(kept); got != kept {
		t.Errorf("a status became %v", got)
	}
	if table.Err(nil) != nil {
		t.Error("nil became an error")
	}
}

// call makes one call over the connection that dial opens.
func call(t *testing.T, dial func() (net.Conn, error), opts ...grpc.DialOption) (*rpcerr.Dialer, error) {
	t.Helper()
	d := &rpcerr.Dialer{Dial: func(context.Context, string) (net.Conn, error) { return dial() }}
	opts = append([]grpc.DialOption{grpc.WithContextDialer(d.DialContext), grpc.WithTransportCredentials(insecure.NewCredentials())}, opts...)
	conn, err := grpc.NewClient("passthrough:///server", opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = nusav1.NewSystemClient(conn).Info(t.Context(), &nusav1.InfoRequest{})
	return d, err
}

type system struct {
	nusav1.UnimplementedSystemServer
	info func() error
}

func (s system) Info(context.Context, *nusav1.InfoRequest) (*nusav1.InfoResponse, error) {
	return nil, s.info()
}

// serve runs a server over pipes; info is the body of its one call.
func serve(t *testing.T, info func(near net.Conn) error) func() (net.Conn, error) {
	return func() (net.Conn, error) {
		near, far := net.Pipe()
		lis := &oneListener{make(chan net.Conn, 1), make(chan struct{})}
		lis.conns <- near
		s := grpc.NewServer()
		nusav1.RegisterSystemServer(s, system{info: func() error { return info(near) }})
		go func() { _ = s.Serve(lis) }()
		t.Cleanup(s.Stop)
		return far, nil
	}
}

type oneListener struct {
	conns chan net.Conn
	ended chan struct{}
}

func (l *oneListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

func (l *oneListener) Close() error {
	select {
	case <-l.ended:
	default:
		close(l.ended)
	}
	return nil
}

func (l *oneListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// TestTransportFailureOfGRPC compares the texts with those of the present gRPC library.
func TestTransportFailureOfGRPC(t *testing.T) {
	refused := errors.New("connection refused")
	d, err := call(t, func() (net.Conn, error) { return nil, refused })
	if rpcerr.TransportFailure(err) != rpcerr.NotConnected || !errors.Is(d.Err(), refused) || rpcerr.NoPreface(err) {
		t.Errorf("a dial that fails: %v is %d, the dialer has %v", err, rpcerr.TransportFailure(err), d.Err())
	}

	_, err = call(t, func() (net.Conn, error) {
		near, far := net.Pipe()
		near.Close()
		return far, nil
	})
	if rpcerr.TransportFailure(err) != rpcerr.NotConnected {
		t.Errorf("a connection that ends before gRPC's preface: %v is %d", err, rpcerr.TransportFailure(err))
	}

	_, err = call(t, func() (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			for range 2 { // the client's preface and settings
				_, _ = near.Read(make([]byte, 1<<10))
			}
			near.Close()
		}()
		return far, nil
	})
	if rpcerr.TransportFailure(err) != rpcerr.NotConnected || !rpcerr.NoPreface(fmt.Errorf("open a session: %w", err)) {
		t.Errorf("a server that closes the connection at once: %v is %d", err, rpcerr.TransportFailure(err))
	}

	_, err = call(t, func() (net.Conn, error) {
		near, far := net.Pipe()
		near.Close()
		return far, nil
	}, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{ServerName: "server"})))
	if rpcerr.TransportFailure(err) == rpcerr.NoFailure || !rpcerr.HandshakeFailed(fmt.Errorf("open a session: %w", err)) {
		t.Errorf("a server that ends the handshake: %v is %d", err, rpcerr.TransportFailure(err))
	}

	d, err = call(t, serve(t, func(near net.Conn) error {
		near.Close()
		return nil
	}))
	if rpcerr.TransportFailure(err) != rpcerr.Broken || d.Err() != nil {
		t.Errorf("a connection that breaks in the call: %v is %d, the dialer has %v", err, rpcerr.TransportFailure(err), d.Err())
	}
}

func TestTransportFailureIgnoresServers(t *testing.T) {
	for _, said := range []error{
		nil,
		status.Error(codes.Unavailable, "the engine restarts"),
		status.Error(codes.NotFound, "no connection error is known"),
		rpcerr.Error{Code: codes.Unavailable, Reason: rpcerr.ReasonSessionEnded, Message: "the transport of node n1 has ended"}.Err(),
	} {
		if f := rpcerr.TransportFailure(said); f != rpcerr.NoFailure {
			t.Errorf("%v is %d", said, f)
		}
	}
	_, err := call(t, serve(t, func(net.Conn) error {
		return rpcerr.Error{Code: codes.Unavailable, Reason: rpcerr.ReasonNoLeader, Message: "transport: no leader"}.Err()
	}))
	if f := rpcerr.TransportFailure(err); f != rpcerr.NoFailure || !rpcerr.Is(err, rpcerr.ReasonNoLeader) {
		t.Errorf("a server's own error: %v is %d", err, f)
	}
}

// TestUnknownCallOfGRPC compares the texts with those of the present gRPC library.
func TestUnknownCallOfGRPC(t *testing.T) {
	dialer := rpcerr.Dialer{}
	open := serve(t, func(net.Conn) error { return nil })
	dialer.Dial = func(context.Context, string) (net.Conn, error) { return open() }
	conn, err := grpc.NewClient("passthrough:///server", grpc.WithContextDialer(dialer.DialContext), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, method := range []string{"/nusa.v1.System/Nothing", "/nusa.v9.Nothing/Info"} {
		err := conn.Invoke(t.Context(), method, &nusav1.InfoRequest{}, &nusav1.InfoResponse{})
		if !rpcerr.UnknownCall(err) {
			t.Errorf("%s: %v is not an unknown call", method, err)
		}
	}
	if rpcerr.UnknownCall(status.Error(codes.Unimplemented, "adopting is not supported yet")) || rpcerr.UnknownCall(nil) {
		t.Error("a server's own refusal is an unknown call")
	}
}
