package report

import (
	"context"
	"time"
)

const (
	// StopWithin is how long a process may take to stop before it is killed.
	StopWithin = 5 * time.Second
	// PollEvery is the interval at which a state is polled that sends no notification.
	PollEvery = 10 * time.Millisecond
)

// Within returns a context that ends after d, with the error late as its cause. The
// context has no deadline, because gRPC would send a deadline to the server, whose error
// could arrive before the context ends.
func Within(ctx context.Context, d time.Duration, late error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(d, func() { cancel(late) })
	return ctx, func() {
		timer.Stop()
		cancel(nil)
	}
}

// Cause returns the cause of the end of ctx. While ctx has not ended it returns err.
func Cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Pause waits for d. If ctx ends first, Pause returns the cause.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
