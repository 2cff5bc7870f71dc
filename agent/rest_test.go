package agent

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/internal/notify"
)

// TestMemoryIsReleasedOnceAtRest: several changes cause one release of memory, 2 to 4 s
// after the last change.
func TestMemoryIsReleasedOnceAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var changed notify.Signal
		began, done := time.Now(), make(chan error)
		var got []time.Duration
		go func() { done <- releaseAtRest(ctx, changed.C, func() { got = append(got, time.Since(began)) }) }()
		for _, at := range []time.Duration{time.Second, 1500 * time.Millisecond, 130 * time.Second} {
			time.Sleep(at - time.Since(began))
			changed.Notify()
		}
		time.Sleep(200*time.Second - time.Since(began))
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if want := []time.Duration{4 * time.Second, 132 * time.Second}; !slices.Equal(got, want) {
			t.Errorf("released after %v, want %v", got, want)
		}
	})
}
