package cli

import (
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
)

// RetryPause is the pause before a broken stream or a lost submit is tried again.
const RetryPause = 300 * time.Millisecond

// Follow calls follow, one stream after the other, until a stream ends by itself
// or the user interrupts: a broken connection is followed by another. follow
// continues where the stream before ended, and calls answered at each message.
// A server that was never reached is an error.
func Follow(c *Session, follow func(answered func()) error) error {
	reached, told := false, false
	for {
		err := follow(func() { told = false })
		cause := term.Plain(status.Convert(err).Message())
		_, broken := dialCause(cause)
		reached = reached || !broken || ConnectionLost(err)
		switch {
		case errors.Is(err, io.EOF), c.Interrupted():
			return nil
		case !MayPass(err) || !reached:
			return err
		case told:
		case broken:
			c.Warn("the connection to %s was lost: going on as soon as it is back", c.Addr)
		default:
			c.Warn("%s: going on as soon as that is over", cause)
		}
		told = true
		select {
		case <-c.Ctx.Done():
			return nil
		case <-time.After(RetryPause):
		}
	}
}
