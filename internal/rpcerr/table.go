package rpcerr

import (
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Rule maps one Go error to a status.
type Rule struct {
	// Target is the Go error, compared by errors.Is.
	Target error
	Code   codes.Code
	// Reason and RetryAfter are parts of the Error that is made. Both may be empty.
	Reason     Reason
	RetryAfter time.Duration
}

// Table maps Go errors to statuses. The first rule that matches an error applies.
type Table []Rule

// Err returns err as a status with the text of err. A nil err, and an err that holds a
// status, is returned unchanged. An error without a rule becomes INTERNAL.
func (t Table) Err(err error) error {
	if err == nil {
		return nil
	}
	var has interface{ GRPCStatus() *status.Status }
	if errors.As(err, &has) {
		return err
	}
	for _, r := range t {
		if errors.Is(err, r.Target) {
			return Error{Code: r.Code, Message: err.Error(), Reason: r.Reason, RetryAfter: r.RetryAfter}.Err()
		}
	}
	return status.Error(codes.Internal, err.Error())
}
