package region

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
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// unanswered bounds the open submits of one stream; SubmitMany has the same bound.
	unanswered = 256
	// outstanding bounds the open submits at a fixed rate. Further submits are sent
	// late, which their latencies include.
	outstanding = 8192
	// defaultEmpty is the time for which empty calls are counted.
	defaultEmpty = 2 * time.Second
	// retryAfter is the pause after a refusal: a full queue, or no master.
	retryAfter = 5 * time.Millisecond
)

// load holds the callers that submit jobs.
type load struct {
	o       Options
	conns   []*grpc.ClientConn
	groups  map[string]*nusav1.Group
	retries atomic.Int64
}

func newLoad(o Options, addr, pool string) (*load, error) {
	l := &load{o: o, groups: groups(o.Count, pool)}
	for range o.Connections {
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

func (l *load) client(i int) nusav1.JobsClient {
	return nusav1.NewJobsClient(l.conns[i%len(l.conns)])
}

// empty returns how many empty calls a second the same callers reach.
func (l *load) empty(ctx context.Context) (float64, error) {
	var calls atomic.Int64
	start := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for i := range l.o.Concurrency {
		client := nusav1.NewSystemClient(l.conns[i%len(l.conns)])
		g.Go(func() error {
			for time.Since(start) < l.o.emptyFor {
				if _, err := client.Info(ctx, &nusav1.InfoRequest{}); err != nil {
					return fmt.Errorf("empty call: %w", cause(ctx, err))
				}
				calls.Add(1)
			}
			return nil
		})
	}
	err := g.Wait()
	return report.PerSecond(int(calls.Load()), time.Since(start)), err
}

// emptyPaced measures empty calls at the rate of the jobs, counted from the intended time
// of each call. The result shows the time that the machine needs to wake both ends.
func (l *load) emptyPaced(ctx context.Context) (report.Quantiles, error) {
	client := nusav1.NewSystemClient(l.conns[0])
	all := make([]time.Duration, max(1, min(1000, int(l.o.Rate*l.o.emptyFor.Seconds()))))
	start := time.Now()
	for i := range all {
		due := start.Add(time.Duration(float64(i) / l.o.Rate * float64(time.Second)))
		if !sleepUntil(ctx, due) {
			return report.Quantiles{}, context.Cause(ctx)
		}
		if _, err := client.Info(ctx, &nusav1.InfoRequest{}); err != nil {
			return report.Quantiles{}, fmt.Errorf("empty call: %w", cause(ctx, err))
		}
		all[i] = time.Since(due)
	}
	return report.QuantilesOf(all), nil
}

// submit sends all jobs of the table as the options say.
func (l *load) submit(ctx context.Context, b *jobTable) error {
	switch {
	case l.o.Rate > 0:
		return l.paced(ctx, b)
	case l.o.Stream:
		return l.streams(ctx, b)
	}
	return l.calls(ctx, b)
}

// calls submits by unary calls; each caller waits for one response before the next.
func (l *load) calls(ctx context.Context, b *jobTable) error {
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
func (l *load) paced(parent context.Context, b *jobTable) error {
	g, ctx := errgroup.WithContext(parent)
	g.SetLimit(outstanding)
	start := time.Now().Add(10 * time.Millisecond)
	for i := range b.jobs {
		due := start.Add(time.Duration(float64(i) / l.o.Rate * float64(time.Second)))
		if !sleepUntil(ctx, due) {
			break
		}
		b.noteSent(i, due)
		client := l.client(i)
		g.Go(func() error { return l.one(ctx, client, b, i) })
	}
	return errors.Join(g.Wait(), parent.Err())
}

// sleepUntil sleeps by the kernel's timer: a Go timer may fire a millisecond late in
// an otherwise idle process. It returns false when ctx has ended.
func sleepUntil(ctx context.Context, at time.Time) bool {
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

func (l *load) request(b *jobTable, i int) *nusav1.SubmitRequest {
	return &nusav1.SubmitRequest{Spec: &nusav1.JobSpec{
		Name: b.name(i), Namespace: namespace, Type: nusav1.JobType_JOB_TYPE_SERVICE, Groups: l.groups,
	}}
}

// one submits one job and retries while the region is full or has no master. The
// idempotency key makes a retry harmless.
func (l *load) one(ctx context.Context, client nusav1.JobsClient, b *jobTable, i int) error {
	for {
		_, err := client.Submit(ctx, l.request(b, i))
		if err == nil {
			b.noteAnswered(i)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !again(status.Code(err)) {
			return fmt.Errorf("submit %s: %w", b.name(i), err)
		}
		l.retries.Add(1)
		retry := time.NewTimer(retryAfter)
		select {
		case <-retry.C:
		case <-ctx.Done():
		}
		retry.Stop()
	}
}

func again(c codes.Code) bool { return c == codes.ResourceExhausted || c == codes.Unavailable }

// streams submits by SubmitMany; each stream sends a part of the jobs.
func (l *load) streams(ctx context.Context, b *jobTable) error {
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for c := range min(l.o.Concurrency, b.jobs) {
		client := l.client(c)
		g.Go(func() error { return l.stream(ctx, client, b, &next) })
	}
	return g.Wait()
}

func (l *load) stream(ctx context.Context, client nusav1.JobsClient, b *jobTable, next *atomic.Int64) error {
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
				return ctx.Err()
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
				b.noteAnswered(i)
			case again(code):
				l.retries.Add(1)
				if err := l.one(ctx, client, b, i); err != nil {
					return err
				}
			default:
				return fmt.Errorf("submit %s: %s: %s", b.name(i), code, m.GetError())
			}
		}
		return nil
	})
	return g.Wait()
}

// purge stops and purges all submitted jobs of the table and calls purged for each.
func (l *load) purge(parent context.Context, b *jobTable, region string, purged func()) error {
	g, ctx := errgroup.WithContext(parent)
	g.SetLimit(l.o.Concurrency)
	for _, i := range b.sentJobs() {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			err := persist(ctx, func() error {
				_, err := l.client(i).Stop(ctx, &nusav1.StopJobRequest{
					Job: &nusav1.JobRef{Namespace: namespace, Name: b.name(i), Region: region}, Purge: true,
				})
				return err
			})
			switch {
			case err == nil, status.Code(err) == codes.NotFound:
				purged()
			case ctx.Err() == nil:
				return fmt.Errorf("stop %s: %w", b.name(i), err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return context.Cause(parent)
}

// persist repeats a call while the region is full or has no master.
func persist(ctx context.Context, call func() error) error {
	for {
		err := call()
		if err == nil || ctx.Err() != nil || !again(status.Code(err)) {
			return err
		}
		retry := time.NewTimer(retryAfter)
		select {
		case <-retry.C:
		case <-ctx.Done():
		}
		retry.Stop()
	}
}
