package agent

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/bench/report"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// runOne runs a command that ends at once, and removes its order when it has ended.
func (n *agentRun) runOne(ctx context.Context, id string) error {
	reports, err := n.order(id, true, "true")
	if err != nil {
		return err
	}
	if err := n.await(ctx, id, nusav1.AllocState_ALLOC_STATE_COMPLETE, reports); err != nil {
		return err
	}
	n.master.forget(id)
	return nil
}

// idle measures the agent while it gets no orders. It returns nil if Options.Idle is 0.
func (n *agentRun) idle(ctx context.Context) (*Idle, error) {
	if n.o.Idle <= 0 {
		return nil, nil
	}
	if _, err := n.rested(ctx); err != nil {
		return nil, err
	}
	n.progress("idle for %s", n.o.Idle)
	supervisors, err := report.ChildrenOf(n.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	used := func() (agent, others time.Duration, err error) {
		agent, err = report.CPUTime(n.cmd.Process.Pid)
		for _, pid := range supervisors {
			d, childErr := report.CPUTime(pid)
			others, err = others+d, errors.Join(err, childErr)
		}
		return agent, others, err
	}
	agent, others, err := used()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	select {
	case <-time.After(n.o.Idle):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	agentAfter, othersAfter, err := used()
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	cores := func(d time.Duration) float64 { return report.Round(d.Seconds()/took.Seconds(), 5) }
	i := &Idle{Seconds: report.Seconds(took), CPUCores: cores(agentAfter - agent), SupervisorsCPUCores: cores(othersAfter - others)}
	if i.RSSMB, err = report.Memory(n.cmd.Process.Pid, "status", "VmRSS:"); err != nil {
		return nil, err
	}
	for _, pid := range supervisors {
		rss, err1 := report.Memory(pid, "smaps_rollup", "Rss:")
		pss, err2 := report.Memory(pid, "smaps_rollup", "Pss:")
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		i.SupervisorRSSMB += rss / float64(len(supervisors))
		i.SupervisorPSSMB += pss / float64(len(supervisors))
	}
	i.SupervisorRSSMB, i.SupervisorPSSMB = report.Round(i.SupervisorRSSMB, 2), report.Round(i.SupervisorPSSMB, 2)
	return i, nil
}

// batches runs the short commands, Window at a time. It measures the agent's size after
// each quarter of them.
func (n *agentRun) batches(ctx context.Context) error {
	pid := n.cmd.Process.Pid
	agent, err1 := report.CPUTime(pid)
	tasks, err2 := report.ChildrenTime(pid)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	var took time.Duration
	from := 0
	for quarter := 1; quarter <= Quarters; quarter++ {
		to := n.o.Batch * quarter / Quarters
		began := time.Now()
		if err := n.batch(ctx, from, to); err != nil {
			return err
		}
		took += time.Since(began)
		from = to
		s, err := n.size(ctx)
		if err != nil {
			return err
		}
		s.After = to
		n.r.Sizes = append(n.r.Sizes, s)
	}
	agentAfter, err1 := report.CPUTime(pid)
	tasksAfter, err2 := report.ChildrenTime(pid)
	each := func(d time.Duration) float64 { return report.Round(d.Seconds()*1000/float64(n.o.Batch), 3) }
	n.r.BatchSeconds, n.r.BatchPerS = report.Seconds(took), report.PerSecond(n.o.Batch, took)
	n.r.AgentCPUMSPerTask, n.r.TaskCPUMS = each(agentAfter-agent), each(tasksAfter-tasks)
	n.r.Grown = grown(n.r.Sizes)
	return errors.Join(err1, err2)
}

// batch runs the commands with the numbers from ≤ n < to.
func (n *agentRun) batch(ctx context.Context, from, to int) error {
	var done atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(n.o.Window)
	for i := from; i < to && ctx.Err() == nil; i++ {
		g.Go(func() error {
			if err := n.runOne(ctx, fmt.Sprintf("batch-%07d", i)); err != nil {
				return err
			}
			n.progress("%d of %d commands have ended", int64(from)+done.Add(1), n.o.Batch)
			return nil
		})
	}
	return g.Wait()
}
