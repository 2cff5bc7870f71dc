package tunnel

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Defaults of Options.
const (
	// DefaultMaxTunnels bounds the tunnels that are open or requested.
	DefaultMaxTunnels = 1024
	// DefaultWait is how long a peer may take to open a requested tunnel.
	DefaultWait = 10 * time.Second
	// DefaultIdle is the time after which a tunnel without calls closes.
	DefaultIdle = time.Minute
)

// maxReply bounds one message of a reply, in bytes. A reply with 10,000 allocations fits.
const maxReply = 16 << 20

// Errors of this package.
var (
	// ErrTooMany means that no more tunnels may be open or requested.
	ErrTooMany = errors.New("too many tunnels")
	// ErrNoAnswer means that the other end did not answer in time.
	ErrNoAnswer = errors.New("no answer in time, it may be cut off")
	// ErrClosed means that the hub or the listener is closed.
	ErrClosed = errors.New("tunnels are closed")
)

// ServerStream is the upper end of a Tunnel stream, of the service Federation or Dispatch.
type ServerStream = grpc.BidiStreamingServer[nusav1.TunnelFrame, nusav1.TunnelFrame]

// ClientStream is the lower end of a Tunnel stream.
type ClientStream = grpc.BidiStreamingClient[nusav1.TunnelFrame, nusav1.TunnelFrame]

// Options configure a Hub. A zero value means the default.
type Options struct {
	MaxTunnels int
	Wait       time.Duration
	Idle       time.Duration
}

// Hub is the upper end of all tunnels of a server. A Hub is safe for concurrent use.
type Hub struct {
	opts   Options
	closed chan struct{}

	mu sync.Mutex
	// awaited holds, by id, the channels that receive the connections of requested
	// tunnels. Each channel has room for one connection.
	awaited map[string]chan net.Conn
	open    map[net.Conn]struct{}
}

// NewHub returns a hub without tunnels.
func NewHub(opts Options) *Hub {
	if opts.MaxTunnels <= 0 {
		opts.MaxTunnels = DefaultMaxTunnels
	}
	if opts.Wait <= 0 {
		opts.Wait = DefaultWait
	}
	if opts.Idle <= 0 {
		opts.Idle = DefaultIdle
	}
	return &Hub{
		opts:    opts,
		closed:  make(chan struct{}),
		awaited: map[string]chan net.Conn{},
		open:    map[net.Conn]struct{}{},
	}
}

// Conn returns a client connection to a peer. peer has the form "KIND NAME", for example
// "node n1", and is for error messages. The connection opens a tunnel at the first call,
// and at the first call after the tunnel was closed. To open a tunnel it calls request,
// which must send TunnelRequest{id} on the session of the peer. Make a connection for each
// session, and close it with the session, which ends its tunnels.
func (h *Hub) Conn(peer string, request func(ctx context.Context, id string) error) (*grpc.ClientConn, error) {
	dialer := &rpcerr.Dialer{Dial: func(ctx context.Context, _ string) (net.Conn, error) {
		return h.dial(ctx, peer, request)
	}}
	return grpc.NewClient("passthrough:///"+peer,
		grpc.WithContextDialer(dialer.DialContext),
		// The connection of the stream that carries the tunnel may be encrypted already.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithIdleTimeout(h.opts.Idle),
		grpc.WithUnaryInterceptor(unaryEnded(peer, dialer.Err)),
		grpc.WithStreamInterceptor(streamEnded(peer, dialer.Err)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: h.opts.Wait,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReply)),
		grpc.WithNoProxy(),
	)
}

func (h *Hub) dial(ctx context.Context, peer string, request func(ctx context.Context, id string) error) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, h.opts.Wait)
	defer cancel()
	id := rand.Text()
	answer, err := h.await(id)
	if err != nil {
		return nil, fmt.Errorf("tunnel to %s: %w", peer, err)
	}
	err = request(ctx, id)
	if err == nil {
		select {
		case c := <-answer:
			return namedConn{c, peer}, nil
		case <-ctx.Done():
			err = ErrNoAnswer
		case <-h.closed:
			err = ErrClosed
		}
	}
	if h.forget(id) {
		return nil, fmt.Errorf("tunnel to %s: %w", peer, err)
	}
	// The peer opened the tunnel meanwhile, so Serve has sent the connection or is about
	// to.
	return namedConn{<-answer, peer}, nil
}

func (h *Hub) await(id string) (chan net.Conn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isClosed() {
		return nil, ErrClosed
	}
	if len(h.awaited)+len(h.open) >= h.opts.MaxTunnels {
		return nil, fmt.Errorf("%w: %d are open or awaited", ErrTooMany, h.opts.MaxTunnels)
	}
	answer := make(chan net.Conn, 1)
	h.awaited[id] = answer
	return answer, nil
}

// forget ends the wait for a tunnel. It returns false if the tunnel was opened already.
func (h *Hub) forget(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, waiting := h.awaited[id]
	delete(h.awaited, id)
	return waiting
}

// accept passes one end of a new connection to the dial that awaits the tunnel id, and
// returns the other end. It returns false if no dial awaits the tunnel.
func (h *Hub) accept(id string) (net.Conn, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	answer, waiting := h.awaited[id]
	if !waiting || h.isClosed() {
		return nil, false
	}
	delete(h.awaited, id)
	near, far := net.Pipe()
	h.open[near] = struct{}{}
	answer <- far
	return near, true
}

func (h *Hub) release(near net.Conn) {
	near.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.open, near)
}

// Serve is the handler of a Tunnel stream. It returns when the tunnel ends. The result is
// nil if one end closed the tunnel, and NOT_FOUND if no dial awaits the id of the first
// frame.
func (h *Hub) Serve(stream ServerStream) error {
	first, err := h.firstFrame(stream)
	if err != nil {
		return err
	}
	near, ok := h.accept(first.GetId())
	if !ok {
		return status.Error(codes.NotFound, "no request waits for a tunnel with that id")
	}
	defer h.release(near)
	// The goroutine ends when the handler returns, which ends the stream.
	go func() {
		defer near.Close()
		if len(first.GetData()) > 0 {
			if _, err := near.Write(first.GetData()); err != nil {
				return
			}
		}
		copyFromStream(near, stream.Recv)
	}()
	return copyToStream(near, stream.Send)
}

// firstFrame receives the frame with the tunnel's id, within Options.Wait.
func (h *Hub) firstFrame(stream ServerStream) (*nusav1.TunnelFrame, error) {
	type result struct {
		frame *nusav1.TunnelFrame
		err   error
	}
	got := make(chan result, 1)
	// The goroutine ends at the latest when the handler returns.
	go func() {
		frame, err := stream.Recv()
		got <- result{frame, err}
	}()
	late := time.NewTimer(h.opts.Wait)
	defer late.Stop()
	select {
	case r := <-got:
		return r.frame, r.err
	case <-late.C:
		return nil, status.Error(codes.DeadlineExceeded, "no first frame with the tunnel's id")
	case <-h.closed:
		return nil, status.Error(codes.Unavailable, ErrClosed.Error())
	}
}

// Close closes all tunnels and refuses new ones.
func (h *Hub) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isClosed() {
		return nil
	}
	close(h.closed)
	for near := range h.open {
		near.Close()
	}
	return nil
}

func (h *Hub) isClosed() bool {
	select {
	case <-h.closed:
		return true
	default:
		return false
	}
}
