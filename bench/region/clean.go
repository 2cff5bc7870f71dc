package region

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/bench/load"
	"github.com/nusa-scheduler/nusa/bench/report"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// cleanWithin bounds the time for stopping and purging jobs on a running region,
// and the time for removing the simulated nodes after that.
const cleanWithin = time.Minute

var (
	errInterrupted = errors.New("interrupted")
	errTwice       = errors.New("interrupted twice")
)

// interrupted returns errInterrupted if ctx has ended, because the end of ctx then caused
// err. Otherwise it returns err.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errInterrupted
	}
	return err
}

// count records how many jobs and nodes must be removed.
func (m *measurement) count() {
	for _, b := range m.tables {
		m.jobsLeft.Add(int64(len(b.sentJobs())))
	}
	m.nodesLeft.Store(int64(m.o.Nodes))
}

// remaining lists what is not removed yet, for example "5000 jobs and 20 simulated nodes".
func (m *measurement) remaining() string {
	var parts []string
	if n := m.jobsLeft.Load(); n > 0 {
		parts = append(parts, fmt.Sprintf("%d jobs", n))
	}
	if n := m.nodesLeft.Load(); n > 0 {
		parts = append(parts, fmt.Sprintf("%d simulated nodes", n))
	}
	return strings.Join(parts, " and ")
}

// announceRemoval prints, when ctx ends, that the removal continues. The next signal then
// ends the removal by a call of giveUp. The caller calls done after the removal.
func (m *measurement) announceRemoval(ctx context.Context, giveUp context.CancelCauseFunc) (done func()) {
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		again := make(chan os.Signal, 1)
		signal.Notify(again, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		defer signal.Stop(again)
		if what := m.remaining(); what != "" {
			m.o.say("interrupted: removing %s from region %s; interrupt again to leave there what is left", what, m.region)
		}
		select {
		case <-again:
			giveUp(errTwice)
		case <-over:
		}
	})
	return func() {
		stop()
		close(over)
	}
}

// clean stops and purges all jobs on a running region and waits until their
// instances have ended.
func (m *measurement) clean(ctx context.Context) error {
	ctx, cancel := report.Within(ctx, cleanWithin, fmt.Errorf("not within %s", cleanWithin))
	defer cancel()
	m.o.progress("stopping and purging the jobs")
	for _, b := range m.tables {
		if err := m.cleanBoard(ctx, b); err != nil {
			return fmt.Errorf("stop and purge the jobs %s*: %w", strings.TrimSuffix(b.prefix, "-"), err)
		}
	}
	return nil
}

func (m *measurement) cleanBoard(ctx context.Context, of *jobTable) error {
	b := newJobTable(of.prefix, of.jobs, of.count)
	g, ctx := errgroup.WithContext(ctx)
	watched, unwatch := context.WithCancel(ctx)
	defer unwatch()
	g.Go(func() error { return b.watch(watched, m.load.Client(0), throughputInterval) })
	g.Go(func() error {
		m.show(watched, func() string {
			return fmt.Sprintf("stopping and purging the jobs: %d left, %d instances run", m.jobsLeft.Load(), b.alive())
		})
		return nil
	})
	g.Go(func() error {
		defer unwatch()
		if err := await(ctx, b.synced); err != nil {
			return err
		}
		if err := m.purge(ctx, of); err != nil {
			return report.Cause(ctx, err)
		}
		poll := time.NewTicker(report.PollEvery)
		defer poll.Stop()
		for b.alive() > 0 {
			if err := awaitTick(ctx, poll.C); err != nil {
				return fmt.Errorf("%d instances still run: %w", b.alive(), err)
			}
		}
		return nil
	})
	return g.Wait()
}

// purge stops and purges all submitted jobs of the table. It subtracts each from
// m.jobsLeft.
func (m *measurement) purge(parent context.Context, b *jobTable) error {
	g, ctx := errgroup.WithContext(parent)
	g.SetLimit(m.o.Concurrency)
	for _, i := range b.sentJobs() {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			err := load.Remove(ctx, load.RetryAfter, func() error {
				_, err := m.load.Client(i).Stop(ctx, &nusav1.StopJobRequest{
					Job: &nusav1.JobRef{Namespace: namespace, Name: b.name(i), Region: m.region}, Purge: true,
				})
				return err
			})
			switch {
			case err == nil:
				m.jobsLeft.Add(-1)
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

// forget removes the simulated nodes from a running region.
func (m *measurement) forget(ctx context.Context) error {
	ctx, cancel := report.Within(ctx, cleanWithin, fmt.Errorf("not within %s", cleanWithin))
	defer cancel()
	m.o.progress("removing the simulated nodes")
	client := nusav1.NewNodesClient(m.load.Conns[0])
	var g errgroup.Group
	g.SetLimit(m.o.Concurrency)
	for i := range m.o.Nodes {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			err := load.Remove(ctx, load.RetryAfter, func() error {
				_, err := client.Remove(ctx, &nusav1.RemoveNodeRequest{Id: m.fleet.nodeID(i), Region: m.region})
				return err
			})
			if err != nil {
				return fmt.Errorf("remove the simulated nodes: %w", report.Cause(ctx, err))
			}
			m.nodesLeft.Add(-1)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// leftovers adds to err which jobs and nodes are left in the region, and the commands that
// remove them.
func (m *measurement) leftovers(err error) error {
	if errors.Is(err, errTwice) {
		err = errTwice // the place where the second signal arrived does not matter
	}
	what := m.remaining()
	if err == nil || what == "" {
		return err
	}
	const each = "`nusa %s list --addr %s | grep -o '%s[^ ]*' | xargs -n 1 nusa %s --addr %[2]s`"
	var how []string
	if m.jobsLeft.Load() > 0 {
		how = append(how, fmt.Sprintf(each, "job", m.o.Against, m.prefix, "job stop --purge"))
	}
	if m.nodesLeft.Load() > 0 {
		how = append(how, "once the nodes are lost "+fmt.Sprintf(each, "node", m.o.Against, m.prefix+"-", "node remove"))
	}
	return fmt.Errorf("%w: %s are left in region %s: remove them with %s", err, what, m.region, strings.Join(how, ", and "))
}
