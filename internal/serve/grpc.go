package serve

import (
	"context"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/network"
)

const (
	// maxReceive bounds a request, in bytes. The largest requests are a job of 1 MiB and a
	// batch of 256 KiB, which may exceed that size with a single job.
	maxReceive = 4 << 20
	// maxReply bounds a reply, in bytes. A reply with 10,000 allocations fits.
	maxReply = 16 << 20
	// maxHeaders bounds the metadata of a call, in bytes. The default of gRPC is 16 MiB.
	maxHeaders = 64 << 10
	// maxStreams bounds the concurrent calls of one connection.
	maxStreams = 1024
	// keepalivePing is the interval of pings on a quiet connection, keepaliveTimeout the
	// wait for the response. A dead peer is noticed within their sum, also on connections
	// without a lease. gRPC clients allow no interval below 10 s.
	keepalivePing    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
	// readBuffer is the size of the read buffer of a connection. gRPC's default of 32 KiB takes
	// 32 MiB for the streams of a thousand regions, because gRPC shares buffers only among
	// connections of package net, and followed connections are not.
	readBuffer = 8 << 10
	// smallBuffer is the size of the read and write buffers with Options.SmallBuffers.
	// gRPC's default is 32 KiB.
	smallBuffer = 4 << 10
	// streamWindow and connWindow bound the bytes that a peer may send before they are
	// read. The windows are constant, because gRPC's estimate of the bandwidth costs a
	// ping for every message on a quiet stream, and a server has thousands of quiet
	// streams.
	streamWindow = 512 << 10
	connWindow   = 1 << 20
)

func newGRPC(o Options) *grpc.Server {
	m := newCallMetrics(o.Registry)
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxReceive),
		grpc.MaxSendMsgSize(maxReply),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.ReadBufferSize(readBuffer),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepalivePing, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepalivePing / 2, PermitWithoutStream: true}),
		// Stop must wait for handlers, because Run returns only when all handlers have
		// ended.
		grpc.WaitForHandlers(true),
		grpc.ChainUnaryInterceptor(append([]grpc.UnaryServerInterceptor{m.unary}, o.Unary...)...),
		grpc.ChainStreamInterceptor(append([]grpc.StreamServerInterceptor{m.stream}, o.Stream...)...),
	}
	if o.Credentials != nil {
		opts = append(opts, grpc.Creds(o.Credentials))
	}
	if o.Tap != nil {
		opts = append(opts, grpc.InTapHandle(o.Tap))
	}
	if o.Codec != nil {
		opts = append(opts, grpc.ForceServerCodecV2(o.Codec))
	}
	if o.SmallBuffers {
		opts = append(opts, grpc.ReadBufferSize(smallBuffer), grpc.WriteBufferSize(smallBuffer))
	}
	return grpc.NewServer(opts...)
}

// Dial returns a client connection to addr over the network n. The connection uses
// keepalive and waits at most 1 s between attempts to reconnect. It connects at the first
// call. Without an option for credentials the connection is not encrypted.
func Dial(n network.Net, addr string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	base := []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return n.Dial(ctx, addr) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepalivePing, Timeout: keepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReply)),
		grpc.WithNoProxy(),
	}
	// The scheme passthrough leaves the resolution of the address to n.
	return grpc.NewClient("passthrough:///"+addr, append(base, opts...)...)
}

// callMetrics counts calls by method and code, and measures their time.
type callMetrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

func newCallMetrics(r prometheus.Registerer) callMetrics {
	m := callMetrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nusa_grpc_calls_total", Help: "Calls answered, streams when they end.",
		}, []string{"method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "nusa_grpc_call_seconds", Help: "Time to answer unary calls.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"method"}),
	}
	r.MustRegister(m.calls, m.seconds)
	return m
}

func (m callMetrics) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	start := time.Now()
	reply, err := handler(ctx, req)
	m.calls.WithLabelValues(info.FullMethod, status.Code(err).String()).Inc()
	m.seconds.WithLabelValues(info.FullMethod).Observe(time.Since(start).Seconds())
	return reply, err
}

func (m callMetrics) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	err := handler(srv, ss)
	m.calls.WithLabelValues(info.FullMethod, status.Code(err).String()).Inc()
	return err
}
