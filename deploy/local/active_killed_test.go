//go:build integration

package local_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
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

	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
	"github.com/nusa-scheduler/nusa/bench/emulate"
	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// burstJobs are submitted as fast as the servers take them.
	burstJobs = 12_000
	// burstStreams and burstCallers submit them, by streams and by single calls.
	burstStreams, burstCallers = 6, 16
	// inFlight is how many submits of a stream wait for their answers.
	inFlight = 200
	// burstRegions take the jobs.
	burstRegions = 6
)

// pair is two global servers over one etcd, which runs in this process.
type pair struct {
	t       *testing.T
	servers [2]report.Server
	conns   [2]*grpc.ClientConn
	addrs   [2]string
}

func startPair(t *testing.T) *pair {
	t.Helper()
	bin, err := filepath.Abs("../../bin/nusa")
	if err != nil {
		t.Fatal(err)
	}
	dir, port := t.TempDir(), freeport.Reserve(t, ports)
	leftover.Nothing(t, dir)
	addr := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", port+i) }
	etcd, err := store.OpenEtcd(t.Context(), store.EtcdConfig{
		Name: "etcd", DataDir: filepath.Join(dir, "etcd"), ClientAddr: addr(0), PeerAddr: addr(1), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := etcd.Close(); err != nil {
			t.Error(err)
		}
	})
	f := &federation{t: t}
	p := &pair{t: t}
	for i := range p.servers {
		name := fmt.Sprintf("global-%d", i+1)
		p.addrs[i] = addr(2 + i)
		p.servers[i] = report.Server{Name: name, Exe: bin, Log: filepath.Join(dir, name+".log"), Args: []string{
			"global", "--name", name, "--data-dir", filepath.Join(dir, name), "--grpc-addr", p.addrs[i], "--http-addr", "-", "--etcd-endpoints", addr(0),
			"--webhook-allow-http", "--webhook-allow-private", "127.0.0.0/8",
		}}
		if err := p.servers[i].Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.servers[i].Stop)
		t.Cleanup(func() {
			if t.Failed() {
				showLog(t, p.servers[i].Log)
			}
		})
		p.conns[i] = f.dial(port + 2 + i)
		f.eventually(name+" knows the active server", func(ctx context.Context) error {
			info, err := nusav1.NewSystemClient(p.conns[i]).Info(ctx, &nusav1.InfoRequest{})
			if err == nil && info.GetLeaderAddress() != p.addrs[0] {
				err = fmt.Errorf("active is %q", info.GetLeaderAddress())
			}
			return err
		})
	}
	return p
}

// showLog writes the end of a log to the test's output.
func showLog(t *testing.T, name string) {
	const most = 8 << 10
	text, err := os.ReadFile(name)
	t.Logf("%s: %v\n%s", name, err, text[max(0, len(text)-most):])
}

// burst submits jobs, each until it is acknowledged.
type burst struct {
	p    *pair
	half chan struct{} // closed when half of the jobs are acknowledged

	mu sync.Mutex
	// acks are the first acknowledgements, by job; acked is their number.
	acks  []*nusav1.SubmitResponse
	acked int
	// again counts the submits that were sent again.
	again int
	// regions are those that accepted an instance, by job and index.
	regions map[string]map[string]bool
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
			b.p.t.Errorf("%s was acknowledged with %v and then with %v", burstName(i), first, resp)
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

// calls submits jobs one after the other, to both servers in turn.
func (b *burst) calls(ctx context.Context, jobs []int) error {
	for _, i := range jobs {
		for try := 0; ; try++ {
			resp, err := nusav1.NewJobsClient(b.p.conns[(i+try)%2]).Submit(ctx, b.request(i))
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

// streams submits jobs by one stream after another. What a stream leaves unanswered goes into the
// next one, to the other server.
func (b *burst) streams(ctx context.Context, jobs []int) error {
	for try := 0; len(jobs) > 0; try++ {
		left, err := b.stream(ctx, b.p.conns[try%2], jobs)
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

// submit submits all jobs.
func (b *burst) submit(ctx context.Context) error {
	parts := make([][]int, burstStreams+1)
	for i := range b.acks {
		parts[i%len(parts)] = append(parts[i%len(parts)], i)
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, jobs := range parts[:burstStreams] {
		g.Go(func() error { return b.streams(ctx, jobs) })
	}
	single := parts[burstStreams]
	for c := range burstCallers {
		var jobs []int
		for n := c; n < len(single); n += burstCallers {
			jobs = append(jobs, single[n])
		}
		g.Go(func() error { return b.calls(ctx, jobs) })
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

// list returns all jobs by name.
func (p *pair) list(ctx context.Context, conn *grpc.ClientConn) (map[string]*nusav1.Job, error) {
	out, token := map[string]*nusav1.Job{}, ""
	for {
		page, err := nusav1.NewJobsClient(conn).List(ctx, &nusav1.ListJobsRequest{PageToken: token})
		if err != nil {
			return nil, err
		}
		for _, j := range page.GetJobs() {
			name := j.GetSpec().GetName()
			if out[name] != nil {
				p.t.Errorf("%s is listed twice", name)
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

// TestActiveKilledUnderLoad: the active global server is killed while it takes as many submits as
// it can. Nothing acknowledged is lost, nothing is done twice, and each instance has one owner. A consumer
// sees each durable event once, in the order of the numbers.
func TestActiveKilledUnderLoad(t *testing.T) {
	p := startPair(t)
	f := &federation{t: t}
	b := &burst{p: p, half: make(chan struct{}), acks: make([]*nusav1.SubmitResponse, burstJobs), regions: map[string]map[string]bool{}}
	fleet := emulate.New(emulate.Config{
		Addr: p.addrs[1], Regions: burstRegions, Nodes: 200, Accepted: b.accepted,
		Ask: func(string) (int64, int64) { return 10, 1 << 20 },
	})
	var g errgroup.Group
	ctx, cancel := context.WithCancel(t.Context())
	defer func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}()
	g.Go(func() error { return fleet.Run(ctx) })
	events := follow(p.conns[1])
	g.Go(func() error { return events.run(ctx) })
	connected, late := context.WithTimeout(ctx, patience)
	defer late()
	if err := fleet.AwaitConnected(connected, nil); err != nil {
		t.Fatal(err)
	}

	began := time.Now()
	submitted := make(chan error, 1)
	go func() { submitted <- b.submit(ctx) }()
	select {
	case <-b.half:
	case err := <-submitted:
		t.Fatalf("before the kill: %v", err)
	}
	p.servers[0].Kill()
	killed := time.Now()
	if err := <-submitted; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d jobs: %.0f a second before the kill, all acknowledged %s after it, %d submits sent again",
		burstJobs, burstJobs/2/killed.Sub(began).Seconds(), time.Since(killed).Round(time.Millisecond), b.again)

	f.eventually("each instance has an owner", func(ctx context.Context) error {
		jobs, err := p.list(ctx, p.conns[1])
		if err != nil {
			return err
		}
		if len(jobs) != burstJobs {
			return fmt.Errorf("%d jobs are listed", len(jobs))
		}
		for i, ack := range b.acks {
			j := jobs[burstName(i)]
			if j.GetVersion() != 1 || j.GetRevision() != ack.GetRevision() || ack.GetVersion() != 1 || !ack.GetChanged() {
				t.Fatalf("%s was acknowledged with %v and is %v", burstName(i), ack, j)
			}
			if err := owners(j); err != nil {
				return err
			}
		}
		return nil
	})
	f.eventually("each event was seen once", func(context.Context) error { return events.eachOnce(burstJobs) })
	again := follow(p.conns[1]) // from the beginning, at the new active server
	g.Go(func() error { return again.run(ctx) })
	f.eventually("each event is stored", func(context.Context) error { return again.eachOnce(burstJobs) })
	if events.streams < 2 || again.streams != 1 {
		t.Errorf("%d streams of events, and %d after the kill", events.streams, again.streams)
	}
	b.mu.Lock()
	for key, regions := range b.regions {
		if len(regions) != 1 {
			t.Errorf("%s was accepted by %v", key, regions)
		}
	}
	if want := burstJobs / 6 * (5 + 3); len(b.regions) != want {
		t.Errorf("%d instances were accepted, not %d", len(b.regions), want)
	}
	b.mu.Unlock()
	if err := b.submit(ctx); err != nil { // the answers must be the same
		t.Fatalf("all keys again: %v", err)
	}
	if jobs, err := p.list(t.Context(), p.conns[1]); err != nil || len(jobs) != burstJobs {
		t.Errorf("%d jobs after all keys again: %v", len(jobs), err)
	}
}
