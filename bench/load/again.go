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

// RetryAfter is the pause before a call is repeated that was refused because a queue was
// full or no server was active.
const RetryAfter = 5 * time.Millisecond

// Again reports whether a call that failed with err may succeed if it is repeated later.
func Again(err error) bool { return again(status.Code(err)) }

func again(c codes.Code) bool { return c == codes.ResourceExhausted || c == codes.Unavailable }

// Remove calls a function that removes an object. It repeats the call, after a pause,
// while the server is busy or the call fails with one of the codes. NotFound counts as
// success: the object is removed already.
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
