package regional

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// codesOf says how the errors of the region travel.
var codesOf = []struct {
	err  error
	code codes.Code
}{
	{raftlog.ErrQueueFull, codes.ResourceExhausted},
	{raftlog.ErrNotLeader, codes.Unavailable},
	{raftlog.ErrUnknownOutcome, codes.Unavailable},
	{state.ErrInvalid, codes.InvalidArgument},
	{state.ErrNotFound, codes.NotFound},
	{state.ErrUnknownNode, codes.NotFound},
	{state.ErrStaleRevision, codes.Aborted},
	{state.ErrStillWanted, codes.FailedPrecondition},
	{state.ErrOtherType, codes.FailedPrecondition},
	{state.ErrKeyReused, codes.AlreadyExists},
	{state.ErrFull, codes.ResourceExhausted},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{context.Canceled, codes.Canceled},
}

// wireError is err as a gRPC status; nil and statuses stay what they are.
func wireError(err error) error {
	if err == nil {
		return nil
	}
	var has interface{ GRPCStatus() *status.Status }
	if errors.As(err, &has) {
		return err
	}
	for _, c := range codesOf {
		if errors.Is(err, c.err) {
			return status.Error(c.code, err.Error())
		}
	}
	return status.Error(codes.Internal, err.Error())
}

// errNoMaster answers calls while nobody leads, or nobody known.
var errNoMaster = status.Error(codes.Unavailable, "the region has no master now (no quorum, or an election is under way): retry")
