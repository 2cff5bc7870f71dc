package client

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The kinds of errors. Compare with errors.Is.
var (
	// ErrUnreachable: no server could be reached. No server has received the call.
	ErrUnreachable = errors.New("no server can be reached")
	// ErrBroken: the connection broke during the call. The call may have taken effect.
	ErrBroken = errors.New("the connection broke during the call")
	// ErrNotLeader: no server leads at the moment, or the called server cannot reach the one
	// that leads. The call has not taken effect.
	ErrNotLeader = errors.New("no server leads")
	// ErrRegionUnreachable: the region of the call has no master, or no session to the global
	// tier.
	ErrRegionUnreachable = errors.New("the region cannot be reached")
	// ErrUnavailable: the server cannot serve the call now.
	ErrUnavailable = errors.New("the server cannot serve the call now")
	// ErrConflict: the object has changed (check_revision), or the idempotency key belongs to
	// another request.
	ErrConflict = errors.New("conflict with the stored object")
	// ErrPrecondition: the call is not possible in the present state.
	ErrPrecondition = errors.New("not possible in the present state")
	// ErrDenied: the caller may not do this.
	ErrDenied = errors.New("denied")
	// ErrUnauthenticated: the server does not know the caller.
	ErrUnauthenticated = errors.New("the caller is not known")
	// ErrFull: a queue is full or a bound is reached. Error.RetryAfter says when to try again, if
	// that helps.
	ErrFull = errors.New("full")
	// ErrNotFound: the named object does not exist.
	ErrNotFound = errors.New("not found")
	// ErrInvalid: the request is wrong. Error.Problems names the fields.
	ErrInvalid = errors.New("invalid request")
	// ErrUnsupported: the called server does not serve the call.
	ErrUnsupported = errors.New("not supported by the server")
)

// Error is the error of a call.
type Error struct {
	// Kind is one of the errors above, context.DeadlineExceeded or context.Canceled. Nil: none
	// of them.
	Kind error
	// Code is the code of the gRPC status.
	Code codes.Code
	// Message is for people.
	Message string
	// Problems name the wrong fields of the request. They also have the line if the request came
	// from a file.
	Problems []*nusav1.Problem
	// RetryAfter is how long the caller should wait before a repetition. 0: no advice.
	RetryAfter time.Duration

	cause error
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Is reports whether target is the kind of the error.
func (e *Error) Is(target error) bool { return e.Kind != nil && target == e.Kind }

// Unwrap returns the error of gRPC.
func (e *Error) Unwrap() error { return e.cause }

// GRPCStatus returns the status of the call, for package status.
func (e *Error) GRPCStatus() *status.Status { return status.Convert(e.cause) }

// kinds are the kinds of errors by code. Reasons and failures of the connection are more exact.
var kinds = map[codes.Code]error{
	codes.Unavailable:        ErrUnavailable,
	codes.Aborted:            ErrConflict,
	codes.AlreadyExists:      ErrConflict,
	codes.FailedPrecondition: ErrPrecondition,
	codes.PermissionDenied:   ErrDenied,
	codes.Unauthenticated:    ErrUnauthenticated,
	codes.ResourceExhausted:  ErrFull,
	codes.NotFound:           ErrNotFound,
	codes.InvalidArgument:    ErrInvalid,
	codes.OutOfRange:         ErrInvalid,
	codes.Unimplemented:      ErrUnsupported,
	codes.DeadlineExceeded:   context.DeadlineExceeded,
	codes.Canceled:           context.Canceled,
}

// reasons are the kinds of errors by the reason that the server gives.
var reasons = map[rpcerr.Reason]error{
	rpcerr.ReasonNoLeader:          ErrNotLeader,
	rpcerr.ReasonLeaderUnreachable: ErrNotLeader,
	rpcerr.ReasonNoMaster:          ErrRegionUnreachable,
	rpcerr.ReasonSessionEnded:      ErrRegionUnreachable,
	rpcerr.ReasonStoreFull:         ErrFull,
	rpcerr.ReasonNotFound:          ErrNotFound,
}

// typed returns the error of a call as an *Error. It returns nil for nil, and errors without a
// status, such as io.EOF, as they are.
func typed(err error) error {
	if err == nil || errors.As(err, new(*Error)) {
		return err
	}
	if _, ok := status.FromError(err); !ok {
		return err
	}
	from := rpcerr.From(err)
	e := &Error{Code: from.Code, Message: from.Message, Problems: from.Problems, RetryAfter: from.RetryAfter, cause: err}
	switch rpcerr.TransportFailure(err) {
	case rpcerr.NotConnected:
		e.Kind = ErrUnreachable
		return e
	case rpcerr.Broken:
		e.Kind = ErrBroken
		return e
	}
	e.Kind = kinds[from.Code]
	if kind, known := reasons[from.Reason]; known {
		e.Kind = kind
	}
	return e
}

// passes reports whether the reason of an error may pass without a change by the caller.
func passes(err error) bool {
	for _, kind := range []error{ErrUnreachable, ErrBroken, ErrNotLeader, ErrRegionUnreachable, ErrUnavailable} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}
