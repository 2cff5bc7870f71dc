package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func agentCommand() *cobra.Command {
	o := AgentOptions{}
	var out output
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Measure how fast an agent starts and ends processes, and what it costs",
		Long: `Starts an agent as a process of its own, its data in a temporary folder, under a
master that only gives it orders, over the real protocol.

It starts --tasks processes one after the other, each from the order to the
report that it runs; lets the agent idle with them; then runs --batch commands
that end at once ("true") through it, each of which is forgotten once it is
reported complete; and lets it idle again. Either time it waits first, some
seconds beyond --idle, until the agent is at rest and has given memory back. What
is resident is read at the end, when heartbeats and statistics, which go out every
5 s, have brought back what they need: an --idle under 6 s may read less than that.
Nobody asks for the agent's metrics meanwhile: that brings back some MB more, until
the agent gives back again, once a minute.

After each quarter of the batch it waits until the agent is at rest and has given
memory back, and looks at what could grow. The first half is to warm up; what is
more at the end than after half is named as grown. Of memory that is what the
agent holds, by 200 kB or more, and what is resident, by 2 MB: the larger the
batch, the less has to be left of each command to be seen, 20 bytes with 20,000.`,
		Example: "  nusa bench agent --tasks 100 --batch 1000\n  nusa bench agent --idle 0 --batch 20000 -o json",
		Args:    cobra.NoArgs,
	}
	f := cmd.Flags()
	f.IntVar(&o.Tasks, "tasks", 100, "processes to start, which then run")
	f.DurationVar(&o.Idle, "idle", 20*time.Second, "how long the agent idles with them, before the batch and after it, once it is at rest; 0 = not")
	f.IntVar(&o.Batch, "batch", 1000, "commands that end at once")
	f.IntVar(&o.Window, "window", 32, "of these are ordered at a time")
	f.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "give up after so long")
	f.StringVar(&o.Dir, "dir", os.TempDir(), "where the temporary folder of the agent's data is made")
	f.StringVar(&o.Profile, "profile", "", "folder for the agent's CPU and heap profiles of the batch")
	out.bind(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, n := range []struct {
			flag            string
			value, from, to int
		}{{"--tasks", o.Tasks, 1, 5000}, {"--batch", o.Batch, quarters, 1_000_000}, {"--window", o.Window, 1, 256}} {
			if n.value < n.from || n.value > n.to {
				return fmt.Errorf("%s: %d is not %d..%d", n.flag, n.value, n.from, n.to)
			}
		}
		switch {
		case out.check() != nil:
			return out.check()
		case o.Timeout <= 0:
			return fmt.Errorf("--timeout: %s is not more than 0", o.Timeout)
		case o.Idle < 0:
			return fmt.Errorf("--idle: %s is less than 0", o.Idle)
		}
		if term.IsTerminal(os.Stderr.Fd()) {
			o.Progress = progressLine(os.Stderr)
		}
		r, err := Agent(cmd.Context(), o)
		if o.Progress != nil {
			o.Progress("")
		}
		if r != nil { // also what was reached until an error
			err = errors.Join(out.print(cmd.OutOrStdout(), r, r.table), err)
		}
		return err
	}
	return cmd
}

// runOne runs a command that ends at once, and forgets it.
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

// idle measures a time without orders; nil: there is to be none.
func (n *agentRun) idle(ctx context.Context) (*AgentIdle, error) {
	if n.o.Idle <= 0 {
		return nil, nil
	}
	if err := n.undisturbed(ctx); err != nil {
		return nil, err
	}
	n.progress("idle for %s", n.o.Idle)
	supervisors, err := childrenOf(n.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	used := func() (agent, others time.Duration, err error) {
		agent, err = cpuTime(n.cmd.Process.Pid)
		for _, pid := range supervisors {
			d, childErr := cpuTime(pid)
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
	cores := func(d time.Duration) float64 { return round(d.Seconds()/took.Seconds(), 5) }
	i := &AgentIdle{Seconds: seconds(took), CPUCores: cores(agentAfter - agent), SupervisorsCPUCores: cores(othersAfter - others)}
	if i.RSSMB, err = memory(n.cmd.Process.Pid, "status", "VmRSS:"); err != nil {
		return nil, err
	}
	for _, pid := range supervisors {
		rss, err1 := memory(pid, "smaps_rollup", "Rss:")
		pss, err2 := memory(pid, "smaps_rollup", "Pss:")
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		i.SupervisorRSSMB += rss / float64(len(supervisors))
		i.SupervisorPSSMB += pss / float64(len(supervisors))
	}
	i.SupervisorRSSMB, i.SupervisorPSSMB = round(i.SupervisorRSSMB, 2), round(i.SupervisorPSSMB, 2)
	return i, nil
}

// batches runs commands that end at once, a window at a time, and looks at the
// agent after each quarter of them.
func (n *agentRun) batches(ctx context.Context) error {
	pid := n.cmd.Process.Pid
	agent, err1 := cpuTime(pid)
	tasks, err2 := childrenTime(pid)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	var took time.Duration
	from := 0
	for quarter := 1; quarter <= quarters; quarter++ {
		to := n.o.Batch * quarter / quarters
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
	agentAfter, err1 := cpuTime(pid)
	tasksAfter, err2 := childrenTime(pid)
	each := func(d time.Duration) float64 { return round(d.Seconds()*1000/float64(n.o.Batch), 3) }
	n.r.BatchSeconds, n.r.BatchPerS = seconds(took), perSecond(n.o.Batch, took)
	n.r.AgentCPUMSPerTask, n.r.TaskCPUMS = each(agentAfter-agent), each(tasksAfter-tasks)
	n.r.Grown = grown(n.r.Sizes)
	return errors.Join(err1, err2)
}

// batch runs the commands of these numbers.
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
