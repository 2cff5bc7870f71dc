package report

import (
	"context"
	"time"
)

const (
	// StopWithin is how long a process may take to stop before it is killed.
	StopWithin = 5 * time.Second
	// PollEvery is the interval between two looks at a state without a
	// notification.
	PollEvery = 10 * time.Millisecond
)

// Within ends ctx with a cause after d. It sets no deadline, because gRPC would send a
// deadline to the server, and its error could arrive before the cause.
func Within(ctx context.Context, d time.Duration, late error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(d, func() { cancel(late) })
	return ctx, func() {
		timer.Stop()
		cancel(nil)
	}
}

// Cause returns the cause of ctx's end, or err while ctx has not ended.
func Cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Pause waits for d. It returns the cause when ctx ends first.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
