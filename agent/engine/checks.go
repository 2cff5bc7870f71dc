package engine

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/health"
)

// Bounds of the checks that run at the same time. A command is a process in the task, and
// its driver may hang. So commands have their own bound and do not delay the checks over
// the network.
const (
	maxNetworkChecks = 48
	maxCommandChecks = 16
)

// healthState is the state of a run's checks.
type healthState = health.State

// checks runs the health checks of the runs that are up. A check that is not due has no
// goroutine. A result that changes nothing is not reported, because nearly all results of a
// thousand tasks change nothing.
type checks struct {
	// report is called with each state that must be reported. For each run only one
	// goroutine at a time calls report. The call may block.
	report  func(id driver.ID, s healthState)
	metrics *Metrics

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	// slots bound the concurrent checks: slots[true] the commands, slots[false] the other
	// checks.
	slots map[bool]chan struct{}

	mu     sync.Mutex
	runs   map[driver.ID]*checkedRun
	closed bool
}

// checkedRun is a run with a check. checks.mu guards timer, due and state.
type checkedRun struct {
	id     driver.ID
	check  *check
	ctx    context.Context // context of the run's probes
	cancel context.CancelFunc
	timer  *time.Timer
	due    time.Time
	state  healthState
}

// newChecks returns checks without runs. The checks end with ctx, and the method close
// waits for their end.
func newChecks(ctx context.Context, m *Metrics, report func(id driver.ID, s healthState)) *checks {
	c := &checks{report: report, metrics: m, runs: map[driver.ID]*checkedRun{},
		slots: map[bool]chan struct{}{false: make(chan struct{}, maxNetworkChecks), true: make(chan struct{}, maxCommandChecks)}}
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c
}

// begin starts the checks of a run. first is the time until the first check.
func (c *checks) begin(id driver.ID, k *check, s healthState, first time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.runs[id] != nil {
		return
	}
	x := &checkedRun{id: id, check: k, state: s, due: time.Now().Add(first)}
	x.ctx, x.cancel = context.WithCancel(c.ctx)
	c.runs[id] = x
	x.timer = time.AfterFunc(first, func() { c.fire(x) })
}

// end ends the checks of a run, if the run has any.
func (c *checks) end(id driver.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.runs[id]; x != nil {
		c.drop(x)
	}
}

// drop forgets a run. The caller holds the lock.
func (c *checks) drop(x *checkedRun) {
	x.timer.Stop()
	x.cancel()
	delete(c.runs, x.id)
}

// close ends all checks and returns when none is running.
func (c *checks) close() {
	c.mu.Lock()
	c.closed = true
	for _, x := range c.runs {
		c.drop(x)
	}
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
}

// state returns the present state of a run's checks. It returns false if the run has no
// checks.
func (c *checks) state(id driver.ID) (healthState, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.runs[id]; x != nil {
		return x.state, true
	}
	return healthState{}, false
}

// fire runs a check that is due. record schedules the next check.
func (c *checks) fire(x *checkedRun) {
	c.mu.Lock()
	if c.runs[x.id] != x {
		c.mu.Unlock()
		return
	}
	due := x.due
	c.running.Add(1)
	c.mu.Unlock()
	defer c.running.Done()
	slot := c.slots[x.check.command]
	c.metrics.queued.Inc()
	select {
	case slot <- struct{}{}:
		c.metrics.queued.Dec()
	case <-x.ctx.Done():
		c.metrics.queued.Dec()
		return
	}
	r := x.check.run(x.ctx, x.id, due)
	<-slot
	c.record(x, r)
}

// record updates the state of a run with the result of a check.
func (c *checks) record(x *checkedRun, r health.Result) {
	c.mu.Lock()
	if c.runs[x.id] != x {
		c.mu.Unlock()
		return // the run ended during the check, so its result has no meaning
	}
	state, e := health.Step(x.check.Policy, x.state, r, time.Now(), rand.Float64())
	x.state = state
	c.mu.Unlock()
	result := "passed"
	switch {
	case health.Missed(x.check.Policy, r):
		result = "missed"
	case !r.OK:
		result = "failed"
	}
	c.metrics.checks.WithLabelValues(result).Inc()
	if e.Report {
		c.report(x.id, state)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Next > 0 && c.runs[x.id] == x {
		x.due = time.Now().Add(e.Next)
		x.timer.Reset(e.Next)
	}
}
