package clienttest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nusa-scheduler/nusa/client"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Server is a server in memory. It is safe for concurrent use.
type Server struct {
	grpc *grpc.Server
	done chan struct{} // closed when grpc has ended

	mu       sync.Mutex
	listener *bufconn.Listener
	conns    map[net.Conn]struct{}
	failures map[string][]error
	jobs     map[key]*nusav1.Job
	keys     map[string]*nusav1.SubmitResponse
	regions  map[string]*nusav1.Region
	events   []*nusav1.Event
	revision int64
	hold     bool
	// changed is closed and replaced at each change.
	changed chan struct{}
}

type key struct{ namespace, name string }

// New starts a server. The caller must call Close.
func New() *Server {
	s := &Server{
		done: make(chan struct{}), listener: bufconn.Listen(64 << 10), conns: map[net.Conn]struct{}{}, failures: map[string][]error{},
		jobs: map[key]*nusav1.Job{}, keys: map[string]*nusav1.SubmitResponse{}, regions: map[string]*nusav1.Region{}, changed: make(chan struct{}),
	}
	s.grpc = grpc.NewServer(grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream), grpc.WaitForHandlers(true))
	nusav1.RegisterJobsServer(s.grpc, jobs{s: s})
	nusav1.RegisterRegionsServer(s.grpc, regions{s: s})
	nusav1.RegisterEventsServer(s.grpc, events{s: s})
	nusav1.RegisterSystemServer(s.grpc, system{})
	go func() {
		defer close(s.done)
		_ = s.grpc.Serve(s.listener) // it ends with Close
	}()
	return s
}

// Close ends the server and all of its connections.
func (s *Server) Close() {
	s.grpc.Stop()
	<-s.done
}

// Client returns a client of the server. The caller must close it.
func (s *Server) Client() *client.Client {
	c, err := client.Open(client.Options{Addresses: []string{"clienttest"}, Insecure: true, Dial: func(ctx context.Context, _ string) (net.Conn, error) { return s.Dial(ctx) }})
	if err != nil {
		panic(err) // the options are constant
	}
	return c
}

// Dial returns a connection to the server, for client.Options.Dial.
func (s *Server) Dial(ctx context.Context) (net.Conn, error) {
	conn, err := s.listener.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	tracked := &trackedConn{Conn: conn, s: s}
	s.conns[tracked] = struct{}{}
	return tracked, nil
}

// trackedConn leaves the server's list when it is closed.
type trackedConn struct {
	net.Conn
	s *Server
}

// Close implements net.Conn.
func (c *trackedConn) Close() error {
	c.s.mu.Lock()
	delete(c.s.conns, c)
	c.s.mu.Unlock()
	return c.Conn.Close()
}

// Break breaks all connections, like a server that is killed and starts again at once.
func (s *Server) Break() {
	s.mu.Lock()
	var all []net.Conn
	for c := range s.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
}

// Fail lets the next calls of a method, for example "Submit", fail with an error of package client,
// for example client.ErrNotLeader. A call that fails changes nothing.
func (s *Server) Fail(method string, err error, times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range times {
		s.failures[method] = append(s.failures[method], err)
	}
}

// statuses are the statuses that a client reads as the errors of package client.
var statuses = map[error]rpcerr.Error{
	client.ErrNotLeader:         {Code: codes.Unavailable, Reason: rpcerr.ReasonNoLeader},
	client.ErrRegionUnreachable: {Code: codes.Unavailable, Reason: rpcerr.ReasonNoMaster},
	client.ErrUnavailable:       {Code: codes.Unavailable},
	client.ErrConflict:          {Code: codes.Aborted},
	client.ErrPrecondition:      {Code: codes.FailedPrecondition},
	client.ErrDenied:            {Code: codes.PermissionDenied},
	client.ErrUnauthenticated:   {Code: codes.Unauthenticated},
	client.ErrFull:              {Code: codes.ResourceExhausted},
	client.ErrNotFound:          {Code: codes.NotFound},
	client.ErrInvalid:           {Code: codes.InvalidArgument},
	client.ErrUnsupported:       {Code: codes.Unimplemented},
}

// failure returns the error with which a call must fail, or nil.
func (s *Server) failure(method string) error {
	name := method[strings.LastIndexByte(method, '/')+1:]
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.failures[name]
	if len(left) == 0 {
		return nil
	}
	s.failures[name] = left[1:]
	for kind, status := range statuses {
		if errors.Is(left[0], kind) {
			status.Message = fmt.Sprintf("%s fails on demand: %s", name, left[0])
			return status.Err()
		}
	}
	return left[0]
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := s.failure(info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := s.failure(info.FullMethod); err != nil {
		return err
	}
	return handler(srv, ss)
}

// change runs f under the lock and wakes the watches.
func (s *Server) change(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := f(); err != nil {
		return err
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}
