package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/tap"

	"github.com/nusa-scheduler/nusa/internal/guard"
	"github.com/nusa-scheduler/nusa/internal/network"
)

// Version is the version of the build. The linker sets it.
var Version = "dev"

// Options configure a Server.
type Options struct {
	// Net opens sockets. It is required.
	Net network.Net
	// Logger receives errors of HTTP. Default: none.
	Logger *slog.Logger

	// GRPCAddr is the address for gRPC; empty or "-" for no gRPC.
	GRPCAddr string
	// GRPCFlag is the flag that an error about the address names. Default
	// "--grpc-addr".
	GRPCFlag string
	// Unary and Stream are interceptors. The metrics interceptor runs first, then
	// these in order.
	Unary  []grpc.UnaryServerInterceptor
	Stream []grpc.StreamServerInterceptor
	// Credentials encrypt the connections and prove the identity of both ends. Default: none, so
	// the connections are not encrypted.
	Credentials credentials.TransportCredentials
	// Tap may refuse a call when its headers have arrived. Default: it refuses none.
	Tap tap.ServerInHandle
	// Codec encodes and decodes messages. Default: protobuf's.
	Codec encoding.CodecV2

	// More are further listeners for gRPC.
	More []Listener
	// Socket is the path of a Unix socket for gRPC, which root and the user of this process can use.
	// Empty: none.
	Socket string

	// HTTPAddr is the address for HTTP; empty or "-" for no HTTP.
	HTTPAddr string
	// HTTPTLS encrypts HTTP if other machines reach HTTPAddr. Then /metrics is for clients with a
	// certificate only. Default: no encryption.
	HTTPTLS *tls.Config
	// HTTPFlag is the flag that an error about HTTPAddr names. Default "--http-addr".
	HTTPFlag string
	// Ready returns an error that says why the role cannot work now, or nil. /readyz
	// reports it. Default: a function that returns nil.
	Ready func() error
	// Registry is served at /metrics. Default: a new registry with the collectors of Go
	// and of the process.
	Registry *prometheus.Registry

	// Grace is how long a stop waits for calls in flight. Default 1 s.
	Grace time.Duration
	// SmallBuffers saves memory at the cost of throughput. It is for servers with
	// thousands of connections, and for dozens of servers in one process.
	SmallBuffers bool
}

// Listener is a further listener for gRPC.
type Listener struct {
	// Addr is empty for no listener.
	Addr string
	// Flag is the flag that an error about the address names.
	Flag string
	// Only returns a listener that accepts only some members. It is not called without Credentials.
	Only func(net.Listener) net.Listener
}

// Server has the listeners of one role. Call Open, register services on GRPC, and call
// Run.
type Server struct {
	// GRPC accepts services until Run is called. It may also serve other listeners, for
	// example tunnels, which stop when GRPC stops. It is never nil.
	GRPC *grpc.Server
	// Mux accepts HTTP handlers until Run is called. It is never nil.
	Mux *http.ServeMux
	// Registry accepts collectors of metrics.
	Registry *prometheus.Registry

	opts     Options
	health   *health.Server
	grpcLis  net.Listener   // nil without gRPC
	httpLis  net.Listener   // nil without HTTP
	httpTLS  bool           // httpLis uses TLS
	sockLis  net.Listener   // nil without a socket
	more     []net.Listener // nil for those without an address
	inside   *inside
	stopping atomic.Bool
}

// Open opens the listeners but serves nothing yet. So the addresses are known, and errors
// are returned early. The caller must call Run or Close.
func Open(ctx context.Context, opts Options) (*Server, error) {
	opts = opts.withDefaults()
	s := &Server{opts: opts, Registry: opts.Registry, Mux: http.NewServeMux()}
	m := newCallMetrics(opts.Registry)
	unary := append([]grpc.UnaryServerInterceptor{m.unary}, opts.Unary...)
	s.GRPC = newGRPC(opts, unary, append([]grpc.StreamServerInterceptor{m.stream}, opts.Stream...))
	s.inside = newInside(newDirect(opts, unary), opts.Credentials == nil)
	var err error
	if opts.GRPCAddr != "" {
		if s.grpcLis, err = Listen(ctx, opts.Net, opts.GRPCAddr, opts.GRPCFlag); err != nil {
			return nil, err
		}
		if opts.Credentials == nil { // otherwise the handshake is bounded
			s.grpcLis = guard.Requests(s.grpcLis, guard.Most, keepaliveTimeout)
		}
	}
	for _, l := range opts.More {
		lis, err := openMore(ctx, opts, l)
		if err != nil {
			_ = s.Close()
			return nil, err
		}
		s.more = append(s.more, lis)
	}
	if opts.Socket != "" {
		if s.sockLis, err = listenSocket(opts.Socket); err != nil {
			_ = s.Close()
			return nil, err
		}
	}
	if opts.HTTPAddr != "" {
		if s.httpLis, err = Listen(ctx, opts.Net, opts.HTTPAddr, opts.HTTPFlag); err != nil {
			_ = s.Close()
			return nil, err
		}
		s.httpLis = guard.Open(s.httpLis, maxHTTP)
		if opts.HTTPTLS != nil && !Loopback(opts.HTTPAddr) {
			s.httpLis, s.httpTLS = tls.NewListener(s.httpLis, opts.HTTPTLS), true
		}
	}
	s.health = health.NewServer()
	grpc_health_v1.RegisterHealthServer(s.GRPC, s.health)
	reflection.Register(s.GRPC) // lists the services at the time of a call
	s.handleHTTP()
	return s, nil
}

// openMore opens a further listener. It returns nil without an address.
func openMore(ctx context.Context, o Options, l Listener) (net.Listener, error) {
	if l.Addr == "" || l.Addr == "-" {
		return nil, nil
	}
	lis, err := Listen(ctx, o.Net, l.Addr, l.Flag)
	switch {
	case err != nil:
		return nil, err
	case o.Credentials == nil:
		return guard.Requests(lis, guard.Most, keepaliveTimeout), nil
	}
	return l.Only(lis), nil
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

// GRPCAddr returns the address of the gRPC listener with its port; empty without
// gRPC.
func (s *Server) GRPCAddr() string { return address(s.grpcLis) }

// MoreAddr returns the address of a listener of Options.More with its port; empty for one without
// an address.
func (s *Server) MoreAddr(i int) string { return address(s.more[i]) }

// HTTPAddr returns the address of the HTTP listener with its port; empty without
// HTTP.
func (s *Server) HTTPAddr() string { return address(s.httpLis) }

// HTTPAt returns the address of the HTTP port for clients, and whether the port uses TLS. The host
// is missing if the port listens on every address. The address is empty without HTTP.
func (s *Server) HTTPAt() (addr string, encrypted bool) {
	addr = s.HTTPAddr()
	if host, port, err := net.SplitHostPort(addr); err == nil {
		if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
			addr = ":" + port
		}
	}
	return addr, s.httpTLS
}

func address(l net.Listener) string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}

// Run serves until ctx ends or a listener fails. Then it reports "not ready", waits at
// most Grace for calls in flight, cancels the calls that remain, and ends HTTP last. It
// returns nil if ctx has ended.
func (s *Server) Run(ctx context.Context) error {
	web := s.newHTTP()
	g, ctx := errgroup.WithContext(ctx)
	if s.grpcLis != nil {
		g.Go(func() error {
			if err := GRPC(s.GRPC, s.grpcLis); err != nil {
				return fmt.Errorf("serve gRPC on %s: %w", s.GRPCAddr(), err)
			}
			return nil
		})
	}
	for _, lis := range append(slices.Clone(s.more), s.sockLis) {
		if lis == nil {
			continue
		}
		g.Go(func() error {
			if err := GRPC(s.GRPC, lis); err != nil {
				return fmt.Errorf("serve gRPC on %s: %w", lis.Addr(), err)
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
	g.Go(func() error { return s.serveInside() })
	g.Go(func() error {
		<-ctx.Done()
		s.stop(web)
		return nil
	})
	return g.Wait()
}

func (s *Server) stop(web *http.Server) {
	// Clients and load balancers get time to choose other servers.
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
		// Sessions and watches do not end by themselves.
		s.GRPC.Stop()
		<-graceful
	}
	// HTTP ends last, so that a probe sees "not ready" until the end.
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.Grace)
	defer cancel()
	if web.Shutdown(ctx) != nil {
		_ = web.Close()
	}
	s.inside.end()
}

// Close closes the listeners of a server that does not Run.
func (s *Server) Close() error {
	var errs []error
	_ = s.inside.Close()
	for _, l := range append(slices.Clone(s.more), s.grpcLis, s.sockLis, s.httpLis) {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}
