package recorder

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/security/audit"
)

// TestQueue: denials are written together, at most some of them each second. What does not fit is
// counted, and a failed write does not end the queue.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue()
		var sizes []int
		var last string
		failures := 0
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- q.Run(ctx, func(_ context.Context, some []audit.Entry) error {
				sizes, last = append(sizes, len(some)), some[len(some)-1].Reason
				if len(sizes) == 1 {
					return errors.New("not now")
				}
				return nil
			}, func(error) { failures++ })
		}()
		q.Add(audit.Entry{})
		synctest.Wait()
		for range maxQueued {
			q.Add(audit.Entry{})
		}
		synctest.Wait()
		for range 10 {
			q.Add(audit.Entry{})
		}
		time.Sleep(pause)
		synctest.Wait()
		if fmt.Sprint(sizes) != "[1 65]" || last != "9 more denials were too many to record" || failures != 1 {
			t.Errorf("%v entries were written, the last %q, %d failures", sizes, last, failures)
		}
		time.Sleep(10 * pause)
		synctest.Wait()
		if fmt.Sprint(sizes) != "[1 65 64 64 64 1]" {
			t.Errorf("%v entries were written", sizes)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
