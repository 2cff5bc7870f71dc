package network

import (
	"context"
	"net"
)

// Net opens sockets. Addresses have the form "host:port". For port 0 the network chooses a
// free port. Implementations are safe for concurrent use.
type Net struct {
	// Listen returns a listener for streams (TCP).
	Listen func(ctx context.Context, addr string) (net.Listener, error)
	// Dial opens a stream (TCP).
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// ListenPacket returns a socket for datagrams (UDP).
	ListenPacket func(ctx context.Context, addr string) (net.PacketConn, error)
}

// Host returns the network of this machine.
func Host() Net {
	var lc net.ListenConfig
	var d net.Dialer
	return Net{
		Listen: func(ctx context.Context, addr string) (net.Listener, error) {
			return lc.Listen(ctx, "tcp", addr)
		},
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", addr)
		},
		ListenPacket: func(ctx context.Context, addr string) (net.PacketConn, error) {
			return lc.ListenPacket(ctx, "udp", addr)
		},
	}
}
