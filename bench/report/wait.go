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

// Pause waits for d. It returns the cause when ctx ends first.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
