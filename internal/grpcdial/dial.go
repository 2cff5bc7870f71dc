// Package grpcdial makes gRPC connections with the settings that all parts of Nusa share.
package grpcdial

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// Settings that clients and servers must agree on.
const (
	// MaxReply bounds a reply, in bytes. A reply with 10,000 allocations fits.
	MaxReply = 16 << 20
	// Ping is the interval of pings on a quiet connection, PingTimeout the wait for the
	// response. A dead peer is noticed within their sum, also on connections without a
	// lease. gRPC clients allow no interval below 10 s.
	Ping        = 10 * time.Second
	PingTimeout = 5 * time.Second
	// StreamWindow and ConnWindow bound the bytes that a peer may send before they are
	// read. The windows are constant, because gRPC's estimate of the bandwidth costs a
	// ping for every message on a quiet stream, and a server has thousands of quiet
	// streams.
	StreamWindow = 512 << 10
	ConnWindow   = 1 << 20
)

// New returns a client connection to addr, which dial opens. The connection uses keepalive and
// waits at most 1 s between attempts to reconnect. It connects at the first call. Without an
// option for credentials the connection is not encrypted.
func New(dial func(ctx context.Context, addr string) (net.Conn, error), addr string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	base := []grpc.DialOption{
		grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: Ping, Timeout: PingTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithStaticStreamWindowSize(StreamWindow),
		grpc.WithStaticConnWindowSize(ConnWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxReply)),
		grpc.WithNoProxy(),
	}
	// The scheme passthrough leaves the resolution of the address to dial.
	return grpc.NewClient("passthrough:///"+addr, append(base, opts...)...)
}
