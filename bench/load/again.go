package load

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/bench/report"
)

// RetryAfter is the pause after a refusal: a full queue, or no active server.
const RetryAfter = 5 * time.Millisecond

// Again reports whether a call may succeed later.
func Again(err error) bool { return again(status.Code(err)) }

func again(c codes.Code) bool { return c == codes.ResourceExhausted || c == codes.Unavailable }

// Remove repeats a call that removes something, after a pause, while the server is busy or
// the call fails with one of the codes. What is not found is removed already.
func Remove(ctx context.Context, every time.Duration, call func() error, more ...codes.Code) error {
	for {
		err := call()
		switch code := status.Code(err); {
		case err == nil, code == codes.NotFound:
			return nil
		case ctx.Err() != nil:
			return errors.Join(context.Cause(ctx), err)
		case !again(code) && !slices.Contains(more, code):
			return err
		}
		if report.Pause(ctx, every) != nil {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}
