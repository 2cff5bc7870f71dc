package api

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/engine"
)

// lookupError converts an error of the engine.
func lookupError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, engine.ErrInvalid):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, engine.ErrUnknown):
		return status.Error(codes.NotFound, err.Error())
	case errors.Is(err, engine.ErrNoDriver), errors.Is(err, engine.ErrNotRunning):
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return status.FromContextError(err).Err()
}

// logError converts an error of a driver's Logs.
func logError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Errorf(codes.Internal, "logs: %v", err)
}

// execError converts an error of a driver's Exec.
func execError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		if _, ok := status.FromError(cause); ok {
			return cause
		}
		return status.FromContextError(cause).Err()
	}
	code := codes.Internal
	switch {
	case errors.Is(err, driver.ErrInvalid):
		code = codes.InvalidArgument
	case errors.Is(err, driver.ErrStart), errors.Is(err, driver.ErrNotRunning), errors.Is(err, driver.ErrNotFound), errors.Is(err, driver.ErrUnsupported):
		code = codes.FailedPrecondition
	}
	return status.Error(code, err.Error())
}
