//go:build integration

package local_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/bench/emulate"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// inFlight is how many submits of a stream wait for their answers.
	inFlight = 200
	// burstRegions take the jobs.
	burstRegions = 6
)

// burst submits jobs, each until it is acknowledged.
type burst struct {
	t *testing.T
	// conns are the connections to the servers, which are used in turn.
	conns [2]*grpc.ClientConn
	// streams and callers submit the jobs, by streams and by single calls.
	streams, callers int
	half             chan struct{} // closed when half of the jobs are acknowledged

	mu sync.Mutex
	// acks are the first acknowledgements, by job; acked is their number.
	acks  []*nusav1.SubmitResponse
	acked int
	// again counts the submits that were sent again.
	again int
	// regions are those that accepted an instance, by job and index.
	regions map[string]map[string]bool
}

func newBurst(t *testing.T, conns [2]*grpc.ClientConn, jobs, streams, callers int) *burst {
	return &burst{
		t: t, conns: conns, streams: streams, callers: callers, half: make(chan struct{}),
		acks: make([]*nusav1.SubmitResponse, jobs), regions: map[string]map[string]bool{},
	}
}

func burstName(i int) string { return fmt.Sprintf("burst-%06d", i) }

// request returns a submit with an idempotency key. Each sixth job has three instances, in three
// regions.
func (b *burst) request(i int) *nusav1.SubmitRequest {
	spec := &nusav1.JobSpec{Name: burstName(i), Namespace: "default", Type: nusav1.JobType_JOB_TYPE_SERVICE, Groups: map[string]*nusav1.Group{"web": {
		Count: proto.Int32(1), Tasks: map[string]*nusav1.Task{"task": {
			Driver: "process", Resources: &nusav1.Resources{CpuMilli: 10, MemoryBytes: 1 << 20},
			Config: &structpb.Struct{Fields: map[string]*structpb.Value{"command": structpb.NewStringValue("/bin/true")}},
		}},
	}}}
	if i%6 == 0 {
		spec.Groups["web"].Count = proto.Int32(3)
		spec.Regions = &nusav1.RegionsSpec{Spread: &nusav1.RegionSpread{Min: 3, Max: 3}, Divide: nusav1.Divide_DIVIDE_EVEN}
	}
	return &nusav1.SubmitRequest{Spec: spec, IdempotencyKey: "key-" + burstName(i)}
}

// acknowledged notes the answer to a submit. A later answer to the same key must be the same.
func (b *burst) acknowledged(i int, resp *nusav1.SubmitResponse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if first := b.acks[i]; first != nil {
		if !proto.Equal(first, resp) {
			b.t.Errorf("%s was acknowledged with %v and then with %v", burstName(i), first, resp)
		}
		return
	}
	b.acks[i] = resp
	b.acked++
	if b.acked == len(b.acks)/2 {
		close(b.half)
	}
}

// retry reports whether a submit has to be sent again: its outcome is unknown, or it was refused
// because no server is active or a queue is full.
func (b *burst) retry(err error) bool {
	again := sentAgain(err)
	if again {
		b.mu.Lock()
		b.again++
		b.mu.Unlock()
	}
	return again
}

// sentAgain reports whether a request with an idempotency key may be sent again after an error.
func sentAgain(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.ResourceExhausted, codes.Canceled, codes.Unknown, codes.DeadlineExceeded:
		return true
	}
	return false
}

// byCalls submits jobs one after the other, to both servers in turn.
func (b *burst) byCalls(ctx context.Context, jobs []int) error {
	for _, i := range jobs {
		for try := 0; ; try++ {
			resp, err := nusav1.NewJobsClient(b.conns[(i+try)%2]).Submit(ctx, b.request(i))
			if err == nil {
				b.acknowledged(i, resp)
				break
			}
			if ctx.Err() != nil || !b.retry(err) {
				return fmt.Errorf("submit %s: %w", burstName(i), err)
			}
			pause(ctx)
		}
	}
	return nil
}

func pause(ctx context.Context) {
	t := time.NewTimer(20 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// byStreams submits jobs by one stream after another. What a stream leaves unanswered goes into the
// next one, to the other server.
func (b *burst) byStreams(ctx context.Context, jobs []int) error {
	for try := 0; len(jobs) > 0; try++ {
		left, err := b.stream(ctx, b.conns[try%2], jobs)
		if err != nil && (ctx.Err() != nil || !b.retry(err)) {
			return fmt.Errorf("%d jobs are left: %w", len(left), err)
		}
		jobs = left
		pause(ctx)
	}
	return nil
}

// stream returns the jobs that were not acknowledged.
func (b *burst) stream(ctx context.Context, conn *grpc.ClientConn, jobs []int) (left []int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := nusav1.NewJobsClient(conn).SubmitMany(ctx)
	if err != nil {
		return jobs, err
	}
	open := make(chan struct{}, inFlight)
	var sender sync.WaitGroup
	sender.Go(func() {
		for _, i := range jobs {
			select {
			case open <- struct{}{}:
			case <-ctx.Done():
				return
			}
			if stream.Send(b.request(i)) != nil {
				return // Recv returns the reason
			}
		}
		_ = stream.CloseSend()
	})
	defer sender.Wait()
	defer cancel()
	for n, i := range jobs {
		resp, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = status.Error(codes.Unavailable, "the stream has ended early")
			}
			return append(left, jobs[n:]...), err
		}
		<-open
		switch err := status.Error(codes.Code(resp.GetCode()), resp.GetError()); {
		case err == nil:
			b.acknowledged(i, resp.GetResponse())
		case b.retry(err):
			left = append(left, i)
		default:
			return left, fmt.Errorf("submit %s: %w", burstName(i), err)
		}
	}
	return left, nil
}

// submit submits all jobs. The single calls together get as many as one stream.
func (b *burst) submit(ctx context.Context) error {
	parts := make([][]int, b.streams+min(1, b.callers))
	for i := range b.acks {
		parts[i%len(parts)] = append(parts[i%len(parts)], i)
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, jobs := range parts[:b.streams] {
		g.Go(func() error { return b.byStreams(ctx, jobs) })
	}
	for c := range b.callers {
		var jobs []int
		for n := c; n < len(parts[b.streams]); n += b.callers {
			jobs = append(jobs, parts[b.streams][n])
		}
		g.Go(func() error { return b.byCalls(ctx, jobs) })
	}
	return g.Wait()
}

// accepted notes that a region owns a slot, as the store has it.
func (b *burst) accepted(s *nusav1.Slot, _ time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := s.GetFrom(); i < s.GetTo(); i++ {
		key := fmt.Sprintf("%s[%d]", s.GetJob(), i)
		if b.regions[key] == nil {
			b.regions[key] = map[string]bool{}
		}
		b.regions[key][s.GetRegion()] = true
	}
}

// listJobs returns all jobs by name.
func listJobs(ctx context.Context, t *testing.T, conn *grpc.ClientConn) (map[string]*nusav1.Job, error) {
	out, token := map[string]*nusav1.Job{}, ""
	for {
		page, err := nusav1.NewJobsClient(conn).List(ctx, &nusav1.ListJobsRequest{PageToken: token})
		if err != nil {
			return nil, err
		}
		for _, j := range page.GetJobs() {
			name := j.GetSpec().GetName()
			if out[name] != nil {
				t.Errorf("%s is listed twice", name)
			}
			out[name] = j
		}
		token = page.GetNextPageToken()
		if token == "" {
			return out, nil
		}
	}
}

// owners returns an error if not each instance of a job has exactly one owner that has accepted it.
func owners(j *nusav1.Job) error {
	want := j.GetSpec().GetGroups()["web"].GetCount()
	var next int32
	slots := slices.SortedFunc(slices.Values(j.GetStatus().GetGroups()["web"].GetSlots()), func(a, b *nusav1.Slot) int { return int(a.GetFrom() - b.GetFrom()) })
	for _, s := range slots {
		if s.GetFrom() != next || s.GetDesired() != nusav1.SlotDesired_SLOT_DESIRED_RUN || s.GetState() != nusav1.SlotState_SLOT_STATE_ACCEPTED || s.GetVacant() {
			return fmt.Errorf("%s: slots %v", j.GetSpec().GetName(), slots)
		}
		next = s.GetTo()
	}
	if next != want {
		return fmt.Errorf("%s: %d of %d instances have an owner", j.GetSpec().GetName(), next, want)
	}
	return nil
}

// runFleet connects emulated regions, which accept the slots of b, to a server. stop ends them.
func (b *burst) runFleet(ctx context.Context, addr string) (stop func()) {
	b.t.Helper()
	fleet := emulate.New(emulate.Config{
		Addr: addr, Regions: burstRegions, Nodes: 200 * len(b.acks) / burstJobs, Accepted: b.accepted,
		Ask: func(string) (int64, int64) { return 10, 1 << 20 },
	})
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- fleet.Run(ctx) }()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			b.t.Error(err)
		}
	}
	connected, late := context.WithTimeout(ctx, patience)
	defer late()
	if err := fleet.AwaitConnected(connected, nil); err != nil {
		stop()
		b.t.Fatal(err)
	}
	return stop
}

// killHalfway submits all jobs, and calls kill when half of them are acknowledged.
func (b *burst) killHalfway(ctx context.Context, kill func()) {
	b.t.Helper()
	began := time.Now()
	submitted := make(chan error, 1)
	go func() { submitted <- b.submit(ctx) }()
	select {
	case <-b.half:
	case err := <-submitted:
		b.t.Fatalf("before the kill: %v", err)
	}
	killed := time.Now()
	kill()
	if err := <-submitted; err != nil {
		b.t.Fatal(err)
	}
	b.t.Logf("%d jobs: %.0f a second before the kill, all acknowledged %s after it, %d submits sent again",
		len(b.acks), float64(len(b.acks)/2)/killed.Sub(began).Seconds(), time.Since(killed).Round(time.Millisecond), b.again)
}

// stored returns an error until the server has each job once, as it was acknowledged, and each
// instance has an owner.
func (b *burst) stored(ctx context.Context, conn *grpc.ClientConn) error {
	jobs, err := listJobs(ctx, b.t, conn)
	if err != nil {
		return err
	}
	if len(jobs) != len(b.acks) {
		return fmt.Errorf("%d jobs are listed", len(jobs))
	}
	for i, ack := range b.acks {
		j := jobs[burstName(i)]
		if j.GetVersion() != 1 || j.GetRevision() != ack.GetRevision() || ack.GetVersion() != 1 || !ack.GetChanged() {
			b.t.Fatalf("%s was acknowledged with %v and is %v", burstName(i), ack, j)
		}
		if err := owners(j); err != nil {
			return err
		}
	}
	return nil
}

// acceptedOnce returns an error until regions have accepted each instance. No instance may have
// two regions.
func (b *burst) acceptedOnce(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, regions := range b.regions {
		if len(regions) != 1 {
			b.t.Errorf("%s was accepted by %v", key, regions)
		}
	}
	if want := len(b.acks) / 6 * (5 + 3); len(b.regions) != want {
		return fmt.Errorf("%d instances were accepted, not %d", len(b.regions), want)
	}
	return nil
}

// submitAgain submits all jobs with the same keys: the answers must be the same, and no job is new.
func (b *burst) submitAgain(ctx context.Context) {
	b.t.Helper()
	if err := b.submit(ctx); err != nil {
		b.t.Fatalf("all keys again: %v", err)
	}
	if jobs, err := listJobs(ctx, b.t, b.conns[1]); err != nil || len(jobs) != len(b.acks) {
		b.t.Errorf("%d jobs after all keys again: %v", len(jobs), err)
	}
}
