package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/nusa-scheduler/nusa/bench/report"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Options of a measurement of one agent.
type Options struct {
	// Tasks is the number of tasks that are started one by one. They run while the agent
	// idles.
	Tasks int
	// Idle is the time that the agent idles with these tasks.
	Idle time.Duration
	// Batch is the number of short commands. Window is how many of them are ordered at a
	// time.
	Batch, Window int
	// Timeout bounds the whole measurement.
	Timeout time.Duration
	// Dir is the parent of the agent's temporary folder.
	Dir string
	// Profile is the folder for the agent's CPU and heap profiles of the batch; "" = none.
	Profile string
	// Executable serves `agent …`; default: this program.
	Executable string
	// Progress shows a line of text; "" ends the line. It may be nil.
	Progress func(string)
}

// Result holds the figures of one agent. Memory is in MB of 10⁶ bytes.
type Result struct {
	Tasks int `json:"tasks"`
	// StartMS is the time from sending an order until its command is reported as running.
	// No other order is open in that time.
	StartMS report.Quantiles `json:"start_ms"`
	// Idle describes the agent while Tasks run.
	Idle *Idle `json:"idle,omitempty"`
	// Batch is the number of commands of the batch. A command counts as done when its end
	// with exit code 0 is reported and its order is removed.
	Batch        int     `json:"batch"`
	Window       int     `json:"window"`
	BatchSeconds float64 `json:"batch_seconds"`
	BatchPerS    float64 `json:"batch_per_s"`
	// AgentCPUMSPerTask is the agent's CPU time for each command. TaskCPUMS is the CPU
	// time of a command together with its supervisor.
	AgentCPUMSPerTask float64 `json:"agent_cpu_ms_per_task"`
	TaskCPUMS         float64 `json:"task_cpu_ms"`
	// Sizes are measured at rest after each quarter of the batch. Grown names the
	// quantities that are larger after the last quarter than after half of the batch.
	Sizes []Size   `json:"sizes"`
	Grown []string `json:"grown"`
	// Rested describes the idle agent after the batch.
	Rested *Idle `json:"rested,omitempty"`

	Filesystem string            `json:"filesystem,omitempty"`
	FSync      bool              `json:"fsync"`
	DiskSyncMS *report.Quantiles `json:"disk_sync_ms,omitempty"`
}

// Idle holds the figures of a span in which the agent got no orders.
type Idle struct {
	Seconds float64 `json:"seconds"`
	// CPUCores is the CPU use of the agent, SupervisorsCPUCores the CPU use of all its
	// supervisors.
	CPUCores            float64 `json:"cpu_cores"`
	SupervisorsCPUCores float64 `json:"supervisors_cpu_cores"`
	// RSSMB is the agent's resident memory. SupervisorRSSMB and SupervisorPSSMB are the
	// mean memory of one supervisor. PSS divides shared pages among the processes that
	// share them.
	RSSMB           float64 `json:"rss_mb"`
	SupervisorRSSMB float64 `json:"supervisor_rss_mb"`
	SupervisorPSSMB float64 `json:"supervisor_pss_mb"`
}

// Measure measures a real agent that runs real processes. A fake master orders them. When
// Measure returns an error, the result holds the figures measured before the error.
func Measure(ctx context.Context, o Options) (*Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("not done within --timeout %s", o.Timeout))
	defer cancel()
	n := &agentRun{o: o, r: &Result{Tasks: o.Tasks, Batch: o.Batch, Window: o.Window}, states: map[string]chan *nusav1.AllocReport{}}
	if err := n.start(ctx); err != nil {
		return nil, errors.Join(err, n.close())
	}
	err := n.measure(ctx)
	if ctx.Err() != nil && err != nil {
		err = context.Cause(ctx)
	}
	return n.r, errors.Join(err, n.close())
}

// agentRun is a measurement in progress.
type agentRun struct {
	o      Options
	r      *Result
	dir    string
	master *fakeMaster
	cmd    *exec.Cmd
	exited chan struct{}
	http   string
	rests  int // the number of calls of rested so far

	mu sync.Mutex
	// states holds, by allocation, the channel for the reports that a caller awaits.
	states map[string]chan *nusav1.AllocReport
}

func (n *agentRun) start(ctx context.Context) (err error) {
	exe := n.o.Executable
	if exe == "" {
		if exe, err = os.Executable(); err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
	}
	if n.dir, err = os.MkdirTemp(n.o.Dir, "nusa-bench-"); err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	if n.r.Filesystem, n.r.FSync, err = report.Filesystem(n.dir); err != nil {
		return err
	}
	syncs, err := report.SyncTimes(n.dir)
	if err != nil {
		return err
	}
	n.r.DiskSyncMS = &syncs
	if n.master, err = newFakeMaster(n.reported); err != nil {
		return err
	}
	ports, err := report.FreePorts(1)
	if err != nil {
		return err
	}
	n.http = fmt.Sprintf("127.0.0.1:%d", ports[0])
	log, err := os.Create(filepath.Join(n.dir, "agent.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"agent", "--region", report.RegionName, "--name", "node", "--servers", n.master.addr, "--http-addr", n.http,
		"--data-dir", n.data(), "--docker-host", "off", "--incus", "off"}
	if n.o.Profile != "" {
		if err := os.MkdirAll(n.o.Profile, 0o700); err != nil {
			return fmt.Errorf("--profile: %w", err)
		}
		args = append([]string{"bench", "profiled", filepath.Join(n.o.Profile, "agent"), "--"}, args...)
	}
	n.cmd = exec.Command(exe, args...)
	n.cmd.Stdout, n.cmd.Stderr = log, log
	if err := n.cmd.Start(); err != nil {
		n.cmd = nil
		return fmt.Errorf("start the agent: %w", err)
	}
	n.exited = make(chan struct{})
	go func() {
		_ = n.cmd.Wait()
		close(n.exited)
	}()
	select {
	case <-n.master.greeted:
		return nil
	case <-n.exited:
		return fmt.Errorf("the agent ended: %s", tail(log.Name()))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (n *agentRun) data() string { return filepath.Join(n.dir, "data") }

// tail returns the end of a log, for an error.
func tail(path string) string {
	text, _ := os.ReadFile(path)
	return string(text[max(0, len(text)-1000):])
}

// close stops every task, ends the agent and removes its folder.
func (n *agentRun) close() error {
	var errs []error
	if n.cmd != nil {
		n.master.mu.Lock()
		ids := n.master.box.Keys()
		n.master.mu.Unlock()
		for _, id := range ids {
			n.master.forget(id)
		}
		limit := time.After(report.StopWithin)
		for left := 1; left > 0; {
			select {
			case <-time.After(report.PollEvery):
				entries, _ := os.ReadDir(filepath.Join(n.data(), "process"))
				left = len(entries)
			case <-limit:
				errs = append(errs, fmt.Errorf("%d tasks were not stopped", left))
				left = 0
			case <-n.exited:
				left = 0
			}
		}
		_ = n.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-n.exited:
		case <-time.After(report.StopWithin):
			_ = n.cmd.Process.Kill()
			<-n.exited
		}
	}
	if n.master != nil {
		n.master.close()
	}
	if n.dir != "" {
		errs = append(errs, os.RemoveAll(n.dir))
	}
	return errors.Join(errs...)
}

// reported passes a report to the call of await for its allocation.
func (n *agentRun) reported(r *nusav1.AllocReport) {
	n.mu.Lock()
	waiting := n.states[r.GetId()]
	n.mu.Unlock()
	if waiting != nil {
		waiting <- r
	}
}

// await waits for the report of an allocation in a state. Reports of earlier states may
// come first.
func (n *agentRun) await(ctx context.Context, id string, state nusav1.AllocState, reports <-chan *nusav1.AllocReport) error {
	defer func() {
		n.mu.Lock()
		delete(n.states, id)
		n.mu.Unlock()
	}()
	for {
		select {
		case r := <-reports:
			switch {
			case r.GetState() == state:
				return nil
			case r.GetState() > nusav1.AllocState_ALLOC_STATE_RUNNING:
				return fmt.Errorf("%s is %v: %v %s", id, r.GetState(), r.GetReason(), r.GetMessage())
			}
		case <-n.exited:
			return fmt.Errorf("the agent ended: %s", tail(filepath.Join(n.dir, "agent.log")))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// order tells the agent to run a command. The returned channel has room for all reports
// about the command.
func (n *agentRun) order(id string, batch bool, command string, args ...string) (<-chan *nusav1.AllocReport, error) {
	reports := make(chan *nusav1.AllocReport, 64)
	n.mu.Lock()
	n.states[id] = reports
	n.mu.Unlock()
	return reports, n.master.run(id, batch, command, args...)
}

func (n *agentRun) measure(ctx context.Context) error {
	if err := n.starts(ctx); err != nil {
		return err
	}
	var err error
	if n.r.Idle, err = n.idle(ctx); err != nil {
		return err
	}
	n.profile(syscall.SIGUSR1)
	if err := n.batches(ctx); err != nil {
		return err
	}
	n.profile(syscall.SIGUSR2)
	n.r.Rested, err = n.idle(ctx)
	return err
}

// profile signals a profiled agent to begin or end its profile.
func (n *agentRun) profile(s syscall.Signal) {
	if n.o.Profile != "" {
		_ = n.cmd.Process.Signal(s)
	}
}

func (n *agentRun) progress(format string, args ...any) {
	if n.o.Progress != nil {
		n.o.Progress(fmt.Sprintf(format, args...))
	}
}

// starts starts the tasks one by one. The first start is not counted, because it also
// creates the files that all tasks share.
func (n *agentRun) starts(ctx context.Context) error {
	var all []time.Duration
	for i := range n.o.Tasks + 1 {
		n.progress("%d of %d tasks run", i, n.o.Tasks)
		id, began := fmt.Sprintf("task-%06d", i), time.Now()
		reports, err := n.order(id, false, "sleep", "100000")
		if err != nil {
			return err
		}
		if err := n.await(ctx, id, nusav1.AllocState_ALLOC_STATE_RUNNING, reports); err != nil {
			return err
		}
		if i > 0 {
			all = append(all, time.Since(began))
			continue
		}
		n.master.forget(id)
	}
	n.r.StartMS = report.QuantilesOf(all)
	return nil
}

func (r *Result) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	row("order to running", "%s", r.StartMS)
	if i := r.Idle; i != nil {
		row("idle", "%s", i.of(r.Tasks))
		row("  a supervisor", "%.1f MB resident, %.2f MB of its own share; all of them %.4f cores", i.SupervisorRSSMB, i.SupervisorPSSMB, i.SupervisorsCPUCores)
	}
	row("batch", "%d in %.2f s: %.0f /s, %d ordered at a time; %.2f ms of the agent's CPU each, %.2f ms of their own",
		r.Batch, r.BatchSeconds, r.BatchPerS, r.Window, r.AgentCPUMSPerTask, r.TaskCPUMS)
	for _, s := range r.Sizes {
		row(fmt.Sprintf("  after %d", s.After), "%.2f MB held, %.1f MB resident at rest, %d goroutines, %d files, %d cgroups, %d folders, %d children, store %d KiB",
			s.HeldMB, s.RSSMB, s.Goroutines, s.Files, s.Cgroups, s.Folders, s.Children, s.StoreBytes>>10)
	}
	if n := len(r.Sizes); n == Quarters {
		row("  grown", "%s", cmp.Or(strings.Join(r.Grown, "; "), fmt.Sprintf("nothing from %d to %d", r.Sizes[n/2-1].After, r.Sizes[n-1].After)))
	}
	if i := r.Rested; i != nil {
		row("idle again", "%s", i.of(r.Tasks))
	}
	row("disk", "%s, fsync %s", r.Filesystem, *r.DiskSyncMS)
	return t.Flush()
}

func (i *Idle) of(tasks int) string {
	return fmt.Sprintf("%d tasks, %.1f s: agent %.1f MB resident, %.4f cores", tasks, i.Seconds, i.RSSMB, i.CPUCores)
}
