// Package serve is what every role does around its work: it opens listeners,
// serves gRPC with health and reflection and HTTP with /livez, /readyz and
// /metrics, logs, owns a data directory, and stops in order.
package serve

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/network"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
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
	// with it too. Never nil.
	GRPC *grpc.Server
	// Mux takes HTTP handlers until Run. Never nil.
	Mux *http.ServeMux
	// Registry takes collectors.
	Registry *prometheus.Registry
}

// Open opens the listeners, so that addresses are known and errors early, and
// serves nothing yet. The caller must call Run or Close.
func Open(ctx context.Context, opts Options) (*Server, error) { panic("unwritten") }

// GRPCAddr is the address listened on, with the port that was chosen; empty
// without gRPC.
func (s *Server) GRPCAddr() string { panic("unwritten") }

// HTTPAddr as GRPCAddr.
func (s *Server) HTTPAddr() string { panic("unwritten") }

// Run serves until ctx ends or a listener fails, then stops in order: not
// ready, calls in flight finish (at most Grace), the rest is cut, HTTP last.
// Nil after ctx ended.
func (s *Server) Run(ctx context.Context) error { panic("unwritten") }

// Close closes the listeners of a server that is not to Run.
func (s *Server) Close() error { panic("unwritten") }

// Listen opens a stream listener; an error names the flag that chooses
// another address.
func Listen(ctx context.Context, n network.Net, addr, flag string) (net.Listener, error) {
	panic("unwritten")
}

// ListenPacket is Listen for datagrams.
func ListenPacket(ctx context.Context, n network.Net, addr, flag string) (net.PacketConn, error) {
	panic("unwritten")
}

// Dial returns a client connection to addr over n, with keepalive and
// reconnects backed off to at most 1 s. It does not connect before the first
// call.
func Dial(n network.Net, addr string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	panic("unwritten")
}

// NewLogger returns a logger that writes to w. Levels: debug, info, warn,
// error; formats: text, json.
func NewLogger(level, format string, w io.Writer) (*slog.Logger, error) { panic("unwritten") }

// Invalid returns a status INVALID_ARGUMENT with the problems in its details
// and the first one in its message.
func Invalid(problems ...*nusav1.Problem) error { panic("unwritten") }

// Problems returns the problems in the details of err's status, of any code.
func Problems(err error) []*nusav1.Problem { panic("unwritten") }
