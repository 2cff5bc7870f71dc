// Package forward lets any server of a tier answer any call: one that does not
// lead passes the call on to the one that does, unary or stream, at most one
// hop.
package forward

import (
	"google.golang.org/grpc"
)

// Leader says who answers: self, or the server at the other end of conn. An
// error, or neither, means nobody is known to lead.
type Leader func() (conn *grpc.ClientConn, self bool, err error)

// Forwarder makes the interceptors of a server.
type Forwarder struct {
	leader Leader
	exempt []string
}

// New returns a forwarder. exempt are full methods ("/nusa.v1.Dispatch/Session")
// or whole services ("/nusa.v1.System/") that every server answers itself;
// health, reflection and System always are.
func New(leader Leader, exempt ...string) *Forwarder {
	return &Forwarder{leader: leader, exempt: exempt}
}

// Unary is the interceptor for unary calls.
func (f *Forwarder) Unary() grpc.UnaryServerInterceptor { panic("unwritten") }

// Stream is the interceptor for streams.
func (f *Forwarder) Stream() grpc.StreamServerInterceptor { panic("unwritten") }
