package cli

import (
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
)

// RetryPause is the pause before a broken stream or a lost submit is tried again.
const RetryPause = 300 * time.Millisecond

// Follow calls follow repeatedly, until a stream ends by itself or the user interrupts. After
// a broken connection it calls follow again. follow continues where the previous stream ended,
// and calls answered at each message. It is an error if no server was ever reached.
func Follow(c *Session, follow func(answered func()) error) error {
	reached, warned := false, false
	for {
		err := follow(func() { warned = false })
		failure := rpcerr.TransportFailure(err)
		reached = reached || failure != rpcerr.NotConnected
		switch {
		case errors.Is(err, io.EOF), c.Interrupted():
			return nil
		case !MayPass(err) || !reached:
			return err
		case warned:
		case failure != rpcerr.NoFailure:
			c.Warn("the connection to %s was lost: it continues when the server is back", c.Addr)
		default:
			c.Warn("%s: it continues when that is over", term.OneLine(status.Convert(err).Message()))
		}
		warned = true
		select {
		case <-c.Ctx.Done():
			return nil
		case <-time.After(RetryPause):
		}
	}
}
