package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/grpcdial"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// inside is the listener of gRPC connections within this process. Each HTTP connection whose client
// makes calls has one such connection. So the gRPC server sees the address and the certificate of that
// client, and no header has to be believed.
type inside struct {
	accept chan net.Conn
	done   chan struct{}
	once   sync.Once
	// handlers counts the HTTP requests in progress.
	handlers sync.WaitGroup
	direct   *direct
	// plain: the gRPC server has no credentials, so it accepts every connection.
	plain bool

	mu    sync.Mutex
	links map[net.Conn]*link // by HTTP connection
}

func newInside(d *direct, plain bool) *inside {
	return &inside{direct: d, plain: plain, accept: make(chan net.Conn), done: make(chan struct{}), links: map[net.Conn]*link{}}
}

// Accept implements net.Listener.
func (i *inside) Accept() (net.Conn, error) {
	select {
	case c := <-i.accept:
		return c, nil
	case <-i.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (i *inside) Close() error {
	i.once.Do(func() { close(i.done) })
	return nil
}

// Addr implements net.Listener.
func (*inside) Addr() net.Addr { return insideAddr{} }

type insideAddr struct{}

// Network implements net.Addr.
func (insideAddr) Network() string { return "inside" }

// String implements net.Addr.
func (insideAddr) String() string { return "this process" }

// count lets end wait for the requests in progress.
func (i *inside) count(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.handlers.Add(1)
		defer i.handlers.Done()
		h.ServeHTTP(w, r)
	})
}

type linkKey struct{}

// connContext gives the requests of an HTTP connection their link.
func (i *inside) connContext(ctx context.Context, c net.Conn) context.Context {
	l := &link{of: i, http: c}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.links[c] = l
	return context.WithValue(ctx, linkKey{}, l)
}

// connState ends the link of an HTTP connection that is closed. A handler that takes the connection
// over calls Unlink.
func (i *inside) connState(c net.Conn, state http.ConnState) {
	if state != http.StateClosed {
		return
	}
	i.mu.Lock()
	l := i.links[c]
	delete(i.links, c)
	i.mu.Unlock()
	l.close()
}

// end ends all links, and waits for the handlers, whose calls have ended.
func (i *inside) end() {
	_ = i.Close()
	i.mu.Lock()
	links := i.links
	i.links = map[net.Conn]*link{}
	i.mu.Unlock()
	for _, l := range links {
		l.close()
	}
	i.handlers.Wait()
}

// serveInside serves gRPC on the connections within this process.
func (s *Server) serveInside() error {
	if err := GRPC(s.GRPC, s.inside); err != nil {
		return fmt.Errorf("serve gRPC within the process: %w", err)
	}
	return nil
}

// link is the gRPC connection of an HTTP connection.
type link struct {
	of   *inside
	http net.Conn

	mu sync.Mutex
	// conn is nil before the first call.
	conn   *grpc.ClientConn
	closed bool
	// refused is why the certificate of the client is refused now.
	refused error
	// caller is nil until a connection was accepted, and after that connection has ended.
	caller    *caller
	endCaller context.CancelFunc
}

// Conn returns the gRPC connection to this server for the client of an HTTP request. The gRPC server
// sees the address and the certificate of that client.
func Conn(r *http.Request) (grpc.ClientConnInterface, error) {
	l, ok := r.Context().Value(linkKey{}).(*link)
	if !ok {
		return nil, errors.New("the request is not of a Server")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, status.Error(codes.Unavailable, "the server stops: call another server")
	}
	if l.conn == nil {
		conn, err := l.open(r.TLS)
		if err != nil {
			return nil, err
		}
		l.conn = conn
	}
	return l, nil
}

// Unlink ends the gRPC connection of an HTTP connection that a handler has taken over.
func Unlink(r *http.Request) {
	l, ok := r.Context().Value(linkKey{}).(*link)
	if !ok {
		return
	}
	l.of.mu.Lock()
	delete(l.of.links, l.http)
	l.of.mu.Unlock()
	l.close()
}

// Keep says that the connection of a request has a long stream, which the caller counts. So the
// connection is not closed when too many others are open.
func Keep(r *http.Request) {
	l, ok := r.Context().Value(linkKey{}).(*link)
	if !ok {
		return
	}
	conn := l.http
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if kept, ok := conn.(interface{ Keep() }); ok {
		kept.Keep()
	}
}

// open returns a new gRPC connection, which dials within this process.
func (l *link) open(state *tls.ConnectionState) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///inside",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.dial(ctx, state) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(grpcdial.MaxReply)),
		grpc.WithStaticStreamWindowSize(grpcdial.StreamWindow), grpc.WithStaticConnWindowSize(grpcdial.ConnWindow),
		grpc.WithReadBufferSize(smallBuffer), grpc.WithWriteBufferSize(smallBuffer),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
	)
}

func (l *link) dial(ctx context.Context, state *tls.ConnectionState) (net.Conn, error) {
	l.refuse(nil)
	client, server := net.Pipe()
	raw := &insideConn{Conn: server, link: l}
	select {
	case l.of.accept <- trust.Inside(raw, state, raw.accepted, l.refuse):
		if l.of.plain {
			raw.accepted(nil)
		}
		return client, nil
	case <-l.of.done:
	case <-ctx.Done():
	}
	_, _ = client.Close(), server.Close()
	return nil, net.ErrClosed
}

func (l *link) close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	conn := l.conn
	l.conn, l.closed = nil, true
	l.end()
	l.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
}

// insideConn has the address of the HTTP client. Its end ends the direct calls of the link, too: a server
// closes the connections of a banned client.
type insideConn struct {
	net.Conn
	link   *link
	closed bool // guarded by link.mu
}

// RemoteAddr implements net.Conn.
func (c *insideConn) RemoteAddr() net.Addr { return c.link.http.RemoteAddr() }

// Close implements net.Conn.
func (c *insideConn) Close() error {
	c.link.mu.Lock()
	c.closed = true
	if who := c.link.caller; who != nil && who.of == c {
		c.link.end()
	}
	c.link.mu.Unlock()
	return c.Conn.Close()
}

// refuse notes why the certificate of the client is refused, or that it is tried again.
func (l *link) refuse(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = err
}

// explain converts the error of a call whose connection was refused.
func (l *link) explain(err error) error {
	if status.Code(err) != codes.Unavailable {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused == nil {
		return err
	}
	return status.Errorf(codes.Unauthenticated, "the certificate of the connection is refused: %v", l.refused)
}

// Invoke implements grpc.ClientConnInterface.
func (l *link) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if who, m, ok := l.knows(method); ok {
		return l.of.direct.call(ctx, who, method, m, args, reply, opts)
	}
	conn, err := l.current()
	if err != nil {
		return err
	}
	return l.explain(conn.Invoke(ctx, method, args, reply, opts...))
}

// NewStream implements grpc.ClientConnInterface.
func (l *link) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	conn, err := l.current()
	if err != nil {
		return nil, err
	}
	stream, err := conn.NewStream(ctx, desc, method, opts...)
	return stream, l.explain(err)
}

func (l *link) current() (*grpc.ClientConn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		return nil, status.Error(codes.Unavailable, "the HTTP connection has ended")
	}
	return l.conn, nil
}
