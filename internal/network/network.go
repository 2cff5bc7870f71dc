// Package network is how every role reaches sockets: three functions in its
// configuration instead of calls to package net. The same code then runs on
// the host's sockets, behind an emulated WAN (topology/wan) and in a virtual
// time bubble (sim).
package network

import (
	"context"
	"net"
)

// Net is a set of sockets. Addresses are "host:port"; port 0 lets the network
// choose. Implementations are safe for concurrent use.
type Net struct {
	// Listen accepts streams (TCP).
	Listen func(ctx context.Context, addr string) (net.Listener, error)
	// Dial opens a stream (TCP).
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// ListenPacket sends and receives datagrams (UDP).
	ListenPacket func(ctx context.Context, addr string) (net.PacketConn, error)
}

// Host is the machine's own sockets.
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
