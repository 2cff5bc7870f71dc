package rpcerr

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Error is a gRPC status with the details that Nusa uses.
type Error struct {
	Code codes.Code
	// Message is for people.
	Message string
	// Reason is for programs; empty = none.
	Reason Reason
	// Metadata belongs to Reason and is sent only with a reason.
	Metadata map[string]string
	// RetryAfter is how long the caller should wait before a retry; 0 = no advice.
	RetryAfter time.Duration
	// Problems names the wrong fields of a request. Only the first 32 are sent.
	Problems []*nusav1.Problem
}

// Err returns the status as an error; nil if Code is OK.
func (e Error) Err() error {
	var details []protoadapt.MessageV1
	if e.Reason != "" {
		details = append(details, &errdetails.ErrorInfo{Domain: Domain, Reason: string(e.Reason), Metadata: e.Metadata})
	}
	if e.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
	}
	for _, p := range e.Problems[:min(len(e.Problems), maxProblems)] {
		details = append(details, protoadapt.MessageV1Of(p))
	}
	s := status.New(e.Code, e.Message)
	if len(details) == 0 {
		return s.Err()
	}
	// WithDetails fails only for OK and for a message that cannot be encoded.
	if with, err := s.WithDetails(details...); err == nil {
		s = with
	}
	return s.Err()
}

// From reads the status of err, which may be wrapped. An err without a status has the code
// UNKNOWN. A nil err has the code OK. Reasons of other domains than Domain are ignored.
func From(err error) Error {
	s := status.Convert(err)
	e := Error{Code: s.Code(), Message: s.Message()}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == Domain && e.Reason == "" {
				e.Reason, e.Metadata = Reason(d.GetReason()), d.GetMetadata()
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = max(d.GetRetryDelay().AsDuration(), 0)
		case *nusav1.Problem:
			e.Problems = append(e.Problems, d)
		}
	}
	return e
}

// Is reports whether the status of err has the reason.
func Is(err error, reason Reason) bool { return err != nil && From(err).Reason == reason }

// NotFound returns a status NOT_FOUND that names the missing object. kind is one of the
// constants Kind…. name is the name that the caller gave.
func NotFound(kind, name, message string) error {
	return Error{
		Code: codes.NotFound, Message: message, Reason: ReasonNotFound,
		Metadata: map[string]string{KeyKind: kind, KeyName: name},
	}.Err()
}

// Missing returns the kind and the name of the missing object, if err was made by
// NotFound. It returns false for other errors.
func Missing(err error) (kind, name string, ok bool) {
	e := From(err)
	return e.Metadata[KeyKind], e.Metadata[KeyName], e.Reason == ReasonNotFound
}
