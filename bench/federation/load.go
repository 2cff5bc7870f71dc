package federation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// connections are shared by the callers.
	connections = 4
	// unanswered bounds the open submits of one stream; SubmitMany has the same bound.
	unanswered = 256
	// outstanding bounds the open submits at a fixed rate. Further submits are sent
	// late, which their latencies include.
	outstanding = 8192
	// retryAfter is the pause after a refusal: a full queue, or no active server.
	retryAfter = 5 * time.Millisecond
)

// load holds the callers that submit jobs.
type load struct {
	o       Options
	conns   []*grpc.ClientConn
	retries atomic.Int64
	// answered is called for each job that was answered. It must return at once.
	answered func(i int)
}

func newLoad(o Options, addr string) (*load, error) {
	l := &load{o: o, answered: func(int) {}}
	for range min(connections, o.Concurrency) {
		c, err := serve.Dial(network.Host(), addr)
		if err != nil {
			l.close()
			return nil, err
		}
		l.conns = append(l.conns, c)
	}
	return l, nil
}

func (l *load) close() {
	for _, c := range l.conns {
		_ = c.Close()
	}
}

func (l *load) client(i int) nusav1.JobsClient { return nusav1.NewJobsClient(l.conns[i%len(l.conns)]) }

// submit sends all jobs of the table as the options say.
func (l *load) submit(ctx context.Context, b *table) error {
	switch {
	case l.o.Rate > 0:
		return l.paced(ctx, b)
	case l.o.Stream:
		return l.streams(ctx, b)
	}
	return l.calls(ctx, b)
}

// calls submits by unary calls; each caller waits for one response before the next.
func (l *load) calls(ctx context.Context, b *table) error {
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for c := range min(l.o.Concurrency, b.jobs) {
		client := l.client(c)
		g.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= b.jobs {
					return nil
				}
				b.noteSent(i, time.Now())
				if err := l.one(ctx, client, b, i); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// paced submits at fixed times, whether or not earlier submits have a response.
func (l *load) paced(parent context.Context, b *table) error {
	g, ctx := errgroup.WithContext(parent)
	g.SetLimit(outstanding)
	start := time.Now().Add(10 * time.Millisecond)
	wait := time.NewTimer(0)
	defer wait.Stop()
	for i := range b.jobs {
		due := start.Add(time.Duration(float64(i) / l.o.Rate * float64(time.Second)))
		wait.Reset(time.Until(due))
		select {
		case <-wait.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		b.noteSent(i, due)
		g.Go(func() error { return l.one(ctx, l.client(i), b, i) })
	}
	return errors.Join(g.Wait(), parent.Err())
}

// one submits one job and retries while the queue is full or no server is active. A submit
// of the stored spec changes nothing, so a retry is harmless.
func (l *load) one(ctx context.Context, client nusav1.JobsClient, b *table, i int) error {
	for {
		_, err := client.Submit(ctx, &nusav1.SubmitRequest{Spec: b.spec(i)})
		if err == nil {
			b.noteAnswered(i)
			l.answered(i)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !again(err) {
			return fmt.Errorf("submit %s: %w", b.name(i), err)
		}
		l.retries.Add(1)
		if err := pause(ctx, retryAfter); err != nil {
			return err
		}
	}
}

// pause waits with a timer that ends with the wait.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// again reports whether a call may succeed later.
func again(err error) bool {
	c := status.Code(err)
	return c == codes.ResourceExhausted || c == codes.Unavailable
}

// streams submits by SubmitMany; each stream sends a part of the jobs.
func (l *load) streams(ctx context.Context, b *table) error {
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for c := range min(l.o.Concurrency, b.jobs) {
		client := l.client(c)
		g.Go(func() error { return l.stream(ctx, client, b, &next) })
	}
	return g.Wait()
}

func (l *load) stream(ctx context.Context, client nusav1.JobsClient, b *table, next *atomic.Int64) error {
	g, ctx := errgroup.WithContext(ctx)
	stream, err := client.SubmitMany(ctx)
	if err != nil {
		return fmt.Errorf("submit by stream: %w", err)
	}
	waiting := make(chan int, unanswered-1) // plus the one that the receiver handles
	g.Go(func() error {
		defer close(waiting)
		for i := int(next.Add(1)) - 1; i < b.jobs; i = int(next.Add(1)) - 1 {
			b.noteSent(i, time.Now())
			select {
			case waiting <- i:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if err := stream.Send(&nusav1.SubmitRequest{Spec: b.spec(i)}); err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("submit by stream: %w", err)
			} // Recv returns the reason why the stream ended
		}
		return stream.CloseSend()
	})
	g.Go(func() error {
		for i := range waiting {
			m, err := stream.Recv()
			if err != nil {
				return fmt.Errorf("submit by stream: %w", err)
			}
			switch failed := status.Error(codes.Code(m.GetCode()), m.GetError()); {
			case failed == nil:
				b.noteAnswered(i)
				l.answered(i)
			case again(failed):
				l.retries.Add(1)
				if err := l.one(ctx, client, b, i); err != nil {
					return err
				}
			default:
				return fmt.Errorf("submit %s: %w", b.name(i), failed)
			}
		}
		return nil
	})
	return g.Wait()
}
