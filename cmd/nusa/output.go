package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errNoReader: no process reads standard output any more, for example after `nusa dev |
// head -1`.
var errNoReader = errors.New("the reader of the output is gone, so everything was stopped")

// readerCheck is the interval between two checks for a reader. A federation writes so
// little that a failing write would come much later or never.
const readerCheck = 500 * time.Millisecond

// whileRead returns a context that ends, with the cause errNoReader, when no process reads
// out any more. It catches SIGPIPE, so that a write without a reader only fails. Without
// that the signal would end the process, and tasks and a temporary directory would be left.
// SIGPIPE is not ignored, because tasks would inherit the ignored signal. done releases the
// resources.
func whileRead(ctx context.Context, out *os.File) (_ context.Context, done func()) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(readerCheck)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			fds := []unix.PollFd{{Fd: int32(out.Fd())}}
			if n, err := unix.Poll(fds, 0); err == nil && n > 0 && fds[0].Revents&unix.POLLERR != 0 {
				cancel(errNoReader)
				return
			}
		}
	}()
	return ctx, func() { cancel(nil); <-ended }
}
