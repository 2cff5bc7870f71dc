package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// unanswered bounds the submits of one stream that wait for a response. The server has
	// the same bound for SubmitMany.
	unanswered = 256
	// outstanding bounds the submits that wait for a response at a fixed rate. Further
	// submits are sent late. Their latencies include this delay.
	outstanding = 8192
)

// Options say how jobs are submitted.
type Options struct {
	// Rate is the number of submits a second, at fixed times. At 0 each caller submits its
	// next job when the previous one is stored.
	Rate float64
	// Stream submits by SubmitMany instead of unary calls.
	Stream bool
	// Keys gives each job an idempotency key: its name.
	Keys bool
	// Concurrency is the number of callers, or of streams.
	Concurrency int
}

// Jobs describes the jobs to submit. Its functions are called concurrently and must return
// at once.
type Jobs struct {
	Number int
	Spec   func(i int) *nusav1.JobSpec
	// Sent is called with the time at which a job was sent, or with the time at which it
	// was due if the rate is fixed. Answered is called when a job is stored.
	Sent     func(i int, at time.Time)
	Answered func(i int)
}

// Callers submit jobs over connections that they share.
type Callers struct {
	Options
	Conns   []*grpc.ClientConn
	retries atomic.Int64
}

// New returns callers of the server at addr that share a number of connections. dial are options
// of these connections.
func New(o Options, addr string, connections int, dial ...grpc.DialOption) (*Callers, error) {
	l := &Callers{Options: o}
	for range connections {
		c, err := serve.Dial(network.Host(), addr, dial...)
		if err != nil {
			l.Close()
			return nil, err
		}
		l.Conns = append(l.Conns, c)
	}
	return l, nil
}

// With returns callers with other options that use the same connections.
func (l *Callers) With(o Options) *Callers { return &Callers{Options: o, Conns: l.Conns} }

// Close closes the connections.
func (l *Callers) Close() {
	for _, c := range l.Conns {
		_ = c.Close()
	}
}

// Client returns the client of caller number i.
func (l *Callers) Client(i int) nusav1.JobsClient {
	return nusav1.NewJobsClient(l.Conns[i%len(l.Conns)])
}

// Retries returns how often a submit was refused and sent again.
func (l *Callers) Retries() int { return int(l.retries.Load()) }

// Submit sends all jobs as the options say and waits until all are stored.
func (l *Callers) Submit(ctx context.Context, b Jobs) error {
	switch {
	case l.Rate > 0:
		return l.paced(ctx, &b)
	case l.Stream:
		return l.streams(ctx, &b)
	}
	return l.calls(ctx, &b)
}

// calls submits by unary calls; each caller waits for one response before the next.
func (l *Callers) calls(ctx context.Context, b *Jobs) error {
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for c := range min(l.Concurrency, b.Number) {
		client := l.Client(c)
		g.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= b.Number {
					return nil
				}
				b.Sent(i, time.Now())
				if err := l.one(ctx, client, b, i); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// paced submits at fixed times. It does not wait for the responses to earlier submits.
func (l *Callers) paced(parent context.Context, b *Jobs) error {
	g, ctx := errgroup.WithContext(parent)
	g.SetLimit(outstanding)
	start := time.Now().Add(10 * time.Millisecond)
	for i := range b.Number {
		due := start.Add(time.Duration(float64(i) / l.Rate * float64(time.Second)))
		if !SleepUntil(ctx, due) {
			break
		}
		b.Sent(i, due)
		client := l.Client(i)
		g.Go(func() error { return l.one(ctx, client, b, i) })
	}
	return errors.Join(g.Wait(), parent.Err())
}

// SleepUntil sleeps by the kernel's timer: a Go timer may fire a millisecond late in
// an otherwise idle process. It returns false when ctx has ended.
func SleepUntil(ctx context.Context, at time.Time) bool {
	const most = 50 * time.Millisecond // the interval at which ctx is checked
	for ctx.Err() == nil {
		left := time.Until(at)
		if left <= 0 {
			return true
		}
		ts := syscall.NsecToTimespec(int64(min(left, most)))
		_ = syscall.Nanosleep(&ts, nil) // an early wake-up only shortens this round
	}
	return false
}

func (l *Callers) request(b *Jobs, i int) *nusav1.SubmitRequest {
	r := &nusav1.SubmitRequest{Spec: b.Spec(i)}
	if l.Keys {
		r.IdempotencyKey = r.GetSpec().GetName()
	}
	return r
}

// one submits one job. It repeats the submit while the queue is full or no server is
// active. A submit of a spec that is already stored changes nothing, so a repetition is
// harmless.
func (l *Callers) one(ctx context.Context, client nusav1.JobsClient, b *Jobs, i int) error {
	for {
		_, err := client.Submit(ctx, l.request(b, i))
		if err == nil {
			b.Answered(i)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !Again(err) {
			return fmt.Errorf("submit %s: %w", b.Spec(i).GetName(), err)
		}
		l.retries.Add(1)
		if err := report.Pause(ctx, RetryAfter); err != nil {
			return err
		}
	}
}

// streams submits by SubmitMany; each stream sends a part of the jobs.
func (l *Callers) streams(ctx context.Context, b *Jobs) error {
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for c := range min(l.Concurrency, b.Number) {
		client := l.Client(c)
		g.Go(func() error { return l.stream(ctx, client, b, &next) })
	}
	return g.Wait()
}

func (l *Callers) stream(ctx context.Context, client nusav1.JobsClient, b *Jobs, next *atomic.Int64) error {
	g, ctx := errgroup.WithContext(ctx)
	stream, err := client.SubmitMany(ctx)
	if err != nil {
		return fmt.Errorf("submit by stream: %w", err)
	}
	waiting := make(chan int, unanswered-1) // the receiver awaits the response to one more
	g.Go(func() error {
		defer close(waiting)
		for i := int(next.Add(1)) - 1; i < b.Number; i = int(next.Add(1)) - 1 {
			b.Sent(i, time.Now())
			select {
			case waiting <- i:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if err := stream.Send(l.request(b, i)); err != nil && !errors.Is(err, io.EOF) {
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
			switch code := codes.Code(m.GetCode()); {
			case code == codes.OK:
				b.Answered(i)
			case again(code):
				l.retries.Add(1)
				if err := l.one(ctx, client, b, i); err != nil {
					return err
				}
			default:
				return fmt.Errorf("submit %s: %s: %s", b.Spec(i).GetName(), code, m.GetError())
			}
		}
		return nil
	})
	return g.Wait()
}
