// Package serve is what every role does around its work: it opens listeners,
// serves gRPC with health and reflection and HTTP with /livez, /readyz and
// /metrics, logs, owns a data directory, and stops in order.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/nusa-scheduler/nusa/internal/network"
)

// Version of the build, set by the linker.
var Version = "dev"

// Options of a Server.
type Options struct {
	// Net is how sockets are opened. Required.
	Net network.Net
	// Logger. Default: none.
	Logger *slog.Logger

	// GRPCAddr to listen on; empty or "-" serves no gRPC.
	GRPCAddr string
	// GRPCFlag names the flag in the error when the address is in use. Default
	// "--grpc-addr".
	GRPCFlag string
	// Unary and Stream are chained after the metrics, first one outermost.
	Unary  []grpc.UnaryServerInterceptor
	Stream []grpc.StreamServerInterceptor
	// Codec reads and writes messages. Default: protobuf's.
	Codec encoding.CodecV2

	// HTTPAddr to listen on; empty or "-" serves no HTTP.
	HTTPAddr string
	// HTTPFlag as GRPCFlag. Default "--http-addr".
	HTTPFlag string
	// Ready says why the role cannot do its work now; nil error means ready.
	// Shown by /readyz. Default: ready while serving.
	Ready func() error
	// Registry is served at /metrics. Default: a new one with the Go and
	// process collectors.
	Registry *prometheus.Registry

	// Grace is how long calls in flight may finish when stopping. Default 1 s.
	Grace time.Duration
	// SmallBuffers trades throughput for memory where there are thousands of
	// connections or dozens of servers in one process.
	SmallBuffers bool
}

// Server is the listeners of one role. Open, register services on GRPC, then
// Run.
type Server struct {
	// GRPC takes services until Run; further listeners (tunnels) may be served
	// with it too: they stop with it. Never nil.
	GRPC *grpc.Server
	// Mux takes HTTP handlers until Run. Never nil.
	Mux *http.ServeMux
	// Registry takes collectors.
	Registry *prometheus.Registry

	opts     Options
	health   *health.Server
	grpcLis  net.Listener // nil without
	httpLis  net.Listener // nil without
	stopping atomic.Bool
}

// Open opens the listeners, so that addresses are known and errors early, and
// serves nothing yet. The caller must call Run or Close.
func Open(ctx context.Context, opts Options) (*Server, error) {
	opts = opts.withDefaults()
	s := &Server{opts: opts, Registry: opts.Registry, Mux: http.NewServeMux()}
	var err error
	if opts.GRPCAddr != "" {
		if s.grpcLis, err = Listen(ctx, opts.Net, opts.GRPCAddr, opts.GRPCFlag); err != nil {
			return nil, err
		}
	}
	if opts.HTTPAddr != "" {
		if s.httpLis, err = Listen(ctx, opts.Net, opts.HTTPAddr, opts.HTTPFlag); err != nil {
			_ = s.Close()
			return nil, err
		}
	}
	s.GRPC = newGRPC(opts)
	s.health = health.NewServer()
	grpc_health_v1.RegisterHealthServer(s.GRPC, s.health)
	reflection.Register(s.GRPC) // lists services when it is asked
	s.handleHTTP()
	return s, nil
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.GRPCAddr == "-" {
		o.GRPCAddr = ""
	}
	if o.HTTPAddr == "-" {
		o.HTTPAddr = ""
	}
	if o.GRPCFlag == "" {
		o.GRPCFlag = "--grpc-addr"
	}
	if o.HTTPFlag == "" {
		o.HTTPFlag = "--http-addr"
	}
	if o.Ready == nil {
		o.Ready = func() error { return nil }
	}
	if o.Registry == nil {
		o.Registry = newRegistry()
	}
	if o.Grace <= 0 {
		o.Grace = time.Second
	}
	return o
}

// GRPCAddr is the address listened on, with the port that was chosen; empty
// without gRPC.
func (s *Server) GRPCAddr() string { return address(s.grpcLis) }

// HTTPAddr as GRPCAddr.
func (s *Server) HTTPAddr() string { return address(s.httpLis) }

func address(l net.Listener) string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}

// Run serves until ctx ends or a listener fails, then stops in order: not
// ready, calls in flight finish (at most Grace), the rest is cut, HTTP last.
// Nil after ctx ended.
func (s *Server) Run(ctx context.Context) error {
	web := s.newHTTP()
	g, ctx := errgroup.WithContext(ctx)
	if s.grpcLis != nil {
		g.Go(func() error {
			if err := s.GRPC.Serve(s.grpcLis); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				return fmt.Errorf("serve gRPC on %s: %w", s.GRPCAddr(), err)
			}
			return nil
		})
	}
	if s.httpLis != nil {
		g.Go(func() error {
			if err := web.Serve(s.httpLis); err != nil && !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve HTTP on %s: %w", s.HTTPAddr(), err)
			}
			return nil
		})
	}
	g.Go(func() error {
		<-ctx.Done()
		s.stop(web)
		return nil
	})
	return g.Wait()
}

func (s *Server) stop(web *http.Server) {
	// Clients and load balancers look elsewhere first.
	s.stopping.Store(true)
	s.health.Shutdown()
	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		s.GRPC.GracefulStop()
	}()
	late := time.NewTimer(s.opts.Grace)
	defer late.Stop()
	select {
	case <-graceful:
	case <-late.C:
		// Sessions and watches never end by themselves.
		s.GRPC.Stop()
		<-graceful
	}
	// HTTP last, so that a probe sees "not ready" until the end.
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.Grace)
	defer cancel()
	if web.Shutdown(ctx) != nil {
		_ = web.Close()
	}
}

// Close closes the listeners of a server that is not to Run.
func (s *Server) Close() error {
	var errs []error
	for _, l := range []net.Listener{s.grpcLis, s.httpLis} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}
