package tunnel

import (
	"context"
	"net"
)

// Listener is the lower end: a net.Listener whose connections are tunnels, for
// grpc.Server.Serve.
type Listener struct{}

// NewListener returns a listener for at most maxTunnels open tunnels (0 means
// 16).
func NewListener(maxTunnels int) *Listener { return &Listener{} }

// Accept waits for the next tunnel. Error: net.ErrClosed.
func (l *Listener) Accept() (net.Conn, error) { panic("unwritten") }

// Close ends Accept and all open tunnels.
func (l *Listener) Close() error { panic("unwritten") }

// Addr is a name, not an address.
func (l *Listener) Addr() net.Addr { panic("unwritten") }

// Answer carries out a TunnelRequest: it opens a Tunnel stream with open, sends
// id and hands the connection to lis. It blocks until the tunnel ends, so call
// it in a goroutine of the session; it ends with ctx. Nil when either end
// closed the tunnel.
func Answer(ctx context.Context, open func(context.Context) (ClientStream, error), id string, lis *Listener) error {
	panic("unwritten")
}
