package reconcile

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/agent/health"
	"github.com/nusa-scheduler/nusa/agent/lease"
)

// Want is the desired state that the master ordered for an allocation.
type Want int

const (
	// Run: the allocation must run.
	Run Want = iota
	// Stop: stop the allocation and retain its record.
	Stop
	// Forget: stop the allocation, then remove its record and its folders.
	Forget
)

// State is the state of an allocation. It only advances.
type State int

// The states. They have the same names in the protocol.
const (
	Pending State = iota
	Starting
	Running
	Complete
	Failed
	Stopped
)

var stateNames = [...]string{"pending", "starting", "running", "complete", "failed", "stopped"}

// String returns the state's lower-case name.
func (s State) String() string { return stateNames[s] }

// Phase is the phase of a task on this node.
type Phase int

const (
	// Waiting: no run has begun, or the recorded run has not begun yet.
	Waiting Phase = iota
	// Unknown: a run is recorded, but its driver was not asked about the run yet.
	Unknown
	// Launching: the driver is starting a run.
	Launching
	// Up: the run is running.
	Up
	// Closing: the driver is stopping the run.
	Closing
	// Ended: the latest run has ended.
	Ended
)

// Alloc is an allocation as ordered. It is never changed.
type Alloc struct {
	ID   string
	Want Want
	// WantReason and WantMessage say why the allocation must stop.
	WantReason  Reason
	WantMessage string
	// Batch says that exit code 0 completes a task. In other jobs every exit is a failure.
	Batch      bool
	MaxRuntime time.Duration // 0 means no bound
	// Binding says which leases bind the allocation.
	Binding lease.Binding
	Tasks   []Task // sorted by name
	Ask     Ask
	// Resized says that running tasks must get the limits of the order: see resize.go.
	Resized bool
}

// Task is a task as ordered.
type Task struct {
	Name        string
	KillTimeout time.Duration
	Restart     Restart
	// Checked says that the task counts as running only after its check has passed.
	Checked bool
	// Hook says when the task runs. Sidecar says that a prestart or poststart task runs as long
	// as the main tasks.
	Hook    Hook
	Sidecar bool
	// Leader says that this task is stopped first, and that a batch job is complete when it is
	// done.
	Leader bool
	// ShutdownDelay is the time from the order to stop the allocation to the stop of the task.
	ShutdownDelay time.Duration
	Limits        Limits
}

// Restart is the restart policy of a task on this node. It allows at most Attempts restarts
// within any Window. Delay is the pause between the end of a run and the next run.
type Restart struct {
	Attempts      int
	Window, Delay time.Duration
}

// Actual is the actual state of an allocation on this node. The zero value belongs to an
// allocation that no plan has covered yet. The agent stores the value as JSON.
type Actual struct {
	// Accepted says that the agent has accepted the allocation.
	Accepted bool
	// Closing is the outcome of an allocation that is about to end.
	Closing *Outcome
	// End is the final outcome. It is set once nothing of the allocation runs.
	End *Outcome
	// Started is the start time of the run that max_runtime counts from.
	Started time.Time
	// Reached is the most advanced state so far.
	Reached State
	// Tasks maps the name of a task to its state.
	Tasks map[string]TaskActual
}

// Outcome says how an allocation ends.
type Outcome struct {
	State    State
	Declined bool
	Reason   Reason
	Message  string
	// Since is the time at which the agent began to stop the allocation. Records of an earlier
	// version have the zero time.
	Since time.Time `json:",omitzero"`
	// Failure says why the allocation has failed. nil: it has not, or the record is of an earlier
	// version.
	Failure *Failure `json:",omitempty"`
}

// Failure is why an allocation has failed. The retry policy of its group reads it.
type Failure struct {
	Category Category
	// Task is the task that failed, or "" for the whole allocation.
	Task string
	// ExitCode and Signal say how the task ended by itself.
	ExitCode, Signal int
	// Permanent says that another attempt on this node would fail in the same way.
	Permanent bool
}

// TaskActual is the actual state of a task on this node. It is stored as JSON, so the JSON
// keys must not change.
type TaskActual struct {
	Phase Phase
	// Run is the number of the latest run, or 0 if there is none.
	Run int
	// Finished, ExitCode and Signal belong to the latest run. They are valid in the phase
	// Ended.
	Finished time.Time
	ExitCode int
	Signal   int
	// Reason says why the run ended. It is "" if the command ended by itself.
	Reason  Reason
	Message string
	// Final says that the run did not start, and that a retry would not start either.
	Final bool `json:",omitempty"`
	// Category is the kind of the failure that ended the run, if the driver reported it.
	Category Category `json:",omitempty"`
	// Restarts are the times of recent restarts, oldest first.
	Restarts []time.Time
	// Health is the health of the latest run of a task that has a check.
	Health health.Phase `json:",omitempty"`
	// UnhealthyReason says why Health is Unhealthy.
	UnhealthyReason string `json:"Sick,omitempty"`
	// Lapse is the reason why the agent stops the latest run at the end of a lease.
	Lapse Reason `json:",omitempty"`
	// RunsSinceHealthy counts the runs that have begun since a check last passed. It is 0
	// if the latest run was healthy.
	RunsSinceHealthy int `json:"Vain,omitempty"`
	// StartUncertain says that an agent may have died while it started the run, and that
	// the driver does not know the run yet. To start the same run again is safe, because a
	// run starts at most once. Before any other action the run must be stopped.
	StartUncertain bool `json:"Doubt,omitempty"`
	// RestartAsked says that an operator asked to replace the latest run by a new one.
	RestartAsked bool `json:",omitempty"`
	// Limits are those of the latest run. nil: the agent does not know them.
	Limits *Limits `json:",omitempty"`
	// RefusedLimits are limits that the driver could not give to the latest run, and why.
	RefusedLimits *RefusedLimits `json:",omitempty"`
	// Resizing says that the driver is changing the limits of the run. After its restart, the agent asks
	// the driver again.
	Resizing bool `json:"-"`
}

func (t TaskActual) live() bool {
	return t.Phase == Launching || t.Phase == Up || t.Phase == Closing
}

// startUncertain reports whether the recorded run may still begin.
func (t TaskActual) startUncertain() bool { return t.Phase == Waiting && t.StartUncertain }

// Finish returns the task after the end of its latest run. A stop because of failed checks
// counts as a failure of the run, like an exit. An end by a lease is no failure, so
// RunsSinceHealthy does not count that run. If an operator asked for a restart, the task waits for
// its next run.
func (t TaskActual) Finish(end TaskActual) TaskActual {
	if end.Reason == StoppedByAgent && t.RestartAsked && t.Lapse == "" && t.Health != health.Unhealthy {
		return t.Again(end.Run + 1)
	}
	switch {
	case end.Reason != StoppedByAgent:
	case t.Lapse != "":
		end.Reason = t.Lapse
	case t.Health == health.Unhealthy:
		end.Reason, end.Message = ReasonUnhealthy, t.UnhealthyReason
	}
	end.Restarts, end.RunsSinceHealthy = t.Restarts, t.RunsSinceHealthy
	if end.Lapsed() {
		end.RunsSinceHealthy = max(0, t.RunsSinceHealthy-1)
	}
	return end
}

// Again returns the task before another run that is not a restart after a failure. The restart
// policy does not count that run.
func (t TaskActual) Again(run int) TaskActual {
	return TaskActual{Phase: Waiting, Run: run, Restarts: t.Restarts, RunsSinceHealthy: max(0, t.RunsSinceHealthy-1)}
}

// Started returns the task after the start of a run.
func (t TaskActual) Started(task Task, run int) TaskActual {
	t.Phase, t.Run, t.Health, t.UnhealthyReason, t.Lapse, t.StartUncertain = Launching, run, health.Waiting, "", "", false
	t.RestartAsked, t.Resizing = false, false
	t.Limits, t.RefusedLimits = &task.Limits, nil
	if task.Checked {
		t.RunsSinceHealthy++
	}
	return t
}

// Stopping returns the task after the agent asked its run to end. A run whose start is
// uncertain gets the phase Launching, because it was never seen running.
func (t TaskActual) Stopping(why Reason) TaskActual {
	if ofLease(why) {
		t.Lapse = why
	}
	if t.startUncertain() {
		t.Phase = Launching
	} else {
		t.Phase = Closing
	}
	return t
}

// WithHealth returns the task after a check changed the health of the latest run. why says
// why the run is unhealthy.
func (t TaskActual) WithHealth(phase health.Phase, why string) TaskActual {
	t.Health, t.UnhealthyReason = phase, ""
	switch phase {
	case health.Healthy:
		t.RunsSinceHealthy = 0
	case health.Unhealthy:
		t.UnhealthyReason = why
	}
	return t
}

// serving reports whether the task is running and, if it has a check, healthy.
func (t TaskActual) serving(task Task) bool {
	return (t.Phase == Up || t.Phase == Closing) && (!task.Checked || t.Health == health.Healthy)
}

// AwaitsCheck reports whether a task is running but its check has not passed yet.
func (t TaskActual) AwaitsCheck(task Task) bool {
	return task.Checked && t.Phase == Up && t.Health == health.Waiting
}

// Input is everything that a plan depends on.
type Input struct {
	Now    time.Time
	Leases lease.Leases
	Host   Host
	Allocs []Alloc // sorted by ID: all, or any subset of the accepted allocations
	Actual map[string]Actual
}

// Make compares the orders with the actual state and returns a plan. The caller applies the
// actions in order, each once. The results of the actions appear in the Actual of the next
// Input.
//
// The actions of an accepted allocation depend on no other allocation. So a plan of a
// subset contains the same actions for that subset as a plan of all allocations. A decision
// to accept needs all allocations.
func Make(in Input) Plan {
	p := Plan{}
	if in.Host.Pausing {
		for _, a := range in.Allocs {
			p.pause(a, in.Actual[a.ID])
		}
		return p
	}
	var room *capacity // only the decision to accept an allocation needs the remaining capacity
	for _, a := range in.Allocs {
		act := in.Actual[a.ID]
		if room == nil && act.undecided() {
			room = newCapacity(in)
		}
		p.alloc(in, a, act, room)
	}
	return p
}

// undecided reports whether an allocation is neither accepted nor declined.
func (act Actual) undecided() bool {
	return act.End == nil && !act.Accepted && act.Closing == nil
}

// alloc adds the actions of one allocation.
func (p *Plan) alloc(in Input, a Alloc, act Actual, room *capacity) {
	switch {
	case act.End != nil:
		p.cleanUp(a, act)
		return
	case act.undecided():
		p.admit(in, a, act, room)
		return
	}
	for _, t := range a.Tasks {
		if act.Tasks[t.Name].Phase == Unknown {
			p.add(Action{Kind: Adopt, Alloc: a.ID, Task: t.Name, Run: act.Tasks[t.Name].Run, Message: "recorded before the agent's start"})
		}
	}
	if anyPhase(a, act, Unknown) {
		return
	}
	closing := act.Closing
	if closing == nil {
		closing = p.outcome(in, a, act)
		if closing != nil {
			p.beginClose(in, a, act, *closing)
			return
		}
	}
	if closing != nil {
		p.continueClose(in, a, act, *closing)
		return
	}
	p.underLease(in, a, act)
}

// beginClose records the outcome of an allocation and begins to stop it.
func (p *Plan) beginClose(in Input, a Alloc, act Actual, o Outcome) {
	o.Since = in.Now
	p.add(Action{Kind: Close, Alloc: a.ID, State: o.State, Reason: o.Reason, Message: o.Message, Failure: o.Failure})
	p.continueClose(in, a, act, o)
}

// pause stops the running tasks of an allocation and changes nothing else.
func (p *Plan) pause(a Alloc, act Actual) {
	if act.End != nil {
		return
	}
	for _, t := range a.Tasks {
		switch ta := act.Tasks[t.Name]; ta.Phase {
		case Unknown:
			p.add(Action{Kind: Adopt, Alloc: a.ID, Task: t.Name, Run: ta.Run, Message: "recorded before the agent's start"})
		case Up, Waiting:
			if ta.Phase == Up || ta.StartUncertain {
				p.add(Action{Kind: StopRun, Alloc: a.ID, Task: t.Name, Run: ta.Run, Grace: t.KillTimeout, Message: "the agent pauses"})
			}
		}
	}
}

// NothingRuns reports whether no task of an allocation is running and none may still begin.
func NothingRuns(act Actual) bool {
	for _, t := range act.Tasks {
		if act.End == nil && (t.live() || t.Phase == Unknown || t.startUncertain()) {
			return false
		}
	}
	return true
}

// admit accepts or declines an allocation that is not accepted yet. A previous agent may
// have begun a run before the record was written. In that case a decline must first stop
// the runs whose start is uncertain.
func (p *Plan) admit(in Input, a Alloc, act Actual, room *capacity) {
	uncertain := slices.ContainsFunc(a.Tasks, func(t Task) bool { return act.Tasks[t.Name].startUncertain() })
	if uncertain && a.Want != Run {
		p.beginClose(in, a, act, Outcome{State: Stopped, Reason: a.WantReason, Message: a.WantMessage})
		return
	}
	if a.Want != Run {
		p.add(Action{Kind: End, Alloc: a.ID, State: Stopped, Reason: a.WantReason, Message: "never started here"})
		return
	}
	if !lease.Evaluate(a.Binding, in.Leases).MayStart {
		return // wait for a lease before the decision
	}
	reason, message := room.declineReason(a.Ask)
	if uncertain && reason != "" {
		p.beginClose(in, a, act, Outcome{State: Failed, Reason: reason, Message: message})
		return
	}
	if reason != "" {
		p.add(Action{Kind: Decline, Alloc: a.ID, State: Failed, Reason: reason, Message: message})
		return
	}
	room.charge(a.Ask)
	p.add(Action{Kind: Accept, Alloc: a.ID, State: Starting, Message: "it fits"})
	act.Accepted = true
	p.underLease(in, a, act)
}

// outcome returns how an accepted allocation must end, or nil if it continues.
func (p *Plan) outcome(in Input, a Alloc, act Actual) *Outcome {
	if a.Want != Run {
		return &Outcome{State: Stopped, Reason: a.WantReason, Message: a.WantMessage}
	}
	if o := failure(a, act); o != nil {
		return o
	}
	if message := completed(a, act); message != "" {
		return &Outcome{State: Complete, Message: message}
	}
	if in.Host.Leaving {
		return &Outcome{State: Stopped, Reason: ReasonAgentLeaving, Message: "the agent leaves"}
	}
	if a.MaxRuntime > 0 && !act.Started.IsZero() && !lapsed(a, act) {
		end := act.Started.Add(a.MaxRuntime)
		if !in.Now.Before(end) {
			return &Outcome{State: Failed, Reason: ReasonMaxRuntime, Message: "ran for max_runtime, " + a.MaxRuntime.String(),
				Failure: &Failure{Category: CategoryTimeout}}
		}
		p.wakeAt(end)
	}
	return nil
}

// underLease continues an allocation while the leases that bind it are held, and stops its
// tasks when one of these leases has ended.
func (p *Plan) underLease(in Input, a Alloc, act Actual) {
	v := lease.Evaluate(a.Binding, in.Leases)
	switch {
	case v.MayStart:
		if a.Binding != lease.None {
			p.wakeAt(in.Now.Add(in.Leases.Of(a.Binding).Left))
		}
		p.run(in, a, act)
	case v.MustStop:
		for _, t := range a.Tasks {
			if ta := act.Tasks[t.Name]; ta.Phase == Up || ta.startUncertain() {
				p.add(Action{Kind: StopRun, Alloc: a.ID, Task: t.Name, Run: ta.Run, Grace: t.KillTimeout, Reason: Reason(v.Reason), Message: v.Message()})
			}
		}
	}
}

// cleanUp removes an allocation that has ended and that the region has forgotten.
func (p *Plan) cleanUp(a Alloc, act Actual) {
	if a.Want == Forget {
		p.add(Action{Kind: Remove, Alloc: a.ID, Message: "the region has forgotten the allocation"})
	}
}

// lapsedPause is the shortest pause between an end by a lease and the next run. Without the
// pause, a driver whose starts come too late would get requests all the time.
const lapsedPause = time.Second

// run starts the tasks that should run, and stops unhealthy runs. After such a stop the
// restart policy decides about another run.
func (p *Plan) run(in Input, a Alloc, act Actual) {
	for _, t := range a.Tasks {
		ta := act.Tasks[t.Name]
		if !ta.live() && !mayBegin(a, act, t) {
			continue
		}
		switch {
		case ta.Phase == Up && ta.Health == health.Unhealthy:
			p.add(Action{Kind: StopRun, Alloc: a.ID, Task: t.Name, Run: ta.Run, Grace: t.KillTimeout, Reason: ReasonUnhealthy, Message: "it " + ta.UnhealthyReason})
		case ta.Phase == Up && ta.RestartAsked:
			p.add(Action{Kind: StopRun, Alloc: a.ID, Task: t.Name, Run: ta.Run, Grace: t.KillTimeout, Message: "an operator asked for a restart"})
		case a.mustResize(t, ta):
			p.add(Action{Kind: Resize, Alloc: a.ID, Task: t.Name, Run: ta.Run, Limits: t.Limits, Message: resizeMessage(ta, t)})
		case ta.Phase == Waiting:
			// The driver does not know the recorded run, so that run never began.
			p.add(Action{Kind: Start, Alloc: a.ID, Task: t.Name, Run: max(1, ta.Run), Message: "not running yet"})
		case ta.Lapsed():
			if at := ta.Finished.Add(lapsedPause); in.Now.Before(at) {
				p.wakeAt(at)
			} else {
				p.add(Action{Kind: Start, Alloc: a.ID, Task: t.Name, Run: ta.Run + 1, Reason: ta.Reason, Message: "the lease is back"})
			}
		case ta.Phase == Ended && !done(a, t, ta):
			if at := ta.Finished.Add(t.Restart.Delay); in.Now.Before(at) {
				p.wakeAt(at)
			} else {
				p.add(Action{Kind: Start, Alloc: a.ID, Task: t.Name, Run: ta.Run + 1, Restart: true, Reason: endReason(ta),
					Message: restartMessage(t.Restart, ta)})
			}
		}
	}
}
