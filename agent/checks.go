package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/health"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds of the checks that are under way at a time. A command is a process in
// the task, and its driver may hang: it must not keep the others waiting.
const (
	maxProbes   = 48 // over the network
	maxCommands = 16
)

// probe carries a check out, once, within its context. What it saw is for
// people; an error says the same of one that failed.
type probe func(ctx context.Context, id driver.ID) (saw string, err error)

// check of a task, ready to be carried out.
type check struct {
	health.Policy
	command bool
	probe   probe
}

// checks carries out the checks of what is up. It holds no goroutine for one
// that is not due, and nobody hears of a result that says nothing new: with a
// thousand tasks nearly all are of that kind.
type checks struct {
	// tell is called with a state worth telling, by one goroutine at a time for
	// each run. It may wait.
	tell    func(id driver.ID, s health.State)
	metrics *metrics

	ctx     context.Context
	cancel  context.CancelFunc
	probing sync.WaitGroup
	lanes   map[bool]chan struct{} // by check.command: a place for each under way

	mu     sync.Mutex
	of     map[driver.ID]*checked
	closed bool
}

// checked is a run under check; guarded by checks.mu, but for what never
// changes.
type checked struct {
	id     driver.ID
	check  *check
	ctx    context.Context // of its probes
	cancel context.CancelFunc
	timer  *time.Timer
	due    time.Time
	state  health.State
}

// newChecks returns none. They end with ctx, and close waits for that.
func newChecks(ctx context.Context, m *metrics, tell func(id driver.ID, s health.State)) *checks {
	c := &checks{tell: tell, metrics: m, of: map[driver.ID]*checked{},
		lanes: map[bool]chan struct{}{false: make(chan struct{}, maxProbes), true: make(chan struct{}, maxCommands)}}
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c
}

// begin to check a run that is up, the first time in a while.
func (c *checks) begin(id driver.ID, k *check, s health.State, first time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.of[id] != nil {
		return
	}
	x := &checked{id: id, check: k, state: s, due: time.Now().Add(first)}
	x.ctx, x.cancel = context.WithCancel(c.ctx)
	c.of[id] = x
	x.timer = time.AfterFunc(first, func() { c.fire(x) })
}

// end the checks of a run, if there are any.
func (c *checks) end(id driver.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.of[id]; x != nil {
		c.drop(x)
	}
}

// drop forgets a run. The caller holds the lock.
func (c *checks) drop(x *checked) {
	x.timer.Stop()
	x.cancel()
	delete(c.of, x.id)
}

// close ends all checks and returns when none is under way.
func (c *checks) close() {
	c.mu.Lock()
	c.closed = true
	for _, x := range c.of {
		c.drop(x)
	}
	c.mu.Unlock()
	c.cancel()
	c.probing.Wait()
}

// state of a run's checks now.
func (c *checks) state(id driver.ID) (health.State, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.of[id]; x != nil {
		return x.state, true
	}
	return health.State{}, false
}

// fire carries out a check that is due, and sees to the next one.
func (c *checks) fire(x *checked) {
	c.mu.Lock()
	if c.of[x.id] != x {
		c.mu.Unlock()
		return
	}
	due := x.due
	c.probing.Add(1)
	c.mu.Unlock()
	defer c.probing.Done()
	lane := c.lanes[x.check.command]
	c.metrics.queued.Inc()
	select {
	case lane <- struct{}{}:
		c.metrics.queued.Dec()
	case <-x.ctx.Done():
		c.metrics.queued.Dec()
		return
	}
	r := x.check.carryOut(x.ctx, x.id, due)
	<-lane
	c.take(x, r)
}

// take what a check saw.
func (c *checks) take(x *checked, r health.Result) {
	c.mu.Lock()
	if c.of[x.id] != x {
		c.mu.Unlock()
		return // ended meanwhile: that it failed then says nothing
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
		c.tell(x.id, state)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Next > 0 && c.of[x.id] == x {
		x.due = time.Now().Add(e.Next)
		x.timer.Reset(e.Next)
	}
}

// carryOut runs the probe within the time-out, which begins now however long
// the check had to wait.
func (k *check) carryOut(ctx context.Context, id driver.ID, due time.Time) health.Result {
	began := time.Now()
	r := health.Result{Began: began, Late: max(0, began.Sub(due))}
	ctx, cancel := context.WithTimeout(ctx, k.Timeout)
	defer cancel()
	var woke atomic.Int64 // after began, if it came to that
	stop := context.AfterFunc(ctx, func() { woke.Store(int64(time.Since(began))) })
	saw, err := k.probe(ctx, id)
	stop()
	if r.OK = err == nil; !r.OK {
		saw = err.Error()
		r.Overslept = max(0, time.Duration(woke.Load())-k.Timeout)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			saw = "no answer within " + k.Timeout.String()
			if k.command {
				saw = "did not end within " + k.Timeout.String()
			}
		}
	}
	r.Message = health.Clean(saw)
	return r
}

// task of an allocation, as ordered.
func (a *alloc) task(name string) reconcile.Task {
	for _, t := range a.alloc.Tasks {
		if t.Name == name {
			return t
		}
	}
	return reconcile.Task{Name: name}
}

// watch begins to check a run that is up, or goes on where an earlier life of
// the agent was.
func (e *engine) watch(a *alloc, name string) {
	t, k, d, now := a.act.Tasks[name], a.tasks[name].check, a.detail(name), time.Now()
	if k == nil || t.Health == health.Unhealthy {
		return
	}
	s, first := health.Resume(k.Policy, t.Health, d.GetCheck().GetSince().AsTime(), now, rand.Float64())
	if s.Phase == health.Waiting {
		d.State = nusav1.AllocState_ALLOC_STATE_STARTING
	}
	d.Check = checkState(k, s)
	e.checks.begin(driver.ID{Alloc: a.alloc.ID, Task: name, Run: t.Run}, k, s, first)
}

// told has the engine note what is worth telling of a run's checks.
func (e *engine) told(id driver.ID, s health.State) {
	e.post(func() {
		a := e.allocs[id.Alloc]
		if a == nil {
			return
		}
		t, k := a.act.Tasks[id.Task], a.tasks[id.Task].check
		if t.Run != id.Run || t.Phase != reconcile.Up || k == nil {
			return
		}
		d := a.detail(id.Task)
		d.Check, a.dirty = checkState(k, s), true
		if s.Phase == t.Health {
			return
		}
		message := ""
		switch s.Phase {
		case health.Healthy:
			d.State = nusav1.AllocState_ALLOC_STATE_RUNNING
			message = fmt.Sprintf("after %s: %s", s.Since.Sub(d.GetStarted().AsTime()).Round(time.Millisecond), s.Describe(k.Policy))
		case health.Unhealthy:
			message = health.UnhealthyReason(k.Policy, t.Health, s)
		}
		a.setTask(id.Task, t.WithHealth(s.Phase, message))
		noteEvent(d, s.Since, s.Phase.String(), message)
		e.log.Info("task is "+s.Phase.String(), "run", id, "message", message)
	})
}

// checkState is how the checks of a run go, for reports.
func checkState(k *check, s health.State) *nusav1.CheckState {
	out := &nusav1.CheckState{Check: k.What, State: nusav1.HealthState(s.Phase) + nusav1.HealthState_HEALTH_STATE_WAITING,
		Since: timestamppb.New(s.Since), Message: s.Last.Message, Failures: int32(s.Failed)}
	if !s.Last.Began.IsZero() {
		out.At = timestamppb.New(s.Last.Began)
	}
	if health.Late(k.Policy, s.Last) {
		out.Late = durationpb.New(max(s.Last.Late, s.Last.Overslept))
	}
	return out
}

// waitsFor says which check an allocation waits for; "" when there is none that
// a task which is up has yet to pass.
func waitsFor(o *order, act reconcile.Actual, details map[string]*nusav1.TaskState) string {
	for _, t := range o.alloc.Tasks {
		if !act.Tasks[t.Name].AwaitsCheck(t) {
			continue
		}
		words := details[t.Name].GetCheck().GetCheck()
		if said := details[t.Name].GetCheck().GetMessage(); said != "" {
			words += ": " + said
		}
		if len(o.alloc.Tasks) > 1 {
			words = "task " + t.Name + ": " + words
		}
		return words
	}
	return ""
}
