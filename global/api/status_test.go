package api

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
)

// TestRetryHint: an error carries a hint when to retry if a retry may succeed.
func TestRetryHint(t *testing.T) {
	for _, err := range []error{state.ErrQueueFull, state.ErrNotActive, store.ErrNoQuorum, fmt.Errorf("write: %w", store.ErrNoQuorum)} {
		s := status.Convert(rpcError(err))
		if s.Code() != codes.Unavailable && s.Code() != codes.ResourceExhausted {
			t.Errorf("%v is %s", err, s.Code())
		}
		hinted := false
		for _, d := range s.Details() {
			if info, ok := d.(*errdetails.RetryInfo); ok && info.GetRetryDelay().AsDuration() > 0 {
				hinted = true
			}
		}
		if !hinted {
			t.Errorf("%v has no hint when to retry", err)
		}
	}
	if code := status.Code(rpcError(context.DeadlineExceeded)); code != codes.DeadlineExceeded {
		t.Errorf("a deadline is %s", code)
	}
}
