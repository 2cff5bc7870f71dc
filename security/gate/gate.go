package gate

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// Unary returns the interceptor for unary calls, and none for a nil Source.
func Unary(s *trust.Source) []grpc.UnaryServerInterceptor {
	if s == nil {
		return nil
	}
	return []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		ctx, err := admit(ctx, s.ID(), info.FullMethod)
		if err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}}
}

// Stream returns the interceptor for streams, and none for a nil Source.
func Stream(s *trust.Source) []grpc.StreamServerInterceptor {
	if s == nil {
		return nil
	}
	return []grpc.StreamServerInterceptor{func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, err := admit(stream.Context(), s.ID(), info.FullMethod)
		if err != nil {
			return err
		}
		if ctx != stream.Context() {
			stream = forwardedStream{stream, ctx}
		}
		return handler(srv, stream)
	}}
}

// forwardedStream is a stream whose caller is not the peer.
type forwardedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (f forwardedStream) Context() context.Context { return f.ctx }

// admit returns the context of a call that the server accepts. CallerOf returns the caller in
// that context.
func admit(ctx context.Context, server identity.ID, method string) (context.Context, error) {
	peer, ok := trust.PeerOf(ctx)
	if !ok {
		return nil, status.Error(codes.Unauthenticated, "the connection is not encrypted: give the program an identity (--identity)")
	}
	caller := peer
	if text := metadata.ValueFromIncomingContext(ctx, trust.CallerHeader); len(text) > 0 && forwards(server, peer) {
		var err error
		caller, err = identity.Parse(text[0])
		if err != nil || !caller.Kind.Leaf() {
			return nil, status.Errorf(codes.Unauthenticated, "%s forwards a call of %q: %v", peer.Describe(), text[0], err)
		}
		ctx = trust.WithCaller(ctx, caller)
	}
	if err := Allow(server, method, caller); err != nil {
		return nil, status.Error(codes.PermissionDenied, err.Error())
	}
	return ctx, nil
}
