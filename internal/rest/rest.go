package rest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/serve"
)

// Options configure the API.
type Options struct {
	// Origins are the origins of pages of other servers that may call the API, for example
	// "https://ops.example.com".
	Origins []string
	// Plain: the server has no identity, so everybody who reaches it may call it.
	Plain bool
}

// api is the HTTP API of one server.
type api struct {
	o Options
	// operations has the operations by verb and pattern. all has them in the order of their paths.
	operations map[string]*operation
	all        []*operation
	requests   *prometheus.CounterVec
	// streams counts the streams in progress.
	streams atomic.Int32
	// bodies has an element for each large body, or job file in YAML, that is being read.
	bodies chan struct{}
	// mux returns the handlers, which are made at the first request.
	mux func() http.Handler
}

// Mount adds the API to a server, before the server runs.
func Mount(s *serve.Server, o Options) error {
	for _, origin := range o.Origins {
		if err := CheckOrigin(origin); err != nil {
			return err
		}
	}
	a := &api{o: o, operations: map[string]*operation{}, bodies: make(chan struct{}, maxBodies), requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nusa_http_requests_total", Help: "Requests of the HTTP API, by operation and status. Streams count when they end.",
	}, []string{"operation", "status"})}
	if err := s.Registry.Register(a.requests); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	a.mux = sync.OnceValue(a.handlers)
	s.Mux.Handle("/v1/", a.guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.mux().ServeHTTP(w, a.headAsGet(r)) })))
	mountPages(a, s.Mux)
	mountVirtflow(a, s.Mux)
	return nil
}

// handlers makes the handlers of all operations.
func (a *api) handlers() http.Handler {
	a.all = operations()
	for _, op := range a.all {
		a.operations[op.verb+" "+op.pattern()] = op
	}
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, &codec{}),
		runtime.WithMarshalerOption(eventsType, &events{}),
		runtime.WithMarshalerOption(yamlType, &jobFile{}),
		runtime.WithMiddlewares(a.around),
		// No header of the client becomes metadata, apart from Authorization.
		runtime.WithIncomingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithOutgoingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithOutgoingTrailerMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithForwardResponseOption(respond),
		runtime.WithErrorHandler(failed), runtime.WithStreamErrorHandler(streamFailed),
		runtime.WithRoutingErrorHandler(a.unrouted),
		runtime.WithDisablePathLengthFallback(), runtime.WithDisableHTTPMethodOverride(), runtime.WithDisableChunkedEncoding(),
		runtime.WithUnescapingMode(runtime.UnescapingModeAllCharacters),
	)
	for _, register := range services {
		if err := register(context.Background(), mux, caller{}); err != nil {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { problemOf(err).write(w, r) })
		}
	}
	return duplexes(a, mux)
}

// headAsGet returns the request GET for a request HEAD, whose response net/http then sends without its
// body. A stream has no end, so it has no HEAD.
func (a *api) headAsGet(r *http.Request) *http.Request {
	if r.Method != http.MethodHead {
		return r
	}
	for _, op := range a.all {
		if op.verb == http.MethodGet && op.streams() && op.matches.MatchString(r.URL.EscapedPath()) {
			return r
		}
	}
	out := r.Clone(r.Context())
	out.Method = http.MethodGet
	return out
}

// maxStreams bounds the streams in progress. Their connections do not count among those that serve
// bounds, so that no stranger can end a stream by opening connections.
const maxStreams = 512

// enter counts a stream, until leave. It returns false if there are too many.
func (a *api) enter() bool {
	if a.streams.Add(1) <= maxStreams {
		return true
	}
	a.leave()
	return false
}

func (a *api) leave() { a.streams.Add(-1) }

// tooMany is the error of a stream that does not begin.
func tooMany() *problem {
	return problemOf(rpcerr.Error{Code: codes.ResourceExhausted, RetryAfter: 10 * time.Second,
		Message: fmt.Sprintf("the server has %d streams over HTTP: call another server, or later", maxStreams)}.Err())
}

// caller is the connection of the client whose request a call is for.
type caller struct{}

func (caller) of(ctx context.Context) (grpc.ClientConnInterface, error) {
	c := callOf(ctx)
	if c == nil {
		return nil, status.Error(codes.Internal, "the call has no request")
	}
	return serve.Conn(c.r)
}

// Invoke implements grpc.ClientConnInterface.
func (c caller) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, err := c.of(ctx)
	if err != nil {
		return err
	}
	return conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (c caller) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	conn, err := c.of(ctx)
	if err != nil {
		return nil, err
	}
	return conn.NewStream(ctx, desc, method, opts...)
}

// failed sends the error of a call.
func failed(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	c := callOf(ctx)
	if c == nil {
		c = callOf(r.Context())
	}
	p := problemOf(err)
	if c == nil { // for example a malformed path
		refusal(http.StatusBadRequest, codes.InvalidArgument, err.Error()).write(w, r)
		return
	}
	c.w.fail(p.stale(c.r), c.r)
}

// streamFailed sends the error of a stream that has sent nothing yet. Otherwise the marshaler writes a
// frame with the error.
func streamFailed(ctx context.Context, err error) *status.Status {
	if c := callOf(ctx); c != nil {
		c.w.fail(problemOf(err), c.r)
	}
	return status.Convert(err)
}

// unrouted answers requests for which there is no operation.
func (a *api) unrouted(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
	var verbs []string
	for _, op := range a.all {
		if op.matches.MatchString(r.URL.EscapedPath()) && !slices.Contains(verbs, op.verb) {
			verbs = append(verbs, op.verb)
		}
	}
	if code == http.StatusMethodNotAllowed && len(verbs) > 0 {
		w.Header().Set("Allow", strings.Join(verbs, ", "))
		refusal(code, codes.Unimplemented, "this path takes "+strings.Join(verbs, ", ")).write(w, r)
		return
	}
	refusal(http.StatusNotFound, codes.NotFound, "there is no such path: see /openapi.json").write(w, r)
}

// counted counts a request.
func (a *api) counted(op *operation, w *writer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a.requests.WithLabelValues(op.name, strconv.Itoa(w.status)).Inc()
}
