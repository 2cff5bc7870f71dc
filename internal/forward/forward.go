package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// Header marks a forwarded call. A marked call is not forwarded again.
const Header = "nusa-forwarded"

// ErrNoLeader is the status of a call while no leader is known.
var ErrNoLeader = rpcerr.Error{Code: codes.Unavailable, Reason: rpcerr.ReasonNoLeader, Message: "no leader known"}.Err()

// Leader returns the server that leads: this server if self is true, otherwise the server
// at the other end of conn. If conn is nil and self is false, or with an error, no leader
// is known. An error that is a gRPC status is returned to the caller. Leader is called for
// every call and must not block.
type Leader func() (conn *grpc.ClientConn, self bool, err error)

// Forwarder makes the interceptors of a server.
type Forwarder struct {
	leader     Leader
	exempt     []string
	requests   map[string]func() proto.Message
	whyNoOther func() string
	awaits     map[string]func(context.Context)
}

// New returns a forwarder. exempt lists full methods (for example
// "/nusa.v1.Dispatch/Session") and whole services (for example "/nusa.v1.System/") that
// every server serves itself. Health, reflection and System.Info are always exempt.
func New(leader Leader, exempt ...string) *Forwarder {
	always := []string{
		"/grpc.health.v1.Health/",
		"/grpc.reflection.v1.ServerReflection/",
		"/grpc.reflection.v1alpha.ServerReflection/",
		"/nusa.v1.System/Info",
	}
	return &Forwarder{leader: leader, exempt: slices.Concat(always, exempt)}
}

// ReadRequestsAs sets the type into which a stream of the full method reads requests: the
// type that newRequest returns. It is for a server whose codec reads requests of that
// method into another type than the generated one. Call it before the server serves calls.
func (f *Forwarder) ReadRequestsAs(method string, newRequest func() proto.Message) {
	if f.requests == nil {
		f.requests = map[string]func() proto.Message{}
	}
	f.requests[method] = newRequest
}

// WhyNoOther sets a function that returns why no other server can be elected now, or "" if
// one can. The text becomes part of the error about a leader that does not respond. Call
// WhyNoOther before the server serves calls.
func (f *Forwarder) WhyNoOther(why func() string) { f.whyNoOther = why }

// Await sets a function that streams of the full method call while no leader is known. When
// await returns, the leader is looked up once more. await must return soon after its
// context ends. Call Await before the server serves calls.
func (f *Forwarder) Await(method string, await func(context.Context)) {
	if f.awaits == nil {
		f.awaits = map[string]func(context.Context){}
	}
	f.awaits[method] = await
}

// Unary returns the interceptor for unary calls.
func (f *Forwarder) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		conn, err := f.target(ctx, info.FullMethod)
		if err != nil {
			return nil, err
		}
		if conn == nil {
			return handler(ctx, req)
		}
		_, newReply, err := messages(info.FullMethod)
		if err != nil {
			return nil, err
		}
		var header, trailer metadata.MD
		reply := newReply()
		err = conn.Invoke(forwardedContext(ctx), info.FullMethod, req, reply, grpc.Header(&header), grpc.Trailer(&trailer))
		// Both calls fail only if the caller's stream has ended. Then no one reads their
		// result.
		_ = grpc.SetHeader(ctx, withoutHopHeaders(header))
		_ = grpc.SetTrailer(ctx, withoutHopHeaders(trailer))
		if err != nil {
			return nil, f.unreached(conn, err)
		}
		return reply, nil
	}
}

// Stream returns the interceptor for streams.
func (f *Forwarder) Stream() grpc.StreamServerInterceptor {
	return func(srv any, down grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		conn, err := f.target(down.Context(), info.FullMethod)
		if await := f.awaits[info.FullMethod]; err != nil && await != nil {
			await(down.Context())
			conn, err = f.target(down.Context(), info.FullMethod)
		}
		if err != nil {
			return err
		}
		if conn == nil {
			return handler(srv, down)
		}
		newRequest, newReply, err := messages(info.FullMethod)
		if err != nil {
			return err
		}
		if other := f.requests[info.FullMethod]; other != nil {
			newRequest = other
		}
		ctx, cancel := context.WithCancel(forwardedContext(down.Context()))
		defer cancel()
		desc := &grpc.StreamDesc{ServerStreams: info.IsServerStream, ClientStreams: info.IsClientStream}
		up, err := conn.NewStream(ctx, desc, info.FullMethod)
		if err != nil {
			return f.unreached(conn, err)
		}
		// The goroutine ends at the latest when the handler returns, which ends both
		// streams.
		go func() {
			if !pumpUp(down, up, newRequest) {
				cancel()
			}
		}()
		return f.unreached(conn, pumpDown(down, up, newReply))
	}
}

// unreached converts the error of a forwarded call for the caller. If no connection to the
// leader could be made, the error names the leader's address, because the caller would
// otherwise assume that its own connection failed.
func (f *Forwarder) unreached(conn *grpc.ClientConn, err error) error {
	if rpcerr.TransportFailure(err) != rpcerr.NotConnected {
		return err
	}
	at := strings.TrimPrefix(conn.Target(), "passthrough:///")
	other := "no other is elected yet"
	if f.whyNoOther != nil {
		if why := f.whyNoOther(); why != "" {
			other = "no other can be elected: " + why + "; if that lasts, start the server that runs this etcd"
		}
	}
	return rpcerr.Error{
		Code: codes.Unavailable, Reason: rpcerr.ReasonLeaderUnreachable,
		Metadata: map[string]string{rpcerr.KeyAddress: at},
		Message:  fmt.Sprintf("the leader, %s, does not answer, and %s", at, other),
	}.Err()
}

// target returns the connection over which a call is forwarded; nil if this server serves
// the call itself.
func (f *Forwarder) target(ctx context.Context, method string) (*grpc.ClientConn, error) {
	for _, e := range f.exempt {
		if method == e || strings.HasSuffix(e, "/") && strings.HasPrefix(method, e) {
			return nil, nil
		}
	}
	conn, self, err := f.leader()
	switch {
	case err == nil && self:
		return nil, nil
	case err != nil && status.Code(err) != codes.Unknown:
		return nil, err
	case err != nil || conn == nil:
		return nil, ErrNoLeader
	case len(metadata.ValueFromIncomingContext(ctx, Header)) > 0:
		// The call was forwarded here, so another server still takes this server for the
		// leader.
		return nil, ErrNoLeader
	}
	return conn, nil
}

// pumpUp copies the caller's messages to the leader until the caller has no more or one
// stream ends. It returns false if the caller's stream was cancelled.
func pumpUp(down grpc.ServerStream, up grpc.ClientStream, newRequest func() proto.Message) bool {
	for {
		m := newRequest()
		if err := down.RecvMsg(m); errors.Is(err, io.EOF) {
			_ = up.CloseSend()
			return true
		} else if err != nil {
			return false
		}
		if up.SendMsg(m) != nil {
			return true // the leader ended the stream: pumpDown returns the status
		}
	}
}

// pumpDown copies the leader's messages to the caller and returns the status that the
// leader's stream ends with.
func pumpDown(down grpc.ServerStream, up grpc.ClientStream, newReply func() proto.Message) error {
	header, err := up.Header()
	if err != nil {
		return err
	}
	if err := down.SendHeader(withoutHopHeaders(header)); err != nil {
		return err
	}
	for {
		m := newReply()
		if err := up.RecvMsg(m); err != nil {
			down.SetTrailer(withoutHopHeaders(up.Trailer()))
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := down.SendMsg(m); err != nil {
			return err
		}
	}
}

// forwardedContext returns the context of a forwarded call: ctx, with its deadline and
// cancellation, and the caller's metadata plus Header and the caller's identity and address.
func forwardedContext(ctx context.Context) context.Context {
	in, _ := metadata.FromIncomingContext(ctx)
	out := withoutHopHeaders(in)
	out.Set(Header, "1")
	out.Delete(trust.CallerHeader)
	if id, ok := trust.CallerOf(ctx); ok {
		out.Set(trust.CallerHeader, id.String())
	} else if trust.IsStranger(ctx) {
		out.Set(trust.CallerHeader, trust.NoCaller)
	}
	out.Delete(trust.LocalHeader)
	if trust.IsLocal(ctx) {
		out.Set(trust.LocalHeader, "1")
	}
	out.Delete(trust.FromHeader)
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		out.Set(trust.FromHeader, p.Addr.String())
	}
	return metadata.NewOutgoingContext(ctx, out)
}

// withoutHopHeaders returns md without the headers that gRPC itself sets on each
// connection.
func withoutHopHeaders(md metadata.MD) metadata.MD {
	out := metadata.MD{}
	for k, v := range md {
		if strings.HasPrefix(k, ":") || strings.HasPrefix(k, "grpc-") || k == "content-type" || k == "user-agent" || k == "te" {
			continue
		}
		out[k] = v
	}
	return out
}
