package raftlog

import (
	"context"

	"google.golang.org/grpc/codes"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// statuses maps the errors of the log and of the state to gRPC statuses.
var statuses = rpcerr.Table{
	{Target: ErrQueueFull, Code: codes.ResourceExhausted},
	{Target: ErrNotLeader, Code: codes.Unavailable},
	{Target: ErrUnknownOutcome, Code: codes.Unavailable},
	{Target: state.ErrInvalid, Code: codes.InvalidArgument},
	{Target: state.ErrNotFound, Code: codes.NotFound},
	{Target: state.ErrUnknownNode, Code: codes.NotFound},
	{Target: state.ErrStaleRevision, Code: codes.Aborted},
	{Target: state.ErrStillWanted, Code: codes.FailedPrecondition},
	{Target: state.ErrOtherType, Code: codes.FailedPrecondition},
	{Target: state.ErrBeyondSlots, Code: codes.FailedPrecondition},
	{Target: state.ErrNotService, Code: codes.FailedPrecondition},
	{Target: state.ErrTagTaken, Code: codes.AlreadyExists},
	{Target: state.ErrKeyReused, Code: codes.AlreadyExists},
	{Target: state.ErrFull, Code: codes.ResourceExhausted},
	{Target: context.DeadlineExceeded, Code: codes.DeadlineExceeded},
	{Target: context.Canceled, Code: codes.Canceled},
}

// StatusError returns err as a gRPC status. It returns nil, and an error that already holds
// a status, unchanged.
func StatusError(err error) error { return statuses.Err(err) }

// ErrNoMaster is the status of a call while the region has no master, or this server knows
// of none.
var ErrNoMaster = rpcerr.Error{
	Code:    codes.Unavailable,
	Message: "the region has no master now (no quorum, or an election is under way)",
	Reason:  rpcerr.ReasonNoMaster,
}.Err()
