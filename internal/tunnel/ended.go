package tunnel

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
)

// sessionEnded converts the error of a call through a tunnel for the caller. When the
// session of the peer ends, the connection is closed. gRPC then ends the calls in flight
// with CANCELLED, or with UNAVAILABLE and a text about a transport. Both would mislead the
// caller: it did not cancel unless ctx is done, and its own connection still works. So
// both become an error that names the peer. dialErr returns the error of the latest dial,
// which already names the peer. Errors that the peer returned are not changed.
func sessionEnded(ctx context.Context, peer string, dialErr func() error, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	switch failure := rpcerr.TransportFailure(err); {
	case failure == rpcerr.NotConnected && dialErr() != nil:
		return status.Error(codes.Unavailable, dialErr().Error())
	case failure == rpcerr.NoFailure && status.Code(err) != codes.Canceled:
		return err
	}
	kind, name, _ := strings.Cut(peer, " ")
	return rpcerr.Error{
		Code: codes.Unavailable, Reason: rpcerr.ReasonSessionEnded,
		Metadata: map[string]string{rpcerr.KeyKind: kind, rpcerr.KeyName: name},
		Message:  fmt.Sprintf("the session with %s has ended meanwhile; `nusa %s status %s` says whether it is back", peer, kind, name),
	}.Err()
}

func unaryEnded(peer string, dialErr func() error) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return sessionEnded(ctx, peer, dialErr, invoke(ctx, method, req, reply, cc, opts...))
	}
}

func streamEnded(peer string, dialErr func() error) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		if err != nil {
			return nil, sessionEnded(ctx, peer, dialErr, err)
		}
		return &endedStream{s, ctx, peer, dialErr}, nil
	}
}

// endedStream converts the status of a stream by sessionEnded. Only RecvMsg returns the
// status; SendMsg returns only io.EOF.
type endedStream struct {
	grpc.ClientStream
	ctx     context.Context // the caller's context, because the stream's own context ends with the stream
	peer    string
	dialErr func() error
}

func (s *endedStream) RecvMsg(m any) error {
	return sessionEnded(s.ctx, s.peer, s.dialErr, s.ClientStream.RecvMsg(m))
}
