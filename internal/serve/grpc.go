package serve

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/grpcdial"
	"github.com/nusa-scheduler/nusa/internal/network"
)

const (
	// maxReceive bounds a request, in bytes. The largest requests are a job of 1 MiB and a
	// batch of 256 KiB, which may exceed that size with a single job.
	maxReceive = 4 << 20
	// maxHeaders bounds the metadata of a call, in bytes. The default of gRPC is 16 MiB.
	maxHeaders = 64 << 10
	// maxStreams bounds the concurrent calls of one connection.
	maxStreams = 1024
	// keepaliveTimeout is the wait for the response to a ping, and for the first bytes of a peer.
	keepaliveTimeout = grpcdial.PingTimeout
	// readBuffer is the size of the read buffer of a connection while gRPC reads, and writeBuffer that of its write buffer.
	// Messages to and from a thousand regions take up to a thousand buffers at once, and the pool keeps a buffer until
	// two collections have passed: 8 MB with 8 KiB, and more with gRPC's default of 32 KiB. With one size, both have
	// one pool. A connection that is not of package net has a buffer of its own.
	readBuffer  = 4 << 10
	writeBuffer = readBuffer
	// smallBuffer is the size of the read and write buffers with Options.SmallBuffers.
	// gRPC's default is 32 KiB.
	smallBuffer = 4 << 10
)

// GRPC serves the calls of a listener until the server is stopped. It returns nil then, also if the server was stopped
// before it served.
func GRPC(s *grpc.Server, l net.Listener) error {
	if err := s.Serve(l); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

func newGRPC(o Options, unary []grpc.UnaryServerInterceptor, stream []grpc.StreamServerInterceptor) *grpc.Server {
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxReceive),
		grpc.MaxSendMsgSize(grpcdial.MaxReply),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.ReadBufferSize(readBuffer),
		grpc.WriteBufferSize(writeBuffer),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.StaticStreamWindowSize(grpcdial.StreamWindow),
		grpc.StaticConnWindowSize(grpcdial.ConnWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: grpcdial.Ping, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: grpcdial.Ping / 2, PermitWithoutStream: true}),
		// Stop must wait for handlers, because Run returns only when all handlers have
		// ended.
		grpc.WaitForHandlers(true),
		grpc.ChainUnaryInterceptor(unary...),
		grpc.ChainStreamInterceptor(stream...),
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

// Dial returns a client connection to addr over the network n, with the settings of package
// grpcdial.
func Dial(n network.Net, addr string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpcdial.New(n.Dial, addr, opts...)
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
