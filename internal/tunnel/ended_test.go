package tunnel

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestEndedSessionNamesThePeer: the error names the peer whose session has ended. Errors
// that the peer returned, and a cancellation by the caller, are not changed.
func TestEndedSessionNamesThePeer(t *testing.T) {
	dial := errors.New("tunnel to node n1: no answer in time, it may be cut off")
	dialErr := func() error { return dial }
	const ended = "the session with node n1 has ended meanwhile; `nusa node status n1` says whether it is back"
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx  context.Context
		code codes.Code
		said string
		as   codes.Code
		want string
	}{
		{t.Context(), codes.Canceled, "grpc: the client connection is closing", codes.Unavailable, ended},
		{t.Context(), codes.Unavailable, "error reading from server: EOF", codes.Unavailable, ended},
		{t.Context(), codes.Unavailable, `connection error: desc = "error reading from server: io: read/write on closed pipe"`, codes.Unavailable, ended},
		{t.Context(), codes.Unavailable, "transport is closing", codes.Unavailable, ended},
		{t.Context(), codes.Unavailable, `connection error: desc = "transport: Error while dialing: tunnel to node n1: no answer in time, it may be cut off"`,
			codes.Unavailable, "tunnel to node n1: no answer in time, it may be cut off"},
		{t.Context(), codes.Unavailable, "the engine restarts", codes.Unavailable, "the engine restarts"},
		{t.Context(), codes.NotFound, "no connection error is known", codes.NotFound, "no connection error is known"},
		{canceled, codes.Canceled, "context canceled", codes.Canceled, "context canceled"},
	} {
		got := sessionEnded(c.ctx, "node n1", dialErr, status.Error(c.code, c.said))
		if status.Code(got) != c.as || status.Convert(got).Message() != c.want {
			t.Errorf("%v %q: %v, want %v %q", c.code, c.said, got, c.as, c.want)
		}
		if again := sessionEnded(c.ctx, "region r", dialErr, got); !errors.Is(again, got) && c.ctx.Err() == nil {
			t.Errorf("through a second tunnel: %v, want %v", again, got)
		}
	}
	if err := sessionEnded(t.Context(), "node n1", dialErr, nil); err != nil {
		t.Error(err)
	}
}
