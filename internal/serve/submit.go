package serve

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxInFlight bounds the submits of one stream that have no response yet. api.proto
// documents this bound.
const maxInFlight = 256

// FinishSubmit waits for the response to a submit that has begun. Its error is a gRPC
// status.
type FinishSubmit func(context.Context) (*nusav1.SubmitResponse, error)

// SubmitMany serves a stream of submits. The submits begin in order, and get their
// responses in order. They are in flight at the same time, so that they share writes. When
// ended is closed, SubmitMany returns endErr, even while it waits for the caller.
func SubmitMany[Req any](
	stream grpc.BidiStreamingServer[Req, nusav1.SubmitManyResponse],
	ended <-chan struct{}, endErr error, begin func(context.Context, *Req) FinishSubmit,
) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	waiting := make(chan FinishSubmit, maxInFlight)
	received := make(chan error, 1)
	// The goroutine ends with the stream, at the latest when this handler returns.
	go func() {
		defer close(waiting)
		for {
			req, err := stream.Recv()
			if err != nil {
				received <- err
				return
			}
			select {
			case waiting <- begin(ctx, req):
			case <-ctx.Done():
				received <- ctx.Err()
				return
			}
		}
	}()
	for {
		select {
		case <-ended:
			return endErr
		case finish, more := <-waiting:
			if more {
				if err := stream.Send(submitResponse(finish(ctx))); err != nil {
					return err
				}
				continue
			}
			if err := <-received; !errors.Is(err, io.EOF) {
				return err
			}
			return nil
		}
	}
}

func submitResponse(resp *nusav1.SubmitResponse, err error) *nusav1.SubmitManyResponse {
	s := status.Convert(err)
	out := &nusav1.SubmitManyResponse{Response: resp, Code: int32(s.Code())}
	if err != nil {
		out.Error, out.Problems = s.Message(), rpcerr.Problems(err)
	}
	return out
}
