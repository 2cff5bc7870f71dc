package rpcerr

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
)

// Failure says how a connection failed a call before the server returned a status.
type Failure int

const (
	// NoFailure: the error is not about a failure of the connection.
	NoFailure Failure = iota
	// NotConnected: no connection could be made, so the server has not seen the
	// call.
	NotConnected
	// Broken: the connection broke during the call. The call may have taken effect.
	Broken
)

// Parts of grpc-go's error texts. grpc-go reports connection failures in no other way. A
// test compares these texts with those of the library.
var (
	notConnectedTexts = []string{"Error while dialing", "preface"}
	prefaceText       = "error reading server preface"
	handshakeText     = "authentication handshake failed"
	brokenTexts       = []string{"connection error", "transport", "error reading from server"}
	unknownCallTexts  = []string{"unknown service ", "unknown method ", "malformed method name", "unexpected HTTP status"}
)

// TransportFailure says whether gRPC made the error in this process because the connection
// failed. A status with a reason of Nusa was always returned by the server.
func TransportFailure(err error) Failure {
	e := From(err)
	if e.Code != codes.Unavailable || e.Reason != "" {
		return NoFailure
	}
	contains := func(texts []string) bool {
		for _, t := range texts {
			if strings.Contains(e.Message, t) {
				return true
			}
		}
		return false
	}
	switch {
	case contains(notConnectedTexts):
		return NotConnected
	case contains(brokenTexts):
		return Broken
	}
	return NoFailure
}

// NoPreface reports whether a program accepted the connection but did not begin to speak gRPC. A
// server that has an identity does so to a client that has none.
func NoPreface(err error) bool {
	return TransportFailure(err) == NotConnected && strings.Contains(From(err).Message, prefaceText)
}

// HandshakeFailed reports whether the connection could not be encrypted: one of the two ends refused
// the other one's certificate, or only one of them encrypts.
func HandshakeFailed(err error) bool {
	return TransportFailure(err) != NoFailure && strings.Contains(From(err).Message, handshakeText)
}

// UnknownCall reports whether the called server does not have the method: gRPC itself
// refused the call, or the server is not a gRPC server.
func UnknownCall(err error) bool {
	e := From(err)
	if e.Code != codes.Unimplemented || e.Reason != "" {
		return false
	}
	return slices.ContainsFunc(unknownCallTexts, func(t string) bool { return strings.HasPrefix(e.Message, t) })
}

// Dialer wraps a dial function and remembers its latest error, which gRPC returns only as
// part of a text. A Dialer is safe for concurrent use.
type Dialer struct {
	// Dial opens a connection. Required.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	mu  sync.Mutex
	err error
}

// DialContext calls Dial and remembers its error. It is for grpc.WithContextDialer.
func (d *Dialer) DialContext(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := d.Dial(ctx, addr)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
	return conn, err
}

// Err returns the error of the latest dial. It is nil if that dial succeeded, and before
// the first dial.
func (d *Dialer) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}
