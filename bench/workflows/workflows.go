package workflows

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/bench/emulate"
	"github.com/nusa-scheduler/nusa/bench/federation"
	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// workflow is the name of the measured workflow, and namespace its namespace.
	workflow, namespace = "bench-steps", "default"
	// nodes is the number of nodes of each region, and stepCPU and stepMemory what a step reserves.
	nodes, stepCPU, stepMemory = 1000, 1, 1 << 20
	// commits is how many transactions are written for the ceiling, and commitKeys how many keys each one has,
	// with values of commitBytes: about what the end of a step and the start of the next one write.
	commits, commitKeys, commitBytes = 200, 4, 400
)

// Options of a measurement.
type Options struct {
	// Regions is the number of emulated regions, Workflows that of runs. Each has Steps steps, in Width chains.
	// Concurrency is how many runs go on at once.
	Regions, Workflows, Steps, Width, Concurrency int
	// Timeout bounds the measurement.
	Timeout time.Duration
	// Dir, Profile, Executable: see federation.Options.
	Dir, Profile, Executable string
}

// Validate returns an error that names the flag of the first invalid option.
func (o *Options) Validate() error {
	for _, n := range []struct {
		flag            string
		value, from, to int
	}{
		{"--regions", o.Regions, 1, 1000}, {"--workflows", o.Workflows, 1, 10_000}, {"--steps", o.Steps, 1, 10_000},
		{"--width", o.Width, 1, 1000}, {"--concurrency", o.Concurrency, 1, 10_000},
	} {
		if n.value < n.from || n.value > n.to {
			return fmt.Errorf("%s: %d is not %d..%d", n.flag, n.value, n.from, n.to)
		}
	}
	if o.Timeout <= 0 {
		return fmt.Errorf("--timeout: %s is not more than 0", o.Timeout)
	}
	return nil
}

// Result is the outcome of a measurement.
type Result struct {
	Regions     int `json:"regions"`
	Workflows   int `json:"workflows"`
	Steps       int `json:"steps"`
	Width       int `json:"width"`
	Concurrency int `json:"concurrency"`
	// NextMS is the time from the moment at which a region says that a step has ended to that at which a region
	// has the offer of the next step.
	NextMS report.Quantiles `json:"step_end_to_next_offer_ms"`
	// CommitMS is the time of a bare transaction of the same etcd, one at a time, after the runs.
	CommitMS report.Quantiles `json:"etcd_commit_ms"`
	// Commits is the median of NextMS in medians of CommitMS.
	Commits   float64 `json:"commits_per_step"`
	StepsPerS float64 `json:"steps_per_s"`
	Seconds   float64 `json:"seconds"`
	// CPUPerStepMS is the processor time of the server for each step. MemoryMB is its greatest memory.
	CPUPerStepMS float64 `json:"server_cpu_per_step_ms"`
	MemoryMB     float64 `json:"server_peak_memory_mb"`
}

// Measure measures a global server with a fresh store.
func Measure(ctx context.Context, o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Executable == "" {
		var err error
		if o.Executable, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
	}
	ctx, cancel := report.Within(ctx, o.Timeout, fmt.Errorf("--timeout: the runs have not ended within %s", o.Timeout))
	defer cancel()
	global, err := federation.StartGlobal(ctx, federation.Options{Dir: o.Dir, Profile: o.Profile, Executable: o.Executable})
	if err != nil {
		return nil, err
	}
	defer global.Close()
	m := newMarks(o.Steps, o.Width, o.Workflows)
	fleet := emulate.New(emulate.Config{
		Addr: global.Addr(), Regions: o.Regions, Nodes: nodes, Ends: true,
		Ask:     func(string) (int64, int64) { return stepCPU, stepMemory },
		Offered: func(s *nusav1.Slot, at time.Time) { m.noteOffered(s.GetJob(), at) },
		Ended:   func(_, job string, at time.Time) { m.noteEnded(job, at) },
	})
	fleetContext, leave := context.WithCancel(ctx)
	g, fleetContext := errgroup.WithContext(fleetContext)
	g.Go(func() error { return fleet.Run(fleetContext) })
	r, err := measure(ctx, o, global, fleet, m)
	leave()
	if ended := g.Wait(); err == nil && ended != nil && !errors.Is(ended, context.Canceled) {
		err = ended
	}
	if err != nil {
		return nil, report.Cause(ctx, err)
	}
	return r, nil
}

func measure(ctx context.Context, o Options, global *federation.Global, fleet *emulate.Fleet, m *marks) (*Result, error) {
	if err := fleet.AwaitConnected(ctx, nil); err != nil {
		return nil, err
	}
	conn, err := serve.Dial(network.Host(), global.Addr())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if _, err := nusav1.NewJobsClient(conn).Submit(ctx, &nusav1.SubmitRequest{Spec: specOf(o)}); err != nil {
		return nil, fmt.Errorf("submit the workflow: %w", err)
	}
	cpu, err := report.CPUTime(global.PID())
	if err != nil {
		return nil, err
	}
	profiled := global.Profile()
	began := time.Now()
	if err := runAll(ctx, o, nusav1.NewWorkflowsClient(conn), m); err != nil {
		return nil, err
	}
	took := time.Since(began)
	if err := profiled(ctx); err != nil {
		return nil, err
	}
	after, err := report.CPUTime(global.PID())
	if err != nil {
		return nil, err
	}
	bare, err := commitTimes(ctx, global.Etcd())
	if err != nil {
		return nil, err
	}
	peak, err := report.Memory(global.PID(), "status", "VmHWM:")
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all := o.Workflows * o.Steps
	if m.offered != all {
		return nil, fmt.Errorf("%d of %d steps were offered", m.offered, all)
	}
	r := &Result{
		Regions: o.Regions, Workflows: o.Workflows, Steps: o.Steps, Width: o.Width, Concurrency: o.Concurrency,
		NextMS: report.QuantilesOf(m.latencies), CommitMS: report.QuantilesOf(bare), StepsPerS: report.PerSecond(all, took),
		Seconds: report.Seconds(took), CPUPerStepMS: report.Round((after-cpu).Seconds()*1000/float64(all), 3), MemoryMB: report.Round(peak, 1),
	}
	if r.CommitMS.P50 > 0 {
		r.Commits = report.Round(r.NextMS.P50/r.CommitMS.P50, 2)
	}
	return r, nil
}

// runAll begins the runs, and waits until the steps of all have ended.
func runAll(ctx context.Context, o Options, c nusav1.WorkflowsClient, m *marks) error {
	room := make(chan struct{}, o.Concurrency)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for range o.Workflows {
			select {
			case <-m.ended:
				<-room
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	calls := max(1, min(o.Concurrency, runtime.NumCPU()*8))
	work := make(chan struct{})
	for range calls {
		g.Go(func() error {
			for range work {
				if _, err := c.Run(ctx, &nusav1.RunWorkflowRequest{Job: &nusav1.JobRef{Namespace: namespace, Name: workflow}}); err != nil {
					return fmt.Errorf("begin a run: %w", err)
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(work)
		for range o.Workflows {
			select {
			case room <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			select {
			case work <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	return g.Wait()
}

// specOf returns the workflow.
func specOf(o Options) *nusav1.JobSpec {
	config, err := structpb.NewStruct(map[string]any{"command": "true"})
	if err != nil {
		panic(err) // cannot fail: the value is a constant
	}
	w := &nusav1.Workflow{Steps: map[string]*nusav1.Step{}, MaxParallel: 1000}
	name := func(i int) string { return fmt.Sprintf("s%05d", i) }
	for i := range o.Steps {
		s := &nusav1.Step{Groups: map[string]*nusav1.Group{"main": {Tasks: map[string]*nusav1.Task{"main": {
			Driver: "process", Config: config, Resources: &nusav1.Resources{CpuMilli: stepCPU, MemoryBytes: stepMemory},
		}}}}}
		if i >= o.Width {
			s.Depends = name(i-o.Width) + ".succeeded"
		}
		w.Steps[name(i)] = s
	}
	return &nusav1.JobSpec{Name: workflow, Namespace: namespace, Type: nusav1.JobType_JOB_TYPE_WORKFLOW, Workflow: w}
}

// commitTimes returns how long bare transactions of an etcd take.
func commitTimes(ctx context.Context, addr string) ([]time.Duration, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Context: ctx})
	if err != nil {
		return nil, fmt.Errorf("the etcd of the server: %w", err)
	}
	defer c.Close()
	var out []time.Duration
	for i := range commits {
		var ops []clientv3.Op
		for k := range commitKeys {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("/bench/%d/%d", i, k), strings.Repeat("x", commitBytes)))
		}
		began := time.Now()
		if _, err := c.Txn(ctx).Then(ops...).Commit(); err != nil {
			return nil, fmt.Errorf("the etcd of the server: %w", err)
		}
		out = append(out, time.Since(began))
	}
	return out, nil
}

// Table writes the result for people.
func (r *Result) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "runs\t%d of %d steps in %d chains, %d at once, %d regions\n", r.Workflows, r.Steps, r.Width, r.Concurrency, r.Regions)
	fmt.Fprintf(t, "end to next offer\t%s\n", r.NextMS)
	fmt.Fprintf(t, "bare etcd commit\t%s\n", r.CommitMS)
	fmt.Fprintf(t, "steps a second\t%.0f\n", r.StepsPerS)
	fmt.Fprintf(t, "server\t%.2f ms of processor time each step, %.0f MB of memory\n", r.CPUPerStepMS, r.MemoryMB)
	return t.Flush()
}
