// Package reconcile compares what the master wants with what runs and says
// what to do about it, in order and with reasons. It is pure: the same function
// answers every event and every tick, and a quiet input gives an empty plan.
package reconcile

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/agent/health"
	"github.com/nusa-scheduler/nusa/agent/lease"
)

// Want is what the master wants of an allocation.
type Want int

const (
	// Run it.
	Run Want = iota
	// Stop it and keep its record.
	Stop
	// Forget it: stop it, then remove everything of it.
	Forget
)

// State of an allocation; it only advances.
type State int

// The states, as on the wire.
const (
	Pending State = iota
	Starting
	Running
	Complete
	Failed
	Stopped
)

var stateNames = [...]string{"pending", "starting", "running", "complete", "failed", "stopped"}

// String is the state's lower-case name.
func (s State) String() string { return stateNames[s] }

// Phase of a task here.
type Phase int

const (
	// Waiting: never run, or not yet its run on record.
	Waiting Phase = iota
	// Unknown: a run is on record, its driver has not been asked yet.
	Unknown
	// Launching: the driver is starting a run.
	Launching
	// Up: it runs.
	Up
	// Closing: the driver is stopping it.
	Closing
	// Ended: the latest run has ended.
	Ended
)

// Alloc is an allocation as ordered. Immutable.
type Alloc struct {
	ID   string
	Want Want
	// WantReason and WantMessage say why it is to stop.
	WantReason  Reason
	WantMessage string
	// Batch: exit code 0 completes a task. Otherwise every exit is a failure.
	Batch      bool
	MaxRuntime time.Duration // 0 = unlimited
	Lease      lease.Policy
	Tasks      []Task // sorted by name
	Ask        Ask
}

// Task as ordered.
type Task struct {
	Name        string
	KillTimeout time.Duration
	Restart     Restart
	// Checked: it is not running before its check has passed.
	Checked bool
}

// Restart is the policy on this node: at most Attempts restarts within any
// Window, Delay after the end of a run.
type Restart struct {
	Attempts      int
	Window, Delay time.Duration
}

// Actual is an allocation as it is here. The zero value is one that was never
// looked at.
type Actual struct {
	// Accepted by Admit.
	Accepted bool
	// Closing is set once it is decided that, and how, it ends.
	Closing *Outcome
	// End is set when everything of it has ended.
	End *Outcome
	// Started is the time of the first run's start.
	Started time.Time
	// Reached is the furthest state it was in.
	Reached State
	// Tasks by name.
	Tasks map[string]TaskActual
}

// Outcome is how an allocation ends.
type Outcome struct {
	State    State
	Declined bool
	Reason   Reason
	Message  string
}

// TaskActual is a task as it is here.
type TaskActual struct {
	Phase Phase
	// Run is the number of the latest run, 0 = none.
	Run int
	// Of the latest run, when Ended.
	Finished time.Time
	ExitCode int
	Signal   int
	// Reason is "" when the command ended by itself.
	Reason  Reason
	Message string
	// Final: it did not start, and would not if it were tried again.
	Final bool `json:",omitempty"`
	// Restarts are the times of recent restarts, oldest first.
	Restarts []time.Time
	// Health of the latest run, where it is checked; Sick says, once it is
	// unhealthy, why.
	Health health.Phase `json:",omitempty"`
	Sick   string       `json:",omitempty"`
	// Vain counts the runs begun since a check last passed: 0 = the latest one
	// was healthy.
	Vain int `json:",omitempty"`
	// Doubt: an agent may have died while it started the run, of which the driver
	// knows nothing, yet. The same run may be started again, since a run starts at
	// most once; before anything else it has to be halted.
	Doubt bool `json:",omitempty"`
}

func (t TaskActual) live() bool {
	return t.Phase == Launching || t.Phase == Up || t.Phase == Closing
}

// doubtful: whether its run will begin is not known.
func (t TaskActual) doubtful() bool { return t.Phase == Waiting && t.Doubt }

// Over is the task after the end of its latest run. A stop because of its checks
// is a failure of the run and counts as an exit does.
func (t TaskActual) Over(end TaskActual) TaskActual {
	if t.Health == health.Unhealthy && end.Reason == StoppedByAgent {
		end.Reason, end.Message = ReasonUnhealthy, t.Sick
	}
	end.Restarts, end.Vain = t.Restarts, t.Vain
	return end
}

// Begin is the task at the start of a run.
func (t TaskActual) Begin(task Task, run int) TaskActual {
	t.Phase, t.Run, t.Health, t.Sick, t.Doubt = Launching, run, health.Waiting, "", false
	if task.Checked {
		t.Vain++
	}
	return t
}

// Halted is the task once its run is asked to end. One that is in doubt was never
// seen to be up.
func (t TaskActual) Halted() TaskActual {
	if t.doubtful() {
		t.Phase = Launching
	} else {
		t.Phase = Closing
	}
	return t
}

// Check is the task after its checks brought the latest run into a phase; why
// is of an unhealthy one.
func (t TaskActual) Check(phase health.Phase, why string) TaskActual {
	t.Health, t.Sick = phase, ""
	switch phase {
	case health.Healthy:
		t.Vain = 0
	case health.Unhealthy:
		t.Sick = why
	}
	return t
}

// serving: it does what it is there for.
func (t TaskActual) serving(task Task) bool {
	return (t.Phase == Up || t.Phase == Closing) && (!task.Checked || t.Health == health.Healthy)
}

// AwaitsCheck says that a task is up and waits for its check to pass.
func (t TaskActual) AwaitsCheck(task Task) bool {
	return task.Checked && t.Phase == Up && t.Health == health.Waiting
}

// Input is everything a plan depends on.
type Input struct {
	Now    time.Time
	Lease  lease.State
	Host   Host
	Allocs []Alloc // sorted by ID; all, or any part of those that were accepted
	Actual map[string]Actual
}

// Make compares and plans. Its actions can be carried out in order, each
// exactly once; the results come back as a changed Actual.
//
// What is to be done about an allocation that was accepted depends on no other
// one: a plan of some of them says the same about these as a plan of all. Only
// to accept one needs all.
func Make(in Input) Plan {
	p := Plan{}
	if in.Host.Pausing {
		for _, a := range in.Allocs {
			p.pause(a, in.Actual[a.ID])
		}
		return p
	}
	room := newRoom(in)
	for _, a := range in.Allocs {
		p.alloc(in, a, in.Actual[a.ID], room)
	}
	return p
}

// alloc adds the actions of one allocation.
func (p *Plan) alloc(in Input, a Alloc, act Actual, room *room) {
	switch {
	case act.End != nil:
		p.cleanUp(a, act)
		return
	case !act.Accepted && act.Closing == nil:
		p.admit(in, a, act, room)
		return
	}
	for _, t := range a.Tasks {
		if act.Tasks[t.Name].Phase == Unknown {
			p.add(Action{Kind: Adopt, Alloc: a.ID, Task: t.Name, Run: act.Tasks[t.Name].Run, Message: "on record from before the agent's start"})
		}
	}
	if anyPhase(a, act, Unknown) {
		return
	}
	closing := act.Closing
	if closing == nil {
		closing = p.outcome(in, a, act)
		if closing != nil {
			p.shut(a, act, *closing)
			return
		}
	}
	if closing != nil {
		p.close(a, act, *closing)
		return
	}
	p.run(in, a, act)
}

// shut decides that an allocation ends, and begins with it.
func (p *Plan) shut(a Alloc, act Actual, o Outcome) {
	p.add(Action{Kind: Close, Alloc: a.ID, State: o.State, Reason: o.Reason, Message: o.Message})
	p.close(a, act, o)
}

// pause stops what is live of an allocation and leaves it as it is otherwise.
func (p *Plan) pause(a Alloc, act Actual) {
	if act.End != nil {
		return
	}
	for _, t := range a.Tasks {
		switch ta := act.Tasks[t.Name]; ta.Phase {
		case Unknown:
			p.add(Action{Kind: Adopt, Alloc: a.ID, Task: t.Name, Run: ta.Run, Message: "on record from before the agent's start"})
		case Up, Waiting:
			if ta.Phase == Up || ta.Doubt {
				p.add(Action{Kind: Halt, Alloc: a.ID, Task: t.Name, Run: ta.Run, Grace: t.KillTimeout, Message: "the agent pauses"})
			}
		}
	}
}

// Quiet says whether nothing of an allocation runs, as far as is known.
func Quiet(act Actual) bool {
	for _, t := range act.Tasks {
		if act.End == nil && (t.live() || t.Phase == Unknown || t.doubtful()) {
			return false
		}
	}
	return true
}

// admit answers to an allocation that is new here, or of which nothing but the
// order is on record: then an agent before this one may have begun it, and what
// will not run is made sure of.
func (p *Plan) admit(in Input, a Alloc, act Actual, room *room) {
	doubt := slices.ContainsFunc(a.Tasks, func(t Task) bool { return act.Tasks[t.Name].doubtful() })
	if doubt && a.Want != Run {
		p.shut(a, act, Outcome{State: Stopped, Reason: a.WantReason, Message: a.WantMessage})
		return
	}
	if a.Want != Run {
		p.add(Action{Kind: End, Alloc: a.ID, State: Stopped, Reason: a.WantReason, Message: "never started here"})
		return
	}
	if v := lease.Judge(a.Lease, in.Lease); !v.MayStart {
		return // neither accepted nor declined until there is a lease
	}
	reason, message := room.refuse(a.Ask)
	if doubt && reason != "" {
		p.shut(a, act, Outcome{State: Failed, Reason: reason, Message: message})
		return
	}
	if reason != "" {
		p.add(Action{Kind: Decline, Alloc: a.ID, State: Failed, Reason: reason, Message: message})
		return
	}
	room.take(a.Ask)
	p.add(Action{Kind: Accept, Alloc: a.ID, State: Starting, Message: "it fits"})
	act.Accepted = true
	p.run(in, a, act)
}

// outcome says whether, and how, an accepted allocation ends; nil = it goes on.
func (p *Plan) outcome(in Input, a Alloc, act Actual) *Outcome {
	if a.Want != Run {
		return &Outcome{State: Stopped, Reason: a.WantReason, Message: a.WantMessage}
	}
	if o := failure(a, act); o != nil {
		return o
	}
	if completed(a, act) {
		return &Outcome{State: Complete, Message: "every task exited with 0"}
	}
	if in.Host.Leaving {
		return &Outcome{State: Stopped, Reason: ReasonAgentLeaving, Message: "the agent leaves"}
	}
	if v := lease.Judge(a.Lease, in.Lease); v.MustStop {
		return &Outcome{State: Failed, Reason: Reason(v.Reason), Message: "no master renewed the lease, and the group wants no work without one"}
	} else if a.Lease == lease.Stop && in.Lease.Held {
		p.wakeAt(in.Now.Add(in.Lease.Left))
	}
	if a.MaxRuntime > 0 && !act.Started.IsZero() {
		end := act.Started.Add(a.MaxRuntime)
		if !in.Now.Before(end) {
			return &Outcome{State: Failed, Reason: ReasonMaxRuntime, Message: "ran for max_runtime, " + a.MaxRuntime.String()}
		}
		p.wakeAt(end)
	}
	return nil
}

// close stops what is live and ends the allocation once nothing is.
func (p *Plan) close(a Alloc, act Actual, o Outcome) {
	live := false
	for _, t := range a.Tasks {
		ta := act.Tasks[t.Name]
		live = live || ta.live() || ta.doubtful()
		if ta.Phase == Up || ta.doubtful() {
			p.add(Action{Kind: Halt, Alloc: a.ID, Task: t.Name, Run: ta.Run, Grace: t.KillTimeout, Reason: o.Reason, Message: o.Message})
		}
	}
	if !live {
		p.add(Action{Kind: End, Alloc: a.ID, State: o.State, Reason: o.Reason, Message: o.Message})
	}
}

// cleanUp is what is left to do for an allocation that has ended.
func (p *Plan) cleanUp(a Alloc, act Actual) {
	if a.Want == Forget {
		p.add(Action{Kind: Remove, Alloc: a.ID, Message: "the region has forgotten it"})
	}
}

// run starts what should run and does not, and halts what its check found
// unhealthy: what becomes of that then is up to the restart policy.
func (p *Plan) run(in Input, a Alloc, act Actual) {
	if !lease.Judge(a.Lease, in.Lease).MayStart {
		return
	}
	for _, t := range a.Tasks {
		ta := act.Tasks[t.Name]
		switch {
		case ta.Phase == Up && ta.Health == health.Unhealthy:
			p.add(Action{Kind: Halt, Alloc: a.ID, Task: t.Name, Run: ta.Run, Grace: t.KillTimeout, Reason: ReasonUnhealthy, Message: "it " + ta.Sick})
		case ta.Phase == Waiting:
			// A run on record that its driver does not know was never begun.
			p.add(Action{Kind: Start, Alloc: a.ID, Task: t.Name, Run: max(1, ta.Run), Message: "not running yet"})
		case ta.Phase == Ended && !done(a, ta):
			if at := ta.Finished.Add(t.Restart.Delay); in.Now.Before(at) {
				p.wakeAt(at)
			} else {
				p.add(Action{Kind: Start, Alloc: a.ID, Task: t.Name, Run: ta.Run + 1, Restart: true, Reason: endReason(ta),
					Message: restartMessage(t.Restart, ta)})
			}
		}
	}
}
