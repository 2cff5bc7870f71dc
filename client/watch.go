package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// steady is how long a stream must last until the next break counts as the first one.
const steady = 10 * time.Second

// refusals is how many times in a row a server may refuse a stream before the client goes to the
// next server.
const refusals = 3

// opening is how long a stream may take to open: an estimate.
const opening = 5 * time.Second

// WatchEvents returns events as they happen. After a break it continues after the latest event, or, if
// there was none, a few seconds before the time of the call. An event with Reset_ says that events are missing. The sequence
// ends with ctx, or with an error that does not pass. Changes of req do not count after the call.
func (c *Client) WatchEvents(ctx context.Context, req *nusav1.WatchEventsRequest) iter.Seq2[*nusav1.Event, error] {
	return func(yield func(*nusav1.Event, error) bool) {
		next, began, again := proto.CloneOf(req), time.Now(), false
		since := next.GetSince().AsDuration()
		open := func(ctx context.Context) (grpc.ServerStreamingClient[nusav1.Event], error) {
			if again && next.GetToken() == "" {
				next.Since = durationpb.New(since + time.Since(began) + opening)
			}
			again = true
			return c.Events().Watch(ctx, next)
		}
		follow(ctx, c, open, yield, func(e *nusav1.Event) {
			if e.GetToken() != "" {
				next.Token, next.Since = e.GetToken(), nil
			}
		})
	}
}

// WatchJob returns a job at once and after each change. It ends without an error when the job is
// purged. After a break the present state comes first.
func (c *Client) WatchJob(ctx context.Context, job *nusav1.JobRef) iter.Seq2[*nusav1.Job, error] {
	return func(yield func(*nusav1.Job, error) bool) {
		open := func(ctx context.Context) (grpc.ServerStreamingClient[nusav1.Job], error) {
			return c.Jobs().Watch(ctx, &nusav1.GetJobRequest{Job: job})
		}
		follow(ctx, c, open, yield, nil)
	}
}

// WatchRegions returns every region, and then each region that changes. After a break every region
// comes again.
func (c *Client) WatchRegions(ctx context.Context, req *nusav1.ListRegionsRequest) iter.Seq2[*nusav1.Region, error] {
	return func(yield func(*nusav1.Region, error) bool) {
		open := func(ctx context.Context) (grpc.ServerStreamingClient[nusav1.Region], error) {
			return c.Regions().Watch(ctx, req)
		}
		follow(ctx, c, open, yield, nil)
	}
}

// WatchMatrix returns the latency matrix, and then each edge that changes noticeably. After a break
// only the changes since the latest complete update come, or a response with Reset_ and then the
// complete matrix.
func (c *Client) WatchMatrix(ctx context.Context, req *nusav1.MatrixRequest) iter.Seq2[*nusav1.MatrixResponse, error] {
	return func(yield func(*nusav1.MatrixResponse, error) bool) {
		next := proto.CloneOf(req)
		open := func(ctx context.Context) (grpc.ServerStreamingClient[nusav1.MatrixResponse], error) {
			return c.Topology().Watch(ctx, next)
		}
		follow(ctx, c, open, yield, func(m *nusav1.MatrixResponse) {
			if m.GetToken() != "" {
				next.Token = m.GetToken()
			}
		})
	}
}

// WatchOverview returns the present state and then what changes. After a break an update with
// Reset_ begins a new snapshot.
func (c *Client) WatchOverview(ctx context.Context, req *nusav1.WatchOverviewRequest) iter.Seq2[*nusav1.OverviewUpdate, error] {
	return func(yield func(*nusav1.OverviewUpdate, error) bool) {
		open := func(ctx context.Context) (grpc.ServerStreamingClient[nusav1.OverviewUpdate], error) {
			return c.Overview().Watch(ctx, req)
		}
		follow(ctx, c, open, yield, nil)
	}
}

// follow yields the messages of a stream, and opens the stream again after each break. got sees
// each message before it is yielded; it may be nil.
func follow[M any](ctx context.Context, c *Client, open func(context.Context) (grpc.ServerStreamingClient[M], error), yield func(*M, error) bool, got func(*M)) {
	for attempt := 0; ; attempt++ {
		began := time.Now()
		err := once(ctx, open, func(m *M) bool {
			attempt = 0
			if got != nil {
				got(m)
			}
			return yield(m, nil)
		})
		switch {
		case err == nil:
			return
		case ctx.Err() != nil:
			yield(nil, context.Cause(ctx))
			return
		case !passes(err):
			yield(nil, err)
			return
		}
		if time.Since(began) > steady {
			attempt = 0
		}
		if attempt > 0 && attempt%refusals == 0 && (errors.Is(err, ErrNotLeader) || errors.Is(err, ErrUnavailable)) {
			c.servers.next()
		}
		if !pause(ctx, attempt, err) {
			yield(nil, context.Cause(ctx))
			return
		}
	}
}

// once yields the messages of one stream. It returns nil if the stream has ended by itself, or if
// the caller wants no more messages.
func once[M any](ctx context.Context, open func(context.Context) (grpc.ServerStreamingClient[M], error), yield func(*M) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := open(ctx)
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case !yield(m):
			return nil
		}
	}
}
