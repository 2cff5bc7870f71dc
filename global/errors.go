package global

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/origins"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// retryAfter is the hint that goes with UNAVAILABLE and RESOURCE_EXHAUSTED.
const retryAfter = time.Second

// apiError maps an error to the status that api.proto promises.
func apiError(err error) error {
	if err == nil {
		return nil
	}
	var refused *refusal
	if errors.As(err, &refused) {
		return err
	}
	if s, ok := status.FromError(err); ok && s.Code() != codes.Unknown {
		return err
	}
	var problems job.Errors
	switch {
	case errors.As(err, &problems):
		return rpcerr.Invalid(problems.Proto()...)
	case errors.Is(err, ErrQueueFull):
		return retryable(codes.ResourceExhausted, err)
	case errors.Is(err, ErrTooManyRegions), errors.Is(err, origins.ErrTooMany):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, store.ErrTooLarge):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, store.ErrNoQuorum), errors.Is(err, store.ErrCompareFailed),
		errors.Is(err, store.ErrClosed), errors.Is(err, ErrNotActive):
		return retryable(codes.Unavailable, err)
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}

func retryable(code codes.Code, err error) error {
	return rpcerr.Error{Code: code, Message: err.Error(), RetryAfter: retryAfter}.Err()
}

// invalid is INVALID_ARGUMENT for one field.
func invalid(field, message string) error {
	return rpcerr.Invalid(&nusav1.Problem{Field: field, Message: message})
}
