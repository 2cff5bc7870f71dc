package retry

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// New returns the back-off of a series of attempts. Its pauses are jittered and grow from
// 50 ms to 5 s.
func New() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 50*time.Millisecond, 5*time.Second
	b.Reset()
	return b
}

// Sleep waits for d. It returns false if ctx ended earlier.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
