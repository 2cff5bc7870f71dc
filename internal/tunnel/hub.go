// Package tunnel lets an upper tier call a lower one that only ever dials
// upward. The upper tier asks on the session stream for a tunnel; the lower one
// opens a Tunnel stream upward and serves its gRPC services over it; the upper
// one has an ordinary *grpc.ClientConn. Tunnels are opened on demand, close
// when idle, and one may run through another.
package tunnel

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds of a Hub and a Listener.
const (
	// DefaultMaxTunnels is how many tunnels are open at once.
	DefaultMaxTunnels = 1024
	// DefaultWait is how long a peer may take to answer a request.
	DefaultWait = 10 * time.Second
	// DefaultIdle is how long a tunnel without calls stays open.
	DefaultIdle = time.Minute
	// frameBytes is the most data of one frame.
	frameBytes = 32 << 10
)

// Errors of this package.
var (
	// ErrTooMany: the bound on open or awaited tunnels is reached.
	ErrTooMany = errors.New("too many tunnels")
	// ErrNoAnswer: the peer did not open the tunnel in time.
	ErrNoAnswer = errors.New("peer did not open the tunnel in time")
	// ErrClosed: the hub or listener is closed.
	ErrClosed = errors.New("tunnels are closed")
)

// ServerStream is the upper end of a Tunnel RPC, of Federation or Dispatch.
type ServerStream = grpc.BidiStreamingServer[nusav1.TunnelFrame, nusav1.TunnelFrame]

// ClientStream is the lower end of a Tunnel RPC.
type ClientStream = grpc.BidiStreamingClient[nusav1.TunnelFrame, nusav1.TunnelFrame]

// Options of a Hub; zero values mean the defaults above.
type Options struct {
	MaxTunnels int
	Wait       time.Duration
	Idle       time.Duration
}

// Hub is the upper end of all tunnels of a server. Safe for concurrent use.
type Hub struct {
	opts Options
}

// NewHub returns a hub without tunnels.
func NewHub(opts Options) *Hub { return &Hub{opts: opts} }

// Conn returns a client connection to peer, a name for error texts. It opens a
// tunnel when it is first used and again after it was idle or lost: request
// must then send TunnelRequest{id} on the peer's session. Make one for each
// session and close it with the session, which ends its tunnels.
func (h *Hub) Conn(peer string, request func(ctx context.Context, id string) error) (*grpc.ClientConn, error) {
	panic("unwritten")
}

// Serve is the body of the Tunnel handler. It returns when the tunnel ends: nil
// when one end closed it, NOT_FOUND when nobody awaits the id of the first
// frame.
func (h *Hub) Serve(stream ServerStream) error { panic("unwritten") }

// Close ends all tunnels and refuses new ones.
func (h *Hub) Close() error { panic("unwritten") }
