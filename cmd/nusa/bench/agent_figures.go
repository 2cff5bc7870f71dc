package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func agentCommand() *cobra.Command {
	o := AgentOptions{}
	var output string
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Measure how fast an agent starts and ends processes, and what it costs",
		Long: `Starts an agent as a process of its own, its data in a temporary folder, under a
master that only gives it orders, over the real protocol.

It starts --tasks processes one after the other, each from the order to the
report that it runs; lets the agent idle with them; then runs --batch commands
that end at once ("true") through it, each of which is forgotten once it is
reported complete; looks at what has grown meanwhile; and lets it idle again.`,
		Example: "  nusa bench agent --tasks 100 --batch 1000\n  nusa bench agent --tasks 1 --idle 0 --batch 10000 -o json",
		Args:    cobra.NoArgs,
	}
	f := cmd.Flags()
	f.IntVar(&o.Tasks, "tasks", 100, "processes to start, which then run")
	f.DurationVar(&o.Idle, "idle", 20*time.Second, "how long the agent idles with them, before the batch and after it; 0 = not")
	f.IntVar(&o.Batch, "batch", 1000, "commands that end at once")
	f.IntVar(&o.Window, "window", 32, "of these are ordered at a time")
	f.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "give up after so long")
	f.StringVar(&o.Dir, "dir", os.TempDir(), "where the temporary folder of the agent's data is made")
	f.StringVar(&o.Profile, "profile", "", "folder for the agent's CPU and heap profiles of the batch")
	f.StringVarP(&output, "output", "o", "table", "table or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, n := range []struct {
			flag      string
			value, to int
		}{{"--tasks", o.Tasks, 5000}, {"--batch", o.Batch, 1_000_000}, {"--window", o.Window, 256}} {
			if n.value < 1 || n.value > n.to {
				return fmt.Errorf("%s: %d is not 1..%d", n.flag, n.value, n.to)
			}
		}
		switch {
		case output != "table" && output != "json":
			return fmt.Errorf("--output: %q is not one of table, json", output)
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
		switch {
		case r == nil:
		case output == "table":
			err = errors.Join(r.table(cmd.OutOrStdout()), err)
		default:
			err = errors.Join(json.NewEncoder(cmd.OutOrStdout()).Encode(r), err)
		}
		return err
	}
	return cmd
}

// idle measures a time without orders; nil: there is to be none.
func (n *agentRun) idle(ctx context.Context) (*AgentIdle, error) {
	if n.o.Idle <= 0 {
		return nil, nil
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
// agent after parts of them.
func (n *agentRun) batches(ctx context.Context) error {
	pid := n.cmd.Process.Pid
	agent, err1 := cpuTime(pid)
	tasks, err2 := childrenTime(pid)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	var took time.Duration
	from := 0
	for _, to := range []int{n.o.Batch / 10, n.o.Batch / 2, n.o.Batch} {
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
	return errors.Join(err1, err2)
}

// batch runs the commands of these numbers.
func (n *agentRun) batch(ctx context.Context, from, to int) error {
	var done atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(n.o.Window)
	for i := from; i < to && ctx.Err() == nil; i++ {
		g.Go(func() error {
			id := fmt.Sprintf("batch-%07d", i)
			reports, err := n.order(id, true, "true")
			if err != nil {
				return err
			}
			if err := n.await(ctx, id, nusav1.AllocState_ALLOC_STATE_COMPLETE, reports); err != nil {
				return err
			}
			n.master.forget(id)
			n.progress("%d of %d commands have ended", int64(from)+done.Add(1), n.o.Batch)
			return nil
		})
	}
	return g.Wait()
}

// size waits until the agent has forgotten what it was told to, and then looks.
func (n *agentRun) size(ctx context.Context) (AgentSize, error) {
	for {
		entries, err := os.ReadDir(filepath.Join(n.data(), "allocs"))
		if err != nil {
			return AgentSize{}, err
		}
		if len(entries) <= n.o.Tasks {
			break
		}
		select {
		case <-time.After(pollEvery):
		case <-ctx.Done():
			return AgentSize{}, fmt.Errorf("%d allocations are left of %d: %w", len(entries), n.o.Tasks, ctx.Err())
		}
	}
	var s AgentSize
	pid := n.cmd.Process.Pid
	var errs [5]error
	s.RSSMB, errs[0] = memory(pid, "status", "VmRSS:")
	s.Goroutines, errs[1] = n.goroutines(ctx)
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	s.Files, errs[2] = len(fds), err
	kids, err := childrenOf(pid)
	s.Children, errs[3] = len(kids), err
	for _, parent := range []string{"/sys/fs/cgroup/memory/nusa", "/sys/fs/cgroup/nusa"} {
		if entries, err := os.ReadDir(parent); err == nil {
			for _, e := range entries {
				if e.IsDir() {
					s.Cgroups++
				}
			}
			break
		}
	}
	errs[4] = filepath.WalkDir(n.data(), func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir():
			s.Folders++
		case d.Name() == "agent.db":
			if fi, err := d.Info(); err == nil {
				s.StoreBytes = fi.Size()
			}
		}
		return nil
	})
	return s, errors.Join(errs[:]...)
}

// goroutines as the agent's own metrics count them.
func (n *agentRun) goroutines(ctx context.Context) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.http+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			return strconv.Atoi(value)
		}
	}
	return 0, errors.Join(errors.New("the agent's metrics have no go_goroutines"), lines.Err())
}

// memory is a figure in kB of a file of a process, in MB.
func memory(pid int, file, key string) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if value, found := strings.CutPrefix(line, key); found {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return round(kib*1024/1e6, 2), err
		}
	}
	return 0, fmt.Errorf("/proc/PID/%s has no %s", file, key)
}

// childrenOf are the direct ones of a process.
func childrenOf(pid int) ([]int, error) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil, err
	}
	var out []int
	for _, t := range threads {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
		if err != nil {
			continue // the thread has ended
		}
		for _, f := range strings.Fields(string(data)) {
			if child, err := strconv.Atoi(f); err == nil {
				out = append(out, child)
			}
		}
	}
	return out, nil
}
