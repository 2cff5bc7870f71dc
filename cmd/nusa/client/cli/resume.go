package cli

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// RetryPause is the pause before a broken stream is opened again, or a lost submit is
	// repeated.
	RetryPause = 300 * time.Millisecond
	// probeTimeout bounds one request that checks whether a server serves again.
	probeTimeout = 5 * time.Second
	// steady is how long a stream without a message must last to count as open. A server
	// takes up to 5 s to report that a region does not respond.
	steady = 10 * time.Second
	// patience is how many times in a row a server may refuse before the next server is
	// tried.
	patience = 3
)

// Resumed is a stream that is opened again after a broken connection or an election of the
// servers. It prints a line when the stream breaks, and another one when it continues.
type Resumed struct {
	*Session
	// Missed says what may be missing after a break. "" means that nothing is missing.
	Missed string
	// Probe checks whether the stream can be opened now. The default is a call that only
	// the active server handles.
	Probe func(context.Context) error
	// Reached says that a server has responded before. While it is false, a failed
	// connection is an error.
	Reached bool
	// Tell prints a line. The default prints to standard error.
	Tell func(text string)

	lost      time.Time // when the present break began; zero if there is none
	opened    time.Time // when the stream was last opened
	announced bool      // the return was printed, and no message has come since
	refusals  int
}

// Follow calls follow repeatedly, until a stream ends by itself or the user interrupts the
// command. follow continues where the previous stream ended, and calls answered at each
// message.
func (r *Resumed) Follow(ctx context.Context, follow func(answered func()) error) error {
	for {
		r.opened = time.Now()
		err := follow(func() { r.Reached, r.announced = true, false })
		if again, err := r.again(ctx, err); !again {
			return err
		}
	}
}

// again waits after the end of a stream until the stream can be opened again. It returns
// false if the stream is not opened again, with the error to return.
func (r *Resumed) again(ctx context.Context, err error) (bool, error) {
	failure := rpcerr.TransportFailure(err)
	r.Reached = r.Reached || failure != rpcerr.NotConnected
	switch {
	case errors.Is(err, io.EOF), r.Interrupted(), ctx.Err() != nil:
		return false, nil
	case !MayPass(err) || !r.Reached:
		return false, err
	}
	if time.Since(r.opened) > steady {
		r.announced = false
	}
	if !r.announced {
		r.lost = time.Now()
		r.tell(r.breakText(err))
	}
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-time.After(RetryPause):
		}
		err := r.probe(ctx, r.Probe)
		if ctx.Err() != nil {
			return false, nil
		}
		if !unanswered(err) {
			break
		}
		if r.refusals++; r.refusals%patience == 0 && r.serverRefuses(ctx, err) {
			r.client.NextServer()
		}
	}
	if !r.announced {
		text := "reconnected after " + term.Duration(time.Since(r.lost))
		if r.Missed != "" {
			text += "; " + r.Missed
		}
		r.tell(text)
	}
	r.announced = true
	return true, nil
}

// breakText says why a stream broke.
func (r *Resumed) breakText(err error) string {
	if rpcerr.TransportFailure(err) != rpcerr.NoFailure {
		return "the connection to " + r.Addr + " was lost: it continues when the server is back"
	}
	return term.OneLine(status.Convert(err).Message()) + ": it continues when that is over"
}

func (r *Resumed) tell(text string) {
	if r.Tell != nil {
		r.Tell(text)
		return
	}
	r.Warn("%s", text)
}

// unanswered reports whether a probe's error means that the stream cannot be opened yet.
func unanswered(err error) bool { return MayPass(err) || status.Code(err) == codes.DeadlineExceeded }

// serverRefuses reports whether the server itself cannot serve. If only a region is
// unavailable, the stream stays with its server, because a change of the server would break
// all streams that share the connection.
func (r *Resumed) serverRefuses(ctx context.Context, err error) bool {
	if r.Probe != nil {
		err = r.probe(ctx, nil)
	}
	return unanswered(err) && rpcerr.TransportFailure(err) == rpcerr.NoFailure
}

// probe calls ask with a time-out. Without ask it checks only the server.
func (r *Resumed) probe(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if ask != nil {
		return ask(ctx)
	}
	// A server that is not active forwards this call.
	_, err := r.Regions().List(ctx, &nusav1.ListRegionsRequest{Labels: map[string]string{noLabel: ""}})
	return err
}

// noLabel is a label that no region has, so that the list is empty.
const noLabel = "nusa-probe"
