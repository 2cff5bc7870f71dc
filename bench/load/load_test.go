package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// store is a server that refuses the first submit of each job and stores the job at the
// second. It never stores the job "bad".
type store struct {
	nusav1.UnimplementedJobsServer
	mu    sync.Mutex
	tries map[string]int
	// keys counts the requests with an idempotency key.
	keys atomic.Int32
}

func (s *store) count(r *nusav1.SubmitRequest) string {
	if r.GetIdempotencyKey() == r.GetSpec().GetName() {
		s.keys.Add(1)
	}
	return r.GetSpec().GetName()
}

func (s *store) try(name string) error {
	if name == "bad" {
		return status.Error(codes.InvalidArgument, "no such driver")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries[name]++
	if s.tries[name] == 1 {
		return status.Error(codes.ResourceExhausted, "the queue is full")
	}
	return nil
}

func (s *store) Submit(_ context.Context, r *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
	return &nusav1.SubmitResponse{}, s.try(s.count(r))
}

func (s *store) SubmitMany(stream grpc.BidiStreamingServer[nusav1.SubmitRequest, nusav1.SubmitManyResponse]) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		st := status.Convert(s.try(s.count(r)))
		if err := stream.Send(&nusav1.SubmitManyResponse{Code: int32(st.Code()), Error: st.Message()}); err != nil {
			return err
		}
	}
}

// start serves a store and connects callers.
func start(t *testing.T, o Options) (*store, *Callers) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, srv := &store{tries: map[string]int{}}, grpc.NewServer()
	nusav1.RegisterJobsServer(srv, s)
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(lis) }()
	l, err := New(o, lis.Addr().String(), 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		srv.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s, l
}

func specs(name func(i int) string) func(int) *nusav1.JobSpec {
	return func(i int) *nusav1.JobSpec { return &nusav1.JobSpec{Name: name(i)} }
}

var ways = map[string]Options{
	"calls": {Concurrency: 3}, "streams": {Concurrency: 3, Stream: true}, "keys": {Concurrency: 3, Stream: true, Keys: true}, "paced": {Concurrency: 3, Rate: 5000},
}

// TestSubmit: each job is reported once as sent and once as stored. A refused job is sent
// again.
func TestSubmit(t *testing.T) {
	const jobs = 700 // more jobs than a stream may have open submits
	for way, o := range ways {
		t.Run(way, func(t *testing.T) {
			s, l := start(t, o)
			var mu sync.Mutex
			sent, answered := make([]time.Time, jobs), make([]int, jobs)
			began := time.Now()
			err := l.Submit(t.Context(), Jobs{
				Number: jobs, Spec: specs(func(i int) string { return fmt.Sprint("job-", i) }),
				Sent: func(i int, at time.Time) {
					mu.Lock()
					defer mu.Unlock()
					if !sent[i].IsZero() {
						t.Errorf("job %d was sent twice", i)
					}
					sent[i] = at
				},
				Answered: func(i int) {
					mu.Lock()
					defer mu.Unlock()
					answered[i]++
				},
			})
			if err != nil || l.Retries() != jobs {
				t.Errorf("%d retries, %v", l.Retries(), err)
			}
			if n := int(s.keys.Load()); o.Keys && n != 2*jobs || !o.Keys && n > 0 {
				t.Errorf("%d requests had a key", n)
			}
			for i := range jobs {
				if name := fmt.Sprint("job-", i); s.tries[name] != 2 || answered[i] != 1 || sent[i].Before(began) {
					t.Fatalf("%s: sent at %s, %d tries, answered %d times", name, sent[i], s.tries[name], answered[i])
				}
			}
			// At a fixed rate the reported times are those at which jobs were due.
			if d := sent[jobs-1].Sub(sent[0]); o.Rate > 0 && d.Round(time.Microsecond) != (jobs-1)*time.Second/5000 {
				t.Errorf("the last job was due %s after the first", d)
			}
		})
	}
}

// TestSubmitFails: an error that a retry cannot fix ends the submits and names the job.
func TestSubmitFails(t *testing.T) {
	for way, o := range ways {
		t.Run(way, func(t *testing.T) {
			_, l := start(t, o)
			name := func(i int) string {
				if i == 5 {
					return "bad"
				}
				return fmt.Sprint("job-", i)
			}
			err := l.Submit(t.Context(), Jobs{Number: 1000, Spec: specs(name), Sent: func(int, time.Time) {}, Answered: func(int) {}})
			if err == nil || !strings.Contains(err.Error(), "submit bad: ") || !strings.Contains(err.Error(), "no such driver") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestRemove: a removal is repeated while the server is busy. A missing object counts as
// removed.
func TestRemove(t *testing.T) {
	for _, c := range []struct {
		answers []codes.Code
		want    codes.Code
	}{
		{[]codes.Code{codes.OK}, codes.OK},
		{[]codes.Code{codes.Unavailable, codes.ResourceExhausted, codes.NotFound}, codes.OK},
		{[]codes.Code{codes.FailedPrecondition, codes.OK}, codes.OK},
		{[]codes.Code{codes.Unavailable, codes.InvalidArgument}, codes.InvalidArgument},
	} {
		calls := 0
		err := Remove(t.Context(), time.Microsecond, func() error {
			calls++
			return status.Error(c.answers[calls-1], "no")
		}, codes.FailedPrecondition)
		if status.Code(err) != c.want || calls != len(c.answers) {
			t.Errorf("%v: %d calls, %v", c.answers, calls, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	late := errors.New("not in time")
	err := Remove(ctx, time.Hour, func() error { cancel(late); return status.Error(codes.Unavailable, "no") })
	if !errors.Is(err, late) {
		t.Errorf("error %v", err)
	}
}
