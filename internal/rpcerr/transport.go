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
	// NoFailure: the connection did not fail, or the error is not about it.
	NoFailure Failure = iota
	// NotConnected: no connection could be made, so the server has not seen the
	// call.
	NotConnected
	// Broken: the connection broke during the call, which may have taken effect.
	Broken
)

// These are texts of grpc-go, which reports connection failures in no other way. A test
// compares them with the library in use.
var (
	notConnectedTexts = []string{"Error while dialing", "preface"}
	brokenTexts       = []string{"connection error", "transport", "error reading from server"}
	unknownCallTexts  = []string{"unknown service ", "unknown method ", "malformed method name", "unexpected HTTP status"}
)

// TransportFailure distinguishes an error that gRPC made in this process from one that
// a server returned: a status with a reason of Nusa always comes from the server.
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

// UnknownCall reports whether the called server has no such method: gRPC itself
// refused the call, or the server is not a gRPC server.
func UnknownCall(err error) bool {
	e := From(err)
	if e.Code != codes.Unimplemented || e.Reason != "" {
		return false
	}
	return slices.ContainsFunc(unknownCallTexts, func(t string) bool { return strings.HasPrefix(e.Message, t) })
}

// Dialer is a dial function that remembers its latest error, which gRPC passes
// on as part of a text. Safe for concurrent use.
type Dialer struct {
	// Dial opens a connection. Required.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	mu  sync.Mutex
	err error
}

// DialContext is for grpc.WithContextDialer.
func (d *Dialer) DialContext(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := d.Dial(ctx, addr)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
	return conn, err
}

// Err returns the error of the latest dial; nil when the dial succeeded, and
// before the first one.
func (d *Dialer) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}
