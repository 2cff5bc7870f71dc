package federation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/bench/load"
	"github.com/nusa-scheduler/nusa/bench/report"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// cleanWithin bounds the time in which clean removes jobs and regions.
	cleanWithin = 2 * time.Minute
	// removeAgain is the pause before a removal is tried again. For example, a region
	// cannot be removed while it is connected or owns slots.
	removeAgain = 100 * time.Millisecond
)

// clean removes the jobs and the regions from a running federation. The regions must still
// have sessions, because they report that the jobs have stopped.
func (m *measurement) clean(ctx context.Context) error {
	m.o.say("removing the jobs and regions of the measurement")
	ctx, cancel := report.Within(ctx, cleanWithin, fmt.Errorf("not all within %s", cleanWithin))
	defer cancel()
	err := m.eachJob(ctx, func(ctx context.Context, client nusav1.JobsClient, ref *nusav1.JobRef) error {
		_, err := client.Stop(ctx, &nusav1.StopJobRequest{Job: ref, Purge: true})
		return err
	})
	if err == nil {
		err = m.eachJob(ctx, func(ctx context.Context, client nusav1.JobsClient, ref *nusav1.JobRef) error {
			if _, err := client.Get(ctx, &nusav1.GetJobRequest{Job: ref}); err != nil {
				return err
			}
			return errStopping
		})
	}
	if err != nil {
		return fmt.Errorf("jobs %s-… are left: stop and purge them: %w", m.name, err)
	}
	left := m.fleet.Leave(ctx)
	if err := m.forget(ctx); err != nil {
		return errors.Join(left, fmt.Errorf("regions %s-… are left: remove them with `nusa region remove`: %w", m.name, err))
	}
	return left
}

// errStopping makes load.Remove ask again whether a job is purged.
var errStopping = status.Error(codes.Unavailable, "the job has not stopped yet")

// eachJob calls a function for each submitted job. It repeats the call until the call
// succeeds or the job does not exist any more.
func (m *measurement) eachJob(ctx context.Context, call func(context.Context, nusav1.JobsClient, *nusav1.JobRef) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(m.o.Concurrency)
	for _, b := range []*table{m.warm, m.timed} {
		for _, i := range b.sentJobs() {
			g.Go(func() error {
				ref := &nusav1.JobRef{Namespace: namespace, Name: b.name(i)}
				return load.Remove(ctx, removeAgain, func() error { return call(ctx, m.load.Client(i), ref) })
			})
		}
	}
	return g.Wait()
}

// forget removes the regions from the federation.
func (m *measurement) forget(ctx context.Context) error {
	client := nusav1.NewRegionsClient(m.load.Conns[0])
	for _, name := range m.fleet.Names() {
		err := load.Remove(ctx, removeAgain, func() error {
			_, err := client.Remove(ctx, &nusav1.GetRegionRequest{Name: name})
			return err
		}, codes.FailedPrecondition)
		if err != nil {
			return fmt.Errorf("region %s: %w", name, err)
		}
	}
	return nil
}
