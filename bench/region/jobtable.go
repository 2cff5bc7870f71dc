package region

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/bench/load"
	"github.com/nusa-scheduler/nusa/bench/report"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// namespace holds every job of a measurement.
	namespace = "default"
	// watchAgain is the pause before a failed watch is started again.
	watchAgain = 20 * time.Millisecond
)

// jobTable records what a client sees of a set of jobs: when each job was sent, stored and
// placed, and how many instances run.
type jobTable struct {
	prefix      string
	jobs, count int
	begin       time.Time
	// synced is closed when the watch has begun, placed when every instance is placed,
	// running when every instance runs.
	synced, placed, running chan struct{}

	mu                     sync.Mutex
	sent, answered, atNode []time.Duration // since begin; 0 = not yet
	state                  []jobCounts
	placedSum, runningSum  int
	live                   int
	placedAt, runningAt    time.Duration // the times at which the sums grew last
	isSynced               bool
}

// jobCounts counts the instances of one job.
type jobCounts struct{ placed, running, live int32 }

func newJobTable(prefix string, jobs, count int) *jobTable {
	return &jobTable{
		prefix: prefix, jobs: jobs, count: count, begin: time.Now(),
		synced: make(chan struct{}), placed: make(chan struct{}), running: make(chan struct{}),
		sent: make([]time.Duration, jobs), answered: make([]time.Duration, jobs), atNode: make([]time.Duration, jobs),
		state: make([]jobCounts, jobs),
	}
}

func (b *jobTable) name(i int) string { return fmt.Sprintf("%s%07d", b.prefix, i) }

// toSubmit returns the jobs in the form that package load submits. The jobs use the nodes
// of a pool.
func (b *jobTable) toSubmit(pool string) load.Jobs {
	same := groups(b.count, pool)
	return load.Jobs{Number: b.jobs, Sent: b.noteSent, Answered: b.noteAnswered, Spec: func(i int) *nusav1.JobSpec {
		return &nusav1.JobSpec{Name: b.name(i), Namespace: namespace, Type: nusav1.JobType_JOB_TYPE_SERVICE, Groups: same}
	}}
}

// noteSent records when a job was sent. With a fixed rate it records when the job was due.
func (b *jobTable) noteSent(i int, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent[i] = max(1, at.Sub(b.begin))
}

// sentJobs returns the numbers of the jobs that were submitted.
func (b *jobTable) sentJobs() (out []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, at := range b.sent {
		if at > 0 {
			out = append(out, i)
		}
	}
	return out
}

func (b *jobTable) noteAnswered(i int) {
	now := time.Since(b.begin)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answered[i] = now
}

// watch follows the jobs until ctx ends. A watch that breaks, for example because the
// master has changed, is started again. watch returns only errors that a retry cannot fix.
func (b *jobTable) watch(ctx context.Context, client nusav1.JobsClient, interval time.Duration) error {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
		err := b.follow(ctx, client, interval)
		switch status.Code(err) {
		case codes.Unavailable, codes.ResourceExhausted:
		default:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch the jobs: %w", err)
		}
		again.Reset(watchAgain)
	}
}

func (b *jobTable) follow(ctx context.Context, client nusav1.JobsClient, interval time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.WatchGroups(ctx, &nusav1.WatchGroupsRequest{
		Namespace: namespace, NamePrefix: b.prefix, Interval: durationpb.New(interval),
	})
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		b.apply(m, time.Since(b.begin))
	}
}

// apply applies a message of the watch. Counts are absolute, so a repeated message
// changes nothing.
func (b *jobTable) apply(m *nusav1.WatchGroupsResponse, now time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.GetSynced() && !b.isSynced {
		b.isSynced = true
		close(b.synced)
	}
	placed, running := b.placedSum, b.runningSum
	for _, g := range m.GetGroups() {
		i, err := strconv.Atoi(strings.TrimPrefix(g.GetJob().GetName(), b.prefix))
		if err != nil || i < 0 || i >= b.jobs {
			continue // a job of another client
		}
		s := &b.state[i]
		live := g.GetCounts().GetStarting() + g.GetCounts().GetRunning()
		b.live += int(live - s.live)
		s.live = live
		// An instance that was placed once still counts as placed after its stop.
		if n := g.GetDesired() - g.GetUnplaced(); n > s.placed {
			b.placedSum += int(n - s.placed)
			s.placed = n
			if int(n) == b.count {
				b.atNode[i] = now
			}
		}
		if n := g.GetCounts().GetRunning(); n > s.running {
			b.runningSum += int(n - s.running)
			s.running = n
		}
	}
	all := b.jobs * b.count
	if b.placedSum > placed {
		b.placedAt = now
		if b.placedSum == all {
			close(b.placed)
		}
	}
	if b.runningSum > running {
		b.runningAt = now
		if b.runningSum == all {
			close(b.running)
		}
	}
}

// sums returns the numbers of placed and of running instances so far.
func (b *jobTable) sums() (placed, running int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.placedSum, b.runningSum
}

// alive returns the number of instances that start or run now.
func (b *jobTable) alive() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.live
}

// first returns the time of the first submit. The caller holds b.mu.
func (b *jobTable) first() time.Duration {
	first := b.sent[0]
	for _, at := range b.sent {
		if at > 0 && (at < first || first == 0) {
			first = at
		}
	}
	return first
}

// fill copies the recorded times into the result.
func (b *jobTable) fill(r *Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var toPlaced, toAnswer []time.Duration
	for i, sent := range b.sent {
		if b.atNode[i] > 0 {
			toPlaced = append(toPlaced, b.atNode[i]-sent)
		}
		if b.answered[i] > 0 {
			toAnswer = append(toAnswer, b.answered[i]-sent)
		}
	}
	r.SubmitToPlacedMS, r.SubmitMS = report.QuantilesOf(toPlaced), report.QuantilesOf(toAnswer)
	r.Placed, r.Acknowledged = b.placedSum, b.runningSum
	first := b.first()
	if b.placedSum > 0 {
		r.Seconds = report.Seconds(b.placedAt - first)
		r.PlacementsPerS = report.PerSecond(b.placedSum, b.placedAt-first)
	}
	if b.runningSum > 0 {
		r.AcknowledgedSeconds = report.Seconds(b.runningAt - first)
		r.AcknowledgedPerS = report.PerSecond(b.runningSum, b.runningAt-first)
	}
}
