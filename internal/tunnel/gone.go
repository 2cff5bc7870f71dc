package tunnel

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// sessionEnded is what a call through a tunnel ended with, as its caller should see it.
// When the session of the peer ends its connection is closed, and gRPC then
// calls the calls that are under way CANCELLED, or UNAVAILABLE with words about
// a transport, as it happens. CANCELLED is what callers do: unless this one did,
// it is the peer that is gone. And words about a transport would be taken for
// the caller's own connection, which holds. What a peer says itself has neither:
// it has been through here.
func sessionEnded(ctx context.Context, peer string, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	switch m := status.Convert(err).Message(); status.Code(err) {
	case codes.Canceled:
	case codes.Unavailable:
		if _, why, dialed := strings.Cut(m, "Error while dialing: "); dialed {
			return status.Error(codes.Unavailable, strings.TrimSuffix(why, `"`)) // it names the peer
		}
		if !strings.Contains(m, "connection error") && !strings.Contains(m, "transport") && !strings.Contains(m, "error reading from server") {
			return err
		}
	default:
		return err
	}
	kind, name, _ := strings.Cut(peer, " ")
	return status.Errorf(codes.Unavailable, "the session with %s has ended meanwhile; `nusa %s status %s` says whether it is back: retry", peer, kind, name)
}

func unaryEnded(peer string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return sessionEnded(ctx, peer, invoke(ctx, method, req, reply, cc, opts...))
	}
}

func streamEnded(peer string) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		if err != nil {
			return nil, sessionEnded(ctx, peer, err)
		}
		return &endedStream{s, ctx, peer}, nil
	}
}

// endedStream has its status from RecvMsg; SendMsg only says io.EOF.
type endedStream struct {
	grpc.ClientStream
	ctx  context.Context // the caller's: the stream's own ends with it
	peer string
}

func (s *endedStream) RecvMsg(m any) error {
	return sessionEnded(s.ctx, s.peer, s.ClientStream.RecvMsg(m))
}
