//go:build integration

package local_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/bench/emulate"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// flowRuns are the runs of a workflow with flowJobs jobs each.
	flowRuns, flowJobs = 40, 8
	flowText           = `name: flow
workflow:
  history: {count: 100}
  steps:
    fetch: {groups: &work {main: {tasks: {main: {driver: process, config: {command: x}, resources: {cpu: 10m, memory: 1MiB}}}}}}
    each: {depends: fetch.succeeded, foreach: {items: [a, b, c]}, groups: *work}
    train: {depends: each.succeeded, inline: {steps: {fit: {groups: *work}, check: {depends: fit.succeeded, groups: *work}}}}
    report: {depends: train.succeeded && !each.failed, groups: *work}
    clean: {groups: *work}
  on_exit: clean
`
)

// flows are runs of a workflow that begin before, during and after the kill of the active global server.
type flows struct {
	p    *pair
	half chan struct{} // closed when half of the runs have begun

	mu sync.Mutex
	// offered counts how often a region got the job of a step, by its name; again counts repeated requests.
	offered map[string]int
	again   int
}

// startFlows begins the runs. The jobs of their steps end as soon as an emulated region has accepted them. done waits
// until all have begun.
func startFlows(p *pair) (w *flows, done func() error) {
	p.t.Helper()
	w = &flows{p: p, half: make(chan struct{}), offered: map[string]int{}}
	fleet := emulate.New(emulate.Config{
		Addr: p.addrs[1], Regions: 2, Nodes: 200, Ends: true, Ask: func(string) (int64, int64) { return 10, 1 << 20 },
		Offered: func(s *nusav1.Slot, _ time.Time) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if job.OfStep(s.GetJob()) {
				w.offered[s.GetJob()]++
			}
		},
	})
	var g errgroup.Group
	ctx, cancel := context.WithCancel(p.t.Context())
	p.t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			p.t.Error(err)
		}
	})
	g.Go(func() error { return fleet.Run(ctx) })
	spec, err := job.Parse([]byte(flowText), "flow.yaml")
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := nusav1.NewJobsClient(p.conns[1]).Submit(ctx, &nusav1.SubmitRequest{Spec: spec}); err != nil {
		p.t.Fatal(err)
	}
	begun := make(chan error, 1)
	go func() { begun <- w.begin(ctx) }()
	return w, func() error { return <-begun }
}

// begin begins the runs one after another, each until it is acknowledged.
func (w *flows) begin(ctx context.Context) error {
	for i := range flowRuns {
		if i == flowRuns/2 {
			close(w.half)
		}
		for try := 0; ; try++ {
			_, err := nusav1.NewWorkflowsClient(w.p.conns[(i+try)%2]).Run(ctx, &nusav1.RunWorkflowRequest{
				Job: &nusav1.JobRef{Name: "flow"}, IdempotencyKey: fmt.Sprint("run-", i),
			})
			if err == nil {
				break
			}
			if ctx.Err() != nil || !sentAgain(err) {
				return fmt.Errorf("begin run %d: %w", i, err)
			}
			w.again++
			pause(ctx)
		}
	}
	return nil
}

// started returns how many jobs of steps a region has got.
func (w *flows) started() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.offered)
}

// succeeded returns an error if a run has not succeeded yet.
func (w *flows) succeeded(ctx context.Context) error {
	runs, err := nusav1.NewWorkflowsClient(w.p.conns[1]).List(ctx, &nusav1.ListWorkflowRunsRequest{Workflow: "flow"})
	if err != nil {
		return err
	}
	for _, r := range runs.GetRuns() {
		switch r.GetState() {
		case nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_FAILED, nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_CANCELED:
			w.p.t.Fatalf("run %v", r)
		case nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_SUCCEEDED:
		default:
			return fmt.Errorf("run %v", r)
		}
	}
	if n := len(runs.GetRuns()); n != flowRuns {
		w.p.t.Fatalf("%d runs, not %d", n, flowRuns)
	}
	return nil
}

// check checks that each job of a step was offered once, and that none is missing.
func (w *flows) check(before int) {
	w.p.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	runs := map[string]bool{}
	for name, n := range w.offered {
		if n != 1 {
			w.p.t.Errorf("%s was offered %d times", name, n)
		}
		if strings.Contains(name, "--r") && !strings.HasSuffix(name, "--report") {
			w.p.t.Errorf("%s is a second attempt", name)
		}
		run, _, _ := strings.Cut(name, job.StepMark)
		runs[run] = true
	}
	w.p.t.Logf("%d of %d steps began before the kill, %d requests to begin a run were sent again", before, len(w.offered), w.again)
	if len(w.offered) != flowRuns*flowJobs || len(runs) != 2*flowRuns {
		w.p.t.Errorf("%d jobs of %d runs were offered, not %d of %d", len(w.offered), len(runs), flowRuns*flowJobs, 2*flowRuns)
	}
}
