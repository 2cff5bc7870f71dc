package uplink

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestCauseText: the text about the end of a session has no words of Go or gRPC.
func TestCauseText(t *testing.T) {
	for _, c := range []struct {
		cause error
		want  string
	}{
		{nil, "the connection ended"},
		{context.Canceled, "the connection ended"},
		{fmt.Errorf("receive: %w", context.Canceled), "the connection ended"},
		{status.Error(codes.Canceled, "context canceled"), "the connection ended"},
		{status.Error(codes.InvalidArgument, "no region"), "no region"},
		{errGoodbye, errGoodbye.Error()},
	} {
		if got := causeText(c.cause); got != c.want {
			t.Errorf("%v: %q, want %q", c.cause, got, c.want)
		}
	}
}
