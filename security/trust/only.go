package trust

import (
	"context"
	"net"

	"google.golang.org/grpc/peer"

	"github.com/nusa-scheduler/nusa/security/identity"
)

// Only returns a further listener of a gRPC server that has the credentials of Server. Only members
// that the rules allow can connect, and clients without a certificate.
func Only(s *Source, lis net.Listener, rules identity.Rules) net.Listener {
	if s == nil {
		return lis
	}
	return &only{Listener: lis, transport: s.Server(rules).(*transport)}
}

type only struct {
	net.Listener
	transport *transport
}

// Accept implements net.Listener.
func (o *only) Accept() (net.Conn, error) {
	conn, err := o.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &onlyConn{Conn: conn, transport: o.transport}, nil
}

// onlyConn is a connection for which other rules hold than those of the server.
type onlyConn struct {
	net.Conn
	transport *transport
}

// Accepts reports whether the listener of a call's connection is for a member. It is for calls of
// clients without a certificate, for example with an access token.
func Accepts(ctx context.Context, id identity.ID) bool {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return true
	}
	info, ok := p.AuthInfo.(Info)
	return !ok || info.rules == nil || info.rules.Check(id) == nil
}
