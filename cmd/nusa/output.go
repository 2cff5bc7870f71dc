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

// errNoReader: no process reads standard output any more, as after `nusa dev | head -1`.
var errNoReader = errors.New("the reader of the output is gone, so everything was stopped")

// readerCheck is the interval between checks for a reader. A federation writes little, so a
// failing write would come much later or never.
const readerCheck = 500 * time.Millisecond

// whileRead returns a context that ends, with the cause errNoReader, when out has no reader
// any more. It catches SIGPIPE: then a write without a reader only fails. If it ended the
// process, tasks and a temporary directory would be left. SIGPIPE is not ignored, because
// tasks would inherit that. done releases the resources.
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
