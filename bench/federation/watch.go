package federation

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/bench/load"
	"github.com/nusa-scheduler/nusa/bench/report"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Watches cost the server CPU time, so only a sample of the jobs is watched: at most one
// job in leastStride, and at most watched jobs in all.
const leastStride, watched = 8, 500

// watches follow a sample of the jobs until they run.
type watches struct {
	ctx    context.Context
	b      *table
	client func(i int) nusav1.JobsClient
	stride int
	group  errgroup.Group
}

func newWatches(ctx context.Context, b *table, client func(int) nusav1.JobsClient) *watches {
	return &watches{ctx: ctx, b: b, client: client, stride: max(leastStride, (b.jobs+watched-1)/watched)}
}

// begin begins to watch a stored job if the job is in the sample.
func (w *watches) begin(i int) {
	if i%w.stride == 0 {
		w.group.Go(func() error { return w.watch(i) })
	}
}

// wait waits until every watched job runs.
func (w *watches) wait() error { return w.group.Wait() }

// watch follows one job until it runs. A watch that fails for a passing reason is
// repeated.
func (w *watches) watch(i int) error {
	for {
		err := w.follow(i)
		switch {
		case err == nil:
			return nil
		case w.ctx.Err() != nil:
			return context.Cause(w.ctx)
		case !load.Again(err):
			return fmt.Errorf("watch %s: %w", w.b.name(i), err)
		}
		if err := report.Pause(w.ctx, load.RetryAfter); err != nil {
			return err
		}
	}
}

func (w *watches) follow(i int) error {
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	stream, err := w.client(i).Watch(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: namespace, Name: w.b.name(i)}})
	if err != nil {
		return err
	}
	for {
		job, err := stream.Recv()
		if err != nil {
			return err
		}
		if int(job.GetStatus().GetGroups()[groupName].GetCounts().GetRunning()) == w.b.count(i) {
			w.b.noteRunning(i)
			return nil
		}
	}
}
